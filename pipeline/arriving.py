"""From a batch's rows to the events and commands that a transaction stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..memory.model import Event, User
from ..memory.writes import BufferedEvent, CommandRow, WriteSet
from . import batches
from .batches import TurnBatch
from .residents import SESSION_END, Resident


def take_rows(
    batch: TurnBatch,
    offsets: Sequence[int],
    wanted: Sequence[int],
    seq: int,
    write: WriteSet,
    known_messages: Callable[[Sequence[tuple[User, str]]], set[tuple[User, str]]],
    take: Callable[[Sequence[User]], dict[User, Resident]],
) -> tuple[int, int, dict[User, Resident]]:
    """Put a batch's new turns and end records into the write, and let their users' copies follow.

    Args:
        batch: the batch, embedded.
        offsets: the source offset of each row.
        wanted: the rows that were not applied before.
        seq: the number that the first of them gets.
        write: the transaction.
        known_messages: those of some turns that are stored already.
        take: gives the copies of users.

    Returns:
        The next free number, how many turns were there before, and the users' copies.
    """
    rows = batches.columns_of(batch.records)
    users = [User(tenant, user) for tenant, user in zip(rows["tenant"], rows["user_id"], strict=True)]
    records, message_ids, unknown = rows["record"], rows["message_id"], rows["unknown_fields"]
    turns = list(zip(*(rows[name] for name in batches.EVENT_COLUMNS), strict=True))
    known = known_messages([(users[at], message_ids[at]) for at in wanted if records[at] == batches.TURN])
    residents = take(list(dict.fromkeys(users[at] for at in wanted)))
    chosen: list[int] = []
    counts = dict.fromkeys(("duplicates", "naive_timestamps", "unknown_fields"), 0)
    for at in wanted:
        user = users[at]
        if records[at] != batches.TURN:
            command = CommandRow(seq, user, SESSION_END, rows["session_id"][at], rows["time_us"][at])
            write.commands.append(command)
            residents[user].command(command)
            seq += 1
            continue
        key = (user, message_ids[at])
        if key in known:
            counts["duplicates"] += 1
            continue
        known.add(key)
        event = Event(user, seq, *turns[at])
        write.events.append(event)
        write.event_sources.append((batch.source, offsets[at]))
        residents[user].arrive(BufferedEvent(seq, event.session_id, event.message_id, event.time_us, event.tokens))
        seq += 1
        counts["naive_timestamps"] += event.utc_offset_minutes is None
        counts["unknown_fields"] += unknown[at]
        chosen.append(at)
    if chosen:
        assert batch.vectors is not None, "a batch is embedded before it reaches the shard"
        write.vectors = batch.vectors if len(chosen) == len(offsets) else batch.vectors[np.asarray(chosen)]
    write.counts = {name: count for name, count in counts.items() if count}
    return seq, counts["duplicates"], residents
