"""A server that has to be asked for a name, a context or a count, and is away: it counts as a call would."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from raygam.memory.chat import ChatAnswer, ChatRequest, Message, ModelCall, Prompt, Reading
from raygam.memory.errors import ModelAway, Refused
from raygam.memory.model import User
from raygam.memory.ports import Ask
from raygam.pipeline.asking import Asker, AskLimits

ANA = User("default", "ana")
PROMPT = Prompt("all", 1, ANA, (Message("user", "[]"),), {"properties": {"n": {}}}, 50, Reading)


class Clock:
    """Time passes by waiting."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def now(self) -> float:
        return self.seconds

    def wait(self, changed: threading.Condition, seconds: float) -> None:
        self.seconds += seconds


class Unreached:
    """Asks its server for its name, its context and each count; the first questions fail as given."""

    def __init__(self, clock: Clock, failures: list[Exception]) -> None:
        self._clock = clock
        self._failures = failures
        self.reads: list[float] = []

    def _read(self, found: Any) -> Any:
        self.reads.append(self._clock.now())
        if self._failures:
            raise self._failures.pop(0)
        return found

    @property
    def name(self) -> str:
        return str(self._read("found"))

    @property
    def context_tokens(self) -> int:
        return int(self._read(4096))

    def count_tokens(self, text: str) -> int:
        return int(self._read(len(text)))

    def complete(self, request: ChatRequest, seconds: float) -> ChatAnswer:
        return ChatAnswer('{"n": 1}', 3, 2)

    def close(self) -> None:
        """Nothing is open."""


READS: list[tuple[Callable[[Ask], Any], Any]] = [
    (lambda ask: ask.model, "found"),
    (lambda ask: ask.context_tokens, 4096),
    (lambda ask: ask.count_tokens("four"), 4),
]


@pytest.mark.parametrize(("read", "expected"), READS)
def test_it_is_asked_again_and_opens_the_breaker(read: Callable[[Ask], Any], expected: Any) -> None:
    clock, calls = Clock(), list[ModelCall]()
    model = Unreached(clock, [ModelAway("gone")] * 3)
    asker = Asker(model, AskLimits(failures_to_open=2), clock=clock, random=lambda: 0.5)
    ask = asker.for_task(ANA, {}, calls.append, 200)
    assert read(ask) == expected
    assert model.reads == pytest.approx([100, 100.5, 101.5, 103.5]), "pauses grow"
    assert asker.obstacle().startswith("the chat model is away (gone)"), "a count may be known here: it proves nothing"
    assert ask(PROMPT) == {"n": 1}
    assert asker.obstacle() == ""
    assert calls[0].model == "found"


@pytest.mark.parametrize(
    ("error", "tried"), [(ModelAway("gone", 5), 1), (ModelAway("gone"), 3), (Refused("wrong key"), 1)]
)
def test_it_is_not_asked_beyond_the_deadline_or_against_its_will(error: Exception, tried: int) -> None:
    clock, calls = Clock(), list[ModelCall]()
    model = Unreached(clock, [error] * 100)
    asker = Asker(model, AskLimits(failures_to_open=1), clock=clock, random=lambda: 0.5)
    with pytest.raises(type(error), match=str(error)):
        asker.for_task(ANA, {}, calls.append, clock.now() + 2).count_tokens("x")
    assert len(model.reads) == tried
    assert str(error) in asker.obstacle()
    assert asker.room() == 0
