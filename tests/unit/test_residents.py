"""A user in a shard's hands: what it holds, and for how long."""

from __future__ import annotations

from raygam.memory.model import User
from raygam.memory.progression import Limits, Progress
from raygam.memory.writes import BufferedEvent, CommandRow, TaskRow, UserRow
from raygam.pipeline.residents import SESSION_END, Resident

ANA = User("default", "ana")
LIMITS = Limits()
SECOND = 1_000_000


class Ledger:
    """The ends of archives, as they stand once a transaction is committed."""

    def __init__(self) -> None:
        self.ends: dict[str, int] = {}

    def archived_until(self, user: User, session_id: str) -> int | None:
        return self.ends.get(session_id)


def said(seq: int, session_id: str, time_us: int) -> BufferedEvent:
    return BufferedEvent(seq, session_id, f"m{seq}", time_us, 1)


def closed(resident: Resident, ledger: Ledger, tasks: list[TaskRow]) -> list[TaskRow]:
    """Apply tasks that close all they hold, and return those that follow; then all of it is committed."""
    ends = {}
    for task in tasks:
        held = resident.buffers[task.session_id]
        ends[task.session_id] = max(held[seq].time_us for seq in task.seqs)
        resident.close(task, task.seqs, ends[task.session_id], LIMITS)
    following = resident.advance(LIMITS, ledger.archived_until)
    ledger.ends |= ends
    return following


def test_ends_of_archives_are_held_for_live_sessions_only() -> None:
    """A user has sessions without end; what was archived long ago is the ledger's to know."""
    resident, ledger = Resident.of(UserRow(ANA, Progress())), Ledger()
    seq = 0
    for number in range(100):
        session = f"s{number}"
        for _ in range(2):
            seq += 1
            resident.arrive(said(seq, session, seq * SECOND))
        seq += 1
        resident.command(CommandRow(seq, ANA, SESSION_END, session))
        tasks = resident.advance(LIMITS, ledger.archived_until)
        assert [task.session_id for task in tasks] == [session]
        assert closed(resident, ledger, tasks) == []
        assert len(resident.archived_until_us) <= 1
    resident.arrive(said(seq + 1, "s0", 0))
    resident.arrive(said(seq + 2, "s0", (seq + 2) * SECOND))
    resident.command(CommandRow(seq + 3, ANA, SESSION_END, "s0"))
    (task,) = resident.advance(LIMITS, ledger.archived_until)
    assert task.archived_until_us == 2 * SECOND, "a session that comes again is asked for"
