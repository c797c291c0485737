"""Callers of a model go through one gate: in the order they came, never more than the cap at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from raygam.memory.errors import ModelAway
from raygam.pipeline.breaker import Breaker
from raygam.pipeline.budgets import TokenBudgets
from raygam.pipeline.chat_gate import ChatGate, MonotonicClock


def gate(concurrency: int, failures_to_open: int = 3) -> ChatGate:
    return ChatGate("m", concurrency, Breaker(failures_to_open, lambda: 0.0), TokenBudgets(), MonotonicClock())


def later(seconds: float = 60) -> float:
    return time.monotonic() + seconds


def until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not met():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.001)


def test_who_comes_first_goes_first() -> None:
    door, order = gate(1), []
    permit = door.enter("t", 0, later())

    def one(number: int) -> None:
        mine = door.enter("t", 0, later())
        order.append(number)
        door.leave(mine, "t", 0)

    with ThreadPoolExecutor(20) as callers:
        for number in range(20):
            callers.submit(one, number)
            until(lambda number=number: len(door._queue) == number + 1)  # type: ignore[misc]
        assert door.under_way == 1
        door.leave(permit, "t", 0)
    assert order == list(range(20))
    assert door.under_way == 0


def test_never_more_than_the_cap_are_inside() -> None:
    door, inside, most, lock = gate(3), [0], [0], threading.Lock()
    rounds = threading.Barrier(3)  # broken if less than three could be inside together

    def one() -> None:
        mine = door.enter("t", 0, later())
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        rounds.wait(20)
        with lock:
            inside[0] -= 1
        door.leave(mine, "t", 0)

    with ThreadPoolExecutor(12) as callers:
        for done in [callers.submit(one) for _ in range(30)]:
            done.result(30)
    assert most[0] == 3


def test_while_a_probe_is_under_way_the_others_wait_for_its_outcome() -> None:
    door = gate(8, failures_to_open=1)
    door.leave_away(door.enter("t", 0, later()), "t", 0, ModelAway("gone"))
    assert door.obstacle().startswith("m is away (gone); it is asked again in")
    with ThreadPoolExecutor(5) as callers:
        waiting = [callers.submit(door.enter, "t", 0, later()) for _ in range(5)]
        until(lambda: any(each.done() for each in waiting))
        assert door.obstacle() == "m is away (gone); it is being asked again"
        assert door.under_way == 1
        (probe,) = [each.result() for each in waiting if each.done()]
        assert probe.probe
        door.leave(probe, "t", 0)
        assert sum(each.result(20).probe for each in waiting) == 1
    assert door.under_way == 4
    assert door.room() == 4


def test_who_waits_for_a_probe_that_fails_waits_on() -> None:
    door = gate(8, failures_to_open=1)
    door.leave_away(door.enter("t", 0, later()), "t", 0, ModelAway("gone"))
    assert door.wait_until_open(20)
    probe = door.enter("t", 0, later())
    with ThreadPoolExecutor(1) as callers:
        waiting = callers.submit(door.wait_until_open, 0.05)
        assert waiting.result(20) is False, "a probe under way lets nobody else through"
        entering = callers.submit(door.enter, "t", 0, later(0.3))
        until(lambda: len(door._queue) == 1)
        door.leave_away(probe, "t", 0, ModelAway("still gone", 30))
        with pytest.raises(ModelAway, match="still gone") as away:
            entering.result(20)
    assert away.value.retry_after_seconds == pytest.approx(30, abs=1)


def test_closing_ends_whoever_waits() -> None:
    door = gate(1)
    door.enter("t", 0, later())
    with ThreadPoolExecutor(3) as callers:
        entering = callers.submit(door.enter, "t", 0, later())
        pausing = callers.submit(door.pause, 50, later())
        until(lambda: len(door._queue) == 1)
        door.close()
        for each in (entering, pausing):
            with pytest.raises(ModelAway, match="ended with their process"):
                each.result(20)
    assert door.wait_until_open(20) is False
