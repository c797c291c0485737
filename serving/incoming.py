"""Turns as they come by HTTP: checked whole, all or none, before anything is embedded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..memory.errors import Rejected
from ..memory.model import User
from ..pipeline.records import BadRecord, EndOfSession, RecordLimits, Turn, decode

_SHOWN = 20


def checked_records(user: User, turns: Sequence[Any], limits: RecordLimits) -> list[Turn | EndOfSession]:
    """Check one user's turns and end records; owner fields that are left out are the user's.

    Raises:
        Rejected: the message names each that is wrong by its place in `turns`.
    """
    records: list[Turn | EndOfSession] = []
    wrong: list[str] = []
    for at, turn in enumerate(turns):
        try:
            records.append(_checked(user, turn, limits))
        except BadRecord as bad:
            wrong.append(f"turn {at}: {bad}")
    if wrong:
        raise Rejected("nothing was stored; " + "; ".join(wrong[:_SHOWN]) + ("; …" if len(wrong) > _SHOWN else ""))
    return records


def _checked(user: User, turn: Any, limits: RecordLimits) -> Turn | EndOfSession:
    if isinstance(turn, dict):
        turn = {"user_id": user.user_id, "tenant": user.tenant} | turn
    try:
        raw = msgspec.json.encode(turn)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise BadRecord("invalid_text", f"the turn cannot be kept as JSON ({error}); send UTF-8") from None
    record = decode(raw, limits)
    if record.user.user_id != user.user_id:
        raise BadRecord(
            "bad_id", f"user_id is {record.user.user_id!r}, the path names {user.user_id!r}; leave it out of the turn"
        )
    if record.user.tenant != user.tenant:
        raise BadRecord(
            "bad_id", f"tenant is {record.user.tenant!r}, this endpoint writes to {user.tenant!r}; leave it out"
        )
    return record
