"""When a buffer is looked at: the event progression graph's state machine.

`decide(state, stimulus, limits) -> Decision` is pure. A user's stimuli (turns and
recorded commands) are counted one after another in the order in which the
partition accepted them. A stimulus that starts maintenance closes the gate: what
follows stays durable and searchable, but is counted only once the tasks are
applied. So the buffers end the same however slow the workers are.

A stimulus may start maintenance *before* it is counted (the turn that shows that
a session has ended must not join it). Then `Decision.counted` is False and the
same stimulus is given again after the tasks are applied.

One turn alone does not move a user's event time by more than `max_time_jump_us`: a wrong
clock would make all that follows late. Such a turn waits, uncounted, for the user's next
stimulus, which bears it out or not; so what it becomes depends on the stimuli alone.

The values are named tuples: every turn makes five of them, and a frozen dataclass costs
three times as much to make.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from .model import Trigger


@dataclass(frozen=True, slots=True)
class Limits:
    """Settings of maintenance; the papers fix only the overflow limit.

    Attributes:
        session_gap_us: the user's event time passing a session's last turn by this ends it.
        pause_us: a gap of event time inside a session that asks for boundaries.
        max_buffer_tokens: a buffer above this is looked at (GAM: 2,048).
        max_time_jump_us: a turn moves the user's event time further than this, or sets it,
            only if the next turn is not earlier than it by more than this.
    """

    session_gap_us: int = 30 * 60 * 1_000_000
    pause_us: int = 10 * 60 * 1_000_000
    max_buffer_tokens: int = 2048
    max_time_jump_us: int = 24 * 60 * 60 * 1_000_000

    @property
    def recheck_tokens(self) -> int:
        """How much a buffer without a boundary grows before it is looked at again."""
        return max(1, self.max_buffer_tokens // 4)

    @property
    def force_tokens(self) -> int:
        """At this size the deepest gap closes."""
        return 2 * self.max_buffer_tokens


class Arrival(NamedTuple):
    """A turn of the user, accepted at `seq`."""

    seq: int
    session_id: str
    time_us: int
    tokens: int


class SessionEnd(NamedTuple):
    """An explicit end record, accepted at `seq`."""

    seq: int
    session_id: str


class Flush(NamedTuple):
    """A recorded flush of all of the user's sessions, accepted at `seq`."""

    seq: int


Stimulus = Arrival | SessionEnd | Flush


class Buffer(NamedTuple):
    """A session's live buffer, in numbers. An emptied buffer is dropped.

    Attributes:
        events: counted events that no episode holds yet.
        tokens: their tokens.
        last_us: the latest event time among the counted events since it was empty.
        check_tokens: above this the buffer is looked at.
        paused_at_seq: the arrival for which a pause was already looked at.
    """

    events: int
    tokens: int
    last_us: int
    check_tokens: int
    paused_at_seq: int = 0


class Progress(NamedTuple):
    """A user's decision state: what `decide` needs, and all of it.

    `watermark_us` is the user's event time: the latest time counted and borne out.
    `open_tasks` above zero means that the gate is closed.
    """

    watermark_us: int | None = None
    counted_seq: int = 0
    open_tasks: int = 0
    buffers: Mapping[str, Buffer] = MappingProxyType({})


class TaskRequest(NamedTuple):
    """Boundaries are wanted for a session's buffer.

    `closes_tail`: what follows the last boundary becomes an episode too.
    `force`: a boundary must be found.
    `alone`: for the stimulus' own turn, not for the buffer around it.
    """

    session_id: str
    trigger: Trigger
    closes_tail: bool
    force: bool = False
    alone: bool = False


class Decision(NamedTuple):
    """What becomes of a stimulus: the new state, tasks to make, whether it was counted.

    Not counted and no task: it waits for the user's next stimulus.
    """

    state: Progress
    tasks: tuple[TaskRequest, ...] = ()
    counted: bool = True


