"""Rows of the outbox: what a writer puts into it, and the first messages that are still to be sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from ..memory.writes import OutboxMessage
from . import rows
from .place import Place
from .statements import Statements

_headers = msgspec.json.Decoder(tuple[tuple[str, str], ...])
Read = Callable[[str, tuple[Any, ...]], Iterable[rows.Row]]


def message_rows(partition: int, first: int, messages: Sequence[OutboxMessage]) -> Iterator[rows.Row]:
    """Rows of `outbox`, numbered from `first` on."""
    for number, message in enumerate(messages, first):
        source, offset = message.letter or (None, None)
        headers = rows.encode_list(message.headers)
        yield (partition, message.kind, number, message.id, message.key, headers, message.value, source, offset)


def first_messages(
    read: Read, statements: Statements, place: Place, kind: str, limit: int, max_bytes: int
) -> list[OutboxMessage]:
    """The first messages of a kind, in order: at most `limit`, and `max_bytes` of values where they are several."""
    until = total = 0
    for number, size in read(statements.MESSAGE_SIZES, (place.partition, kind, limit, 0)):
        total += size
        if until and total > max_bytes:
            break
        until = number
    found = []
    for number, id_, key, headers, value, source, offset in (
        read(statements.MESSAGES, (place.partition, kind, until)) if until else ()
    ):
        letter = None if source is None else (source, offset)
        found.append(OutboxMessage(kind, id_, key, _headers.decode(headers), value, letter, number))
    return found
