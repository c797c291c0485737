"""What a replica says of itself while it loads a model, serves it, and fails."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from raygam.actors import chat_actor, logs
from raygam.actors.chat_actor import ChatActor, ChatParts
from raygam.adapters.vllm_figures import Figures
from raygam.memory.chat import ChatAnswer, ChatRequest, Message
from raygam.memory.errors import Misconfigured, ModelAway
from raygam.memory.model import User

REQUEST = ChatRequest((Message("user", "hello"),), {"type": "object"}, "any", 8, User("default", "ada"))


@pytest.fixture(autouse=True)
def _logs_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "configure", lambda actor: None)


class Engine:
    """Loads for as long as the test lets it."""

    def __init__(self) -> None:
        self.may_start = threading.Event()
        self.refuses = ""
        self.failure = ""
        self.under_way = 0
        self.closed = threading.Event()
        self.counted = Figures()

    def start(self) -> None:
        assert self.may_start.wait(10)
        if self.refuses:
            raise Misconfigured(self.refuses)

    def figures(self) -> object:
        return self.counted.so_far()

    async def answer(self, request: ChatRequest, seconds: float) -> ChatAnswer:
        return ChatAnswer(request.messages[0].text, 1, 1)

    def close(self) -> None:
        self.closed.set()


def replica(engine: Engine, start_seconds: float = 60.0) -> ChatActor:
    return ChatActor(lambda name: ChatParts(engine, start_seconds), "chat-0:1")


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_while_it_loads_it_reports_and_does_not_answer() -> None:
    engine = Engine()
    actor = replica(engine)
    assert not actor.report().ready
    assert not actor.report().over
    with pytest.raises(ModelAway, match="being loaded"):
        asyncio.run(actor.complete(REQUEST, 1))
    engine.may_start.set()
    until(lambda: actor.report().ready)
    assert asyncio.run(actor.complete(REQUEST, 1)).text == "hello"
    engine.under_way = 3
    engine.counted.step(3, 1)
    assert actor.report().under_way == 3
    assert actor.report().figures == engine.counted.so_far()


def test_a_model_that_is_not_loaded_is_told_and_after_a_rest_a_successor_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    engine.refuses = "there is no such model"
    actor = replica(engine)
    engine.may_start.set()
    until(lambda: actor.report().failure == "there is no such model")
    assert not actor.report().ready
    assert not actor.report().over
    with pytest.raises(ModelAway, match="no such model"):
        asyncio.run(actor.complete(REQUEST, 1))
    monkeypatch.setattr(chat_actor, "_REST_SECONDS", 0.0)
    until(lambda: actor.report().over)


def test_one_that_loads_for_too_long_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_actor, "_REST_SECONDS", 0.0)
    engine = Engine()
    actor = replica(engine, start_seconds=0.01)
    until(lambda: actor.report().over)
    engine.may_start.set()
    assert "chat_start_seconds" in actor.report().failure


def test_one_whose_engine_died_is_replaced_at_once() -> None:
    engine = Engine()
    engine.may_start.set()
    actor = replica(engine)
    until(lambda: actor.report().ready)
    engine.failure = "its engine has died"
    report = actor.report()
    assert (report.ready, report.over, report.failure) == (False, True, "its engine has died")


def test_one_that_is_closed_while_it_loads_ends_its_engine() -> None:
    engine = Engine()
    actor = replica(engine)
    until(lambda: not actor.report().ready)
    actor.close()
    engine.may_start.set()
    assert engine.closed.wait(10)
    assert not actor.report().ready