def decide(state: Progress, stimulus: Stimulus, limits: Limits, following: Stimulus | None = None) -> Decision:
    """Count one stimulus, or ask for maintenance first, or wait.

    Args:
        state: the user's state.
        stimulus: the next one to be counted.
        limits: the settings.
        following: the one behind it, None while there is none.

    Raises:
        ValueError: the gate is closed or the stimulus was counted already; both
            are faults of the caller.
    """
    if state.open_tasks:
        raise ValueError(f"stimulus {stimulus.seq} was offered while {state.open_tasks} tasks are open")
    if stimulus.seq <= state.counted_seq:
        raise ValueError(f"stimulus {stimulus.seq} was counted already (at {state.counted_seq})")
    if isinstance(stimulus, Arrival):
        return _arrive(state, stimulus, limits, following)
    if isinstance(stimulus, SessionEnd):
        ended = [stimulus.session_id] if stimulus.session_id in state.buffers else []
        trigger = Trigger.SESSION_END
    else:
        ended = list(state.buffers)
        trigger = Trigger.FLUSH
    tasks = tuple(TaskRequest(session, trigger, closes_tail=True) for session in sorted(ended))
    return Decision(state._replace(counted_seq=stimulus.seq, open_tasks=len(tasks)), tasks)


def _arrive(state: Progress, turn: Arrival, limits: Limits, following: Stimulus | None) -> Decision:
    watermark = state.watermark_us
    advances = watermark is None or turn.time_us >= watermark
    if watermark is None or turn.time_us - watermark > limits.max_time_jump_us:
        if following is None:
            return Decision(state, counted=False)
        if not isinstance(following, Arrival):
            if watermark is not None:
                return _set_aside(state, turn, limits)
            advances = False  # the user's first turn: nothing speaks against it, nothing for it
        elif following.time_us < turn.time_us - limits.max_time_jump_us:
            return _set_aside(state, turn, limits)
    if advances:  # a late turn never ends a session
        alive_from = turn.time_us - limits.session_gap_us
        ended = [session for session, buffer in state.buffers.items() if buffer.last_us < alive_from]
        if ended:
            tasks = tuple(TaskRequest(session, Trigger.SESSION_END, closes_tail=True) for session in sorted(ended))
            return Decision(state._replace(open_tasks=len(tasks)), tasks, counted=False)
    buffer = state.buffers.get(turn.session_id)
    if buffer is None:
        buffer = Buffer(0, 0, turn.time_us, limits.max_buffer_tokens)
    elif turn.time_us - buffer.last_us > limits.pause_us and buffer.paused_at_seq != turn.seq:
        paused = buffer._replace(paused_at_seq=turn.seq)
        return Decision(
            state._replace(buffers={**state.buffers, turn.session_id: paused}, open_tasks=1),
            (TaskRequest(turn.session_id, Trigger.PAUSE, closes_tail=False),),
            counted=False,
        )
    grown = Buffer(
        buffer.events + 1,
        buffer.tokens + turn.tokens,
        max(buffer.last_us, turn.time_us),
        buffer.check_tokens,
        buffer.paused_at_seq,
    )
    overflow: tuple[TaskRequest, ...] = ()
    if grown.tokens > grown.check_tokens:
        force = grown.tokens > limits.force_tokens
        overflow = (TaskRequest(turn.session_id, Trigger.OVERFLOW, closes_tail=False, force=force),)
    return Decision(
        Progress(
            turn.time_us if advances else watermark,
            turn.seq,
            len(overflow),
            {**state.buffers, turn.session_id: grown},
        ),
        overflow,
    )


def _set_aside(state: Progress, turn: Arrival, limits: Limits) -> Decision:
    """Count a turn as an episode of its own that moves neither the user's time nor its buffer's."""
    buffer = state.buffers.get(turn.session_id) or Buffer(0, 0, turn.time_us, limits.max_buffer_tokens)
    joined = buffer._replace(events=buffer.events + 1, tokens=buffer.tokens + turn.tokens)
    return Decision(
        state._replace(counted_seq=turn.seq, open_tasks=1, buffers={**state.buffers, turn.session_id: joined}),
        (TaskRequest(turn.session_id, Trigger.AHEAD, closes_tail=True, alone=True),),
    )


def applied(state: Progress, session_id: str, *, events: int, tokens: int, limits: Limits) -> Progress:
    """Return the state after one of its tasks was applied.

    Args:
        state: the state before.
        session_id: the task's session.
        events: how many events the task's episodes took out of the buffer.
        tokens: their tokens.
        limits: the settings.

    A buffer that is still above the limit is looked at again a quarter of the limit
    later; one below it, above the limit itself.
    """
    buffer = state.buffers[session_id]
    buffers = {session: kept for session, kept in state.buffers.items() if session != session_id}
    left = buffer.tokens - tokens
    if buffer.events > events:
        check = limits.max_buffer_tokens
        if left > check:
            check = left + limits.recheck_tokens
        buffers[session_id] = buffer._replace(events=buffer.events - events, tokens=left, check_tokens=check)
    return state._replace(open_tasks=state.open_tasks - 1, buffers=buffers)
