"""Requests spread over replicas: by load, around the dead, and never for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from ray.exceptions import RayActorError

from raygam.actors import calls, remote_chat
from raygam.actors.remote_chat import RemoteChat
from raygam.memory.chat import ChatAnswer, ChatRequest, Message
from raygam.memory.errors import ModelAway, TooLong
from raygam.memory.model import User

REQUEST = ChatRequest((Message("user", "hello"),), {"type": "object"}, "any", 8, User("default", "ada"))


class Reference:
    """A call under way, as Ray's references are."""

    def __init__(self) -> None:
        self.answered: Future[ChatAnswer] = Future()

    def future(self) -> Future[ChatAnswer]:
        return self.answered


class Replica:
    """Keeps what it is asked until the test answers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[Reference] = []
        self.seconds: list[float] = []
        self.dead = False
        self.complete = self

    def remote(self, request: ChatRequest, seconds: float) -> Reference:
        assert request is REQUEST
        reference = Reference()
        if self.dead:
            reference.answered.set_exception(RayActorError())
        self.seconds.append(seconds)
        self.asked.append(reference)
        return reference

    def answer(self, at: int) -> None:
        self.asked[at].answered.set_result(ChatAnswer(f"{self.name} {at}", 1, 1))


class Pool:
    """Two replicas and one chat model over them."""

    def __init__(self) -> None:
        self.replicas = {name: Replica(name) for name in ("one", "two")}
        self.asked = 0
        self.chat = RemoteChat("small", 1024, len, self.living)
        self.threads = ThreadPoolExecutor(16)

    def living(self) -> dict[str, Replica]:
        self.asked += 1
        return {name: replica for name, replica in self.replicas.items() if not replica.dead}

    def call(self, seconds: float = 60.0) -> Future[ChatAnswer]:
        return self.threads.submit(self.chat.complete, REQUEST, seconds)

    def counts(self) -> dict[str, int]:
        return {name: len(replica.asked) for name, replica in self.replicas.items()}


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    monkeypatch.setattr(remote_chat, "_OLD_SECONDS", 1000.0)
    made = Pool()
    yield made
    made.chat.close()
    made.threads.shutdown()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_the_least_loaded_gets_the_next_and_equals_take_turns(pool: Pool) -> None:
    answers = []
    for calls_under_way in range(1, 5):
        answers.append(pool.call())
        until(lambda count=calls_under_way: sum(pool.counts().values()) == count)  # type: ignore[misc]
    assert pool.counts() == {"one": 2, "two": 2}
    for at in (0, 1):
        pool.replicas["two"].answer(at)
    until(lambda: sum(answer.done() for answer in answers) == 2)
    later = [pool.call(), pool.call()]
    until(lambda: sum(pool.counts().values()) == 6)
    assert pool.counts() == {"one": 2, "two": 4}
    for name, ats in {"one": (0, 1), "two": (2, 3)}.items():
        for at in ats:
            pool.replicas[name].answer(at)
    texts = sorted(answer.result(10).text for answer in answers + later)
    assert texts == ["one 0", "one 1", "two 0", "two 1", "two 2", "two 3"]


def test_the_call_of_a_dead_replica_goes_to_another_with_the_time_that_is_left(pool: Pool) -> None:
    answer = pool.call(seconds=30.0)
    until(lambda: sum(pool.counts().values()) == 1)
    (first,) = [replica for replica in pool.replicas.values() if replica.asked]
    (second,) = [replica for replica in pool.replicas.values() if not replica.asked]
    time.sleep(0.05)
    first.dead = True
    first.asked[0].answered.set_exception(RayActorError())
    until(lambda: len(second.asked) == 1)
    second.answer(0)
    assert answer.result(10).text == f"{second.name} 0"
    assert len(first.asked) == 1
    assert second.seconds[0] <= first.seconds[0] - 0.05


def test_a_request_at_which_two_replicas_have_died_is_given_to_no_third(pool: Pool) -> None:
    """One that kills whoever computes it shall not take them all."""
    pool.replicas["three"] = Replica("three")
    answer = pool.call()
    for at in (1, 2):
        until(lambda at=at: sum(pool.counts().values()) == at)  # type: ignore[misc]
        asked = next(each for each in pool.replicas.values() if each.asked and not each.dead)
        asked.dead = True
        asked.asked[0].answered.set_exception(RayActorError())
    with pytest.raises(ModelAway, match="no replica of the model small gave an answer") as away:
        answer.result(10)
    assert away.value.at_work
    assert sorted(pool.counts().values()) == [0, 1, 1]


def test_so_does_the_call_of_one_that_has_no_model_now(pool: Pool) -> None:
    answer = pool.call()
    until(lambda: sum(pool.counts().values()) == 1)
    (first,) = [replica for replica in pool.replicas.values() if replica.asked]
    first.asked[0].answered.set_exception(ModelAway("it was closed"))
    (second,) = [replica for replica in pool.replicas.values() if replica is not first]
    until(lambda: len(second.asked) == 1)
    second.answer(0)
    assert answer.result(10).text == f"{second.name} 0"


@pytest.mark.parametrize("known", [False, True])
def test_with_none_alive_the_model_is_away_at_once(pool: Pool, known: bool) -> None:
    if known:
        answer = pool.call()
        until(lambda: sum(pool.counts().values()) == 1)
        next(replica for replica in pool.replicas.values() if replica.asked).answer(0)
        answer.result(10)
    for replica in pool.replicas.values():
        replica.dead = True
    with pytest.raises(ModelAway, match="no replica of the model small"):
        pool.call(seconds=3600).result(10)


def test_what_a_replica_says_of_the_request_is_said_by_all(pool: Pool) -> None:
    answer = pool.call()
    until(lambda: sum(pool.counts().values()) == 1)
    asked = next(replica for replica in pool.replicas.values() if replica.asked)
    asked.asked[0].answered.set_exception(TooLong("2,000 tokens do not fit"))
    with pytest.raises(TooLong, match="do not fit"):
        answer.result(10)
    assert sum(pool.counts().values()) == 1


def test_no_answer_in_time_is_given_up(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    given_up: list[Any] = []
    monkeypatch.setattr(calls, "give_up", given_up.append)
    monkeypatch.setattr(remote_chat, "_GRACE_SECONDS", 0.0)
    with pytest.raises(ModelAway, match="no answer in time"):
        pool.call(seconds=0.05).result(10)
    (asked,) = [replica for replica in pool.replicas.values() if replica.asked]
    assert given_up == asked.asked


def test_close_ends_calls_under_way_at_once(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "give_up", lambda reference: None)
    answer = pool.call(seconds=3600)
    until(lambda: sum(pool.counts().values()) == 1)
    threading.Timer(0.01, pool.chat.close).start()
    with pytest.raises(ModelAway, match="let go"):
        answer.result(10)
    with pytest.raises(ModelAway, match="let go"):
        pool.call().result(10)
    assert sum(pool.counts().values()) == 1


def test_one_that_came_back_gets_its_share(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    pool.replicas["two"].dead = True
    for at in range(2):
        answer = pool.call()
        until(lambda count=at: len(pool.replicas["one"].asked) == count + 1)  # type: ignore[misc]
        pool.replicas["one"].answer(at)
        answer.result(10)
    assert pool.asked == 1, "each call asked for replicas"
    pool.replicas["two"].dead = False
    monkeypatch.setattr(remote_chat, "_OLD_SECONDS", 0.0)
    answer = pool.call()
    until(lambda: pool.counts() == {"one": 2, "two": 1})
    pool.replicas["two"].answer(0)
    assert answer.result(10).text == "two 0"
