"""A breaker opens after failures in a row, probes by and by, and keeps to what a server asks for."""

from __future__ import annotations

import pytest

from raygam.memory.errors import Misconfigured
from raygam.pipeline.breaker import PAUSES, Breaker, pause_after
from raygam.pipeline.budgets import TokenBudgets


def middle() -> float:
    return 0.5


def opened(failures: int = 3) -> Breaker:
    """A breaker that has just opened, at 0 s."""
    breaker = Breaker(failures, middle)
    for _ in range(failures):
        assert not breaker.is_open
        breaker.away(breaker.begin(0), 0)
    assert breaker.is_open
    return breaker


def test_it_opens_after_failures_in_a_row_only() -> None:
    breaker = Breaker(3, middle)
    for _ in range(4):
        breaker.away(breaker.begin(0), 0)
        breaker.away(breaker.begin(0), 0)
        breaker.answered(breaker.begin(0))
    assert not breaker.is_open
    assert breaker.wait_seconds(0) == 0


def test_one_call_probes_when_the_pause_is_over_and_its_answer_closes() -> None:
    breaker = opened()
    assert breaker.wait_seconds(0) == PAUSES[0]
    assert breaker.wait_seconds(PAUSES[0] - 0.1) == pytest.approx(0.1)
    probe = breaker.begin(PAUSES[0])
    assert probe.probe
    assert breaker.wait_seconds(PAUSES[0]) is None, "nobody else calls while the probe is under way"
    breaker.answered(probe)
    assert not breaker.is_open
    assert breaker.wait_seconds(PAUSES[0]) == 0
    assert not breaker.begin(PAUSES[0]).probe


def test_each_probe_that_fails_waits_longer_up_to_the_last_pause() -> None:
    breaker, now, waited = opened(), 0.0, []
    for _ in range(len(PAUSES) + 2):
        hold = breaker.wait_seconds(now)
        assert hold is not None
        waited.append(hold)
        now += hold
        breaker.away(breaker.begin(now), now)
    assert waited == pytest.approx([*PAUSES, PAUSES[-1], PAUSES[-1]])
    now += PAUSES[-1]
    breaker.answered(breaker.begin(now))
    for _ in range(3):
        breaker.away(breaker.begin(now), now)
    assert breaker.wait_seconds(now) == PAUSES[0], "an answer ends the memory of failures"


def test_a_call_that_began_before_it_opened_lengthens_no_pause_by_failing_and_closes_it_by_its_answer() -> None:
    breaker = Breaker(2, middle)
    slow, other = breaker.begin(0), breaker.begin(0)
    breaker.away(breaker.begin(0), 0)
    breaker.away(breaker.begin(0), 0)
    assert breaker.is_open
    breaker.away(other, 0.1)
    assert breaker.wait_seconds(0) == PAUSES[0]
    probe = breaker.begin(PAUSES[0])
    breaker.answered(slow)
    assert not breaker.is_open
    breaker.away(probe, 1)
    assert not breaker.is_open, "the answer came later than the probe began"


def test_a_probe_that_shows_nothing_leaves_the_next_one_to_probe() -> None:
    breaker = opened()
    breaker.abandoned(breaker.begin(PAUSES[0]))
    assert breaker.is_open
    assert breaker.begin(PAUSES[0]).probe


def test_everyone_waits_as_long_as_the_server_asks_and_never_shorter() -> None:
    for drawn in (0.0, 0.5, 1.0):
        breaker = Breaker(5, lambda drawn=drawn: drawn)  # type: ignore[misc]
        first, second = breaker.begin(0), breaker.begin(0)
        breaker.away(first, 0, 8)
        breaker.away(second, 0, 2)
        assert not breaker.is_open
        assert breaker.wait_seconds(0) == 8 * (1 + drawn / 4)
    breaker.answered(breaker.begin(10))
    assert breaker.wait_seconds(10) == 0


def test_an_answer_does_not_shorten_what_the_server_asked_for() -> None:
    breaker = Breaker(5, middle)
    refused, answered = breaker.begin(0), breaker.begin(0)
    breaker.away(refused, 0, 8)
    breaker.answered(answered)
    assert breaker.wait_seconds(0) == 9


def test_pauses_are_drawn_around_the_table() -> None:
    assert [pause_after(2, lambda drawn=drawn: drawn) for drawn in (0.0, 0.5, 1.0)] == [0.75, 1.0, 1.25]  # type: ignore[misc]


def test_a_tenant_in_debt_waits_until_its_bucket_has_a_token() -> None:
    budgets = TokenBudgets(600, {"small": 60})
    assert budgets.wait_seconds("big", 0) == budgets.wait_seconds("small", 0) == 0
    budgets.spend("big", 599, 0)
    assert budgets.barred(0) == frozenset()
    budgets.spend("big", 100, 0)  # into debt by 99
    budgets.spend("small", 61, 0)
    assert budgets.wait_seconds("big", 0) == pytest.approx(10)
    assert budgets.wait_seconds("small", 0) == pytest.approx(2)
    assert budgets.barred(1) == {"big", "small"}
    assert budgets.barred(5) == {"big"}
    assert budgets.barred(11) == frozenset()
    budgets.spend("small", 60, 1000)
    assert budgets.wait_seconds("small", 1000) == pytest.approx(1), "a bucket holds one minute's tokens and no more"


def test_what_was_taken_for_nothing_is_put_back() -> None:
    budgets = TokenBudgets(60)
    budgets.spend("t", 100, 0)
    assert budgets.barred(0) == {"t"}
    budgets.spend("t", -100, 1)
    assert budgets.barred(1) == frozenset()
    budgets.spend("t", 60, 1)
    assert budgets.wait_seconds("t", 1) == pytest.approx(1), "putting back makes no bucket larger"


def test_without_a_budget_nobody_waits_and_full_buckets_are_forgotten() -> None:
    budgets = TokenBudgets(None, {"small": 60})
    budgets.spend("big", 10**9, 0)
    budgets.spend("small", 10, 0)
    assert budgets.barred(0) == frozenset()
    assert list(budgets._levels) == ["small"]
    budgets.barred(60)
    assert not budgets._levels


@pytest.mark.parametrize("budget", [0, -5])
def test_a_budget_of_nothing_is_a_mistake(budget: int) -> None:
    with pytest.raises(Misconfigured, match="of a is"):
        TokenBudgets(None, {"a": budget})
    with pytest.raises(Misconfigured, match="every tenant"):
        TokenBudgets(budget)
