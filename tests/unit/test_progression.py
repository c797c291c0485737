"""The event progression graph's state machine: when a buffer is looked at, and what waits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygam.memory.model import Trigger
from raygam.memory.progression import (
    Arrival,
    Decision,
    Flush,
    Limits,
    Progress,
    SessionEnd,
    Stimulus,
    TaskRequest,
    applied,
    decide,
)

MINUTE = 60_000_000
LIMITS = Limits(max_buffer_tokens=100)


def run(stimuli: list[Stimulus], state: Progress | None = None) -> Decision:
    """Count stimuli that start no maintenance, up to the last one, for a user whose time has begun."""
    decision = Decision(state or Progress(watermark_us=0))
    for stimulus in stimuli:
        decision = decide(decision.state, stimulus, LIMITS)
    return decision


def test_first_turn_is_counted_without_a_task() -> None:
    decision = run([Arrival(1, "s", 0, 10)])
    assert decision.counted
    assert decision.tasks == ()
    assert decision.state.watermark_us == 0
    assert decision.state.buffers["s"].tokens == 10


@pytest.mark.parametrize(("gap", "ends"), [(30 * MINUTE, False), (30 * MINUTE + 1, True)])
def test_user_time_beyond_the_session_gap_ends_the_session(gap: int, ends: bool) -> None:
    decision = run([Arrival(1, "a", 0, 10), Arrival(2, "b", gap, 10)])
    if ends:
        assert decision.tasks == (TaskRequest("a", Trigger.SESSION_END, closes_tail=True),)
        assert not decision.counted, "the turn that shows the end waits until it is applied"
        assert "b" not in decision.state.buffers
    else:
        assert decision.tasks == ()


def test_the_waiting_turn_is_counted_after_the_task_is_applied() -> None:
    ended = run([Arrival(1, "a", 0, 10), Arrival(2, "a", 60 * MINUTE, 7)])
    after = applied(ended.state, "a", events=1, tokens=10, limits=LIMITS)
    again = decide(after, Arrival(2, "a", 60 * MINUTE, 7), LIMITS)
    assert again.counted
    assert again.tasks == ()
    assert again.state.buffers["a"].tokens == 7


def test_pause_asks_once_and_leaves_the_tail_open() -> None:
    turn = Arrival(2, "a", 15 * MINUTE, 5)
    paused = run([Arrival(1, "a", 0, 10), turn])
    assert paused.tasks == (TaskRequest("a", Trigger.PAUSE, closes_tail=False),)
    nothing_found = applied(paused.state, "a", events=0, tokens=0, limits=LIMITS)
    again = decide(nothing_found, turn, LIMITS)
    assert again.counted
    assert again.tasks == ()
    assert again.state.buffers["a"].events == 2


def test_a_late_turn_never_ends_a_session() -> None:
    on_time = run([Arrival(1, "a", 100 * MINUTE, 10)])
    late = decide(on_time.state, Arrival(2, "old", 0, 10), LIMITS)
    later = decide(late.state, Arrival(3, "old", 50 * MINUTE, 10), LIMITS)
    assert later.tasks == (TaskRequest("old", Trigger.PAUSE, closes_tail=False),)
    assert late.state.watermark_us == 100 * MINUTE


def test_an_advancing_turn_ends_a_session_that_came_late() -> None:
    late = run([Arrival(1, "a", 100 * MINUTE, 10), Arrival(2, "old", 0, 10)])
    advancing = decide(late.state, Arrival(3, "a", 101 * MINUTE, 10), LIMITS)
    assert advancing.tasks == (TaskRequest("old", Trigger.SESSION_END, closes_tail=True),)


def test_overflow_is_asked_again_each_quarter_and_forced_at_twice_the_limit() -> None:
    state = Progress(watermark_us=0)
    asked: list[tuple[int, bool]] = []
    for seq in range(1, 60):
        decision = decide(state, Arrival(seq, "s", seq, 5), LIMITS)
        state = decision.state
        if decision.tasks:
            (task,) = decision.tasks
            assert task.trigger is Trigger.OVERFLOW
            assert decision.counted
            asked.append((state.buffers["s"].tokens, task.force))
            if task.force:
                break
            state = applied(state, "s", events=0, tokens=0, limits=LIMITS)
    assert asked == [(105, False), (135, False), (165, False), (195, False), (225, True)]


def test_a_shrunk_buffer_is_looked_at_above_the_limit_itself() -> None:
    full = run([Arrival(1, "s", 0, 60), Arrival(2, "s", 1, 60)])
    assert full.tasks
    after = applied(full.state, "s", events=1, tokens=60, limits=LIMITS)
    assert after.buffers["s"].check_tokens == LIMITS.max_buffer_tokens


def test_flush_closes_every_session_in_a_fixed_order() -> None:
    decision = run([Arrival(1, "b", 0, 1), Arrival(2, "a", 1, 1), Flush(3)])
    assert [task.session_id for task in decision.tasks] == ["a", "b"]
    assert decision.counted
    assert decision.state.open_tasks == 2


def test_session_end_of_an_empty_session_does_nothing() -> None:
    decision = run([Arrival(1, "a", 0, 1), SessionEnd(2, "other")])
    assert decision.tasks == ()
    assert decision.counted


def test_a_closed_gate_or_a_counted_stimulus_is_the_callers_fault() -> None:
    closed = run([Arrival(1, "a", 0, 1), SessionEnd(2, "a")]).state
    with pytest.raises(ValueError, match="while 1 tasks are open"):
        decide(closed, Arrival(3, "a", 1, 1), LIMITS)
    opened = applied(closed, "a", events=1, tokens=1, limits=LIMITS)
    with pytest.raises(ValueError, match="counted already"):
        decide(opened, Flush(2), LIMITS)


DAY = 24 * 60 * MINUTE
FUTURE = Arrival(1, "s", 10 * DAY, 3)


def test_a_jump_waits_for_the_next_stimulus() -> None:
    for watermark in (0, None):
        before = Progress(watermark)
        assert decide(before, FUTURE, LIMITS) == Decision(before, counted=False)
    assert decide(Progress(9 * DAY), FUTURE, LIMITS).counted, "a day is no jump"


@pytest.mark.parametrize("watermark", [0, None])
@pytest.mark.parametrize(("days", "borne_out"), [(9, True), (10, True), (400, True), (8, False), (0, False)])
def test_the_next_turn_bears_a_jump_out_or_not(watermark: int | None, days: int, borne_out: bool) -> None:
    decision = decide(Progress(watermark), FUTURE, LIMITS, Arrival(2, "s", days * DAY, 1))
    assert decision.counted
    if borne_out:
        assert decision.tasks == ()
        assert decision.state.watermark_us == FUTURE.time_us
    else:
        assert decision.tasks == (TaskRequest("s", Trigger.AHEAD, closes_tail=True, alone=True),)
        assert decision.state.watermark_us == watermark


def test_a_turn_that_is_set_aside_leaves_its_buffer_as_it_was() -> None:
    held = run([Arrival(1, "s", MINUTE, 10)]).state
    aside = decide(held, Arrival(2, "s", 10 * DAY, 3), LIMITS, Arrival(3, "s", 2 * MINUTE, 1))
    after = applied(aside.state, "s", events=1, tokens=3, limits=LIMITS)
    assert after == held._replace(counted_seq=2)


def test_a_command_bears_nothing_out_but_a_first_turn_is_let_be() -> None:
    for command in (Flush(2), SessionEnd(2, "s")):
        aside = decide(Progress(0), FUTURE, LIMITS, command)
        assert [task.trigger for task in aside.tasks] == [Trigger.AHEAD]
        first = decide(Progress(), FUTURE, LIMITS, command)
        assert (first.counted, first.tasks, first.state.watermark_us) == (True, (), None)


def test_a_jump_that_is_borne_out_ends_the_old_session_first() -> None:
    old = run([Arrival(1, "s", 0, 10)]).state
    turn, following = Arrival(2, "s", 10 * DAY, 3), Arrival(3, "s", 10 * DAY + MINUTE, 3)
    ended = decide(old, turn, LIMITS, following)
    assert (ended.counted, ended.tasks) == (False, (TaskRequest("s", Trigger.SESSION_END, closes_tail=True),))
    after = applied(ended.state, "s", events=1, tokens=10, limits=LIMITS)
    again = decide(after, turn, LIMITS, following)
    assert (again.counted, again.tasks, again.state.watermark_us) == (True, (), 10 * DAY)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 300), st.integers(1, 60)), max_size=60))
def test_buffers_always_add_up(turns: list[tuple[str, int, int]]) -> None:
    """Whatever arrives, counted events are in a buffer or were taken by a task, and the gate opens again."""
    stimuli = [
        Arrival(seq, session, quarter * 15 * MINUTE, tokens)
        for seq, (session, quarter, tokens) in enumerate(turns, start=1)
    ]
    state = Progress()
    taken = counted = 0
    for at, stimulus in enumerate(stimuli):
        following = stimuli[at + 1] if at + 1 < len(stimuli) else Flush(len(stimuli) + 1)
        for _ in range(10):
            decision = decide(state, stimulus, LIMITS, following)
            state = decision.state
            counted += decision.counted
            for task in decision.tasks:
                buffer = state.buffers[task.session_id]
                events = 1 if task.alone else buffer.events if task.closes_tail else 0
                taken += events
                tokens = stimulus.tokens if task.alone else buffer.tokens if task.closes_tail else 0
                state = applied(state, task.session_id, events=events, tokens=tokens, limits=LIMITS)
            assert state.open_tasks == 0
            if decision.counted:
                break
        else:
            pytest.fail("a stimulus was never counted")
    assert counted == len(turns)
    assert taken + sum(buffer.events for buffer in state.buffers.values()) == counted
