"""Texts that wait share a call; a replica that fails has its texts asked of another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from raygam.actors.async_embedder import AsyncEmbedder
from raygam.actors.calls import Unreachable
from raygam.memory.errors import Retryable
from raygam.memory.ports import Vectors


class Replica:
    """A handle whose `embed.remote` answers as told."""

    def __init__(self, answer: Callable[[list[str]], Any]) -> None:
        self.asked: list[list[str]] = []
        self._answer = answer
        self.embed = self

    def remote(self, texts: list[str]) -> Any:
        self.asked.append(texts)
        return self._answer(texts)


class Found:
    """Routes that know replicas, one list per question."""

    def __init__(self, *answers: list[Replica]) -> None:
        self._answers = list(answers)

    async def embedders(self, seconds: float) -> list[Replica]:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def lengths(texts: list[str]) -> Vectors:
    return np.array([[len(text)] for text in texts], dtype=np.float32)


async def at_once(texts: list[str]) -> Vectors:
    return lengths(texts)


async def dead(texts: list[str]) -> Vectors:
    raise Retryable("closed")


async def never(texts: list[str]) -> Vectors:
    await asyncio.Event().wait()
    raise AssertionError


def make(*answers: list[Replica]) -> AsyncEmbedder:
    return AsyncEmbedder(1, Found(*answers))  # type: ignore[arg-type]


def test_queries_that_wait_share_a_call_and_each_has_its_own_vector() -> None:
    async def story() -> None:
        room = asyncio.Event()

        async def after(texts: list[str]) -> Vectors:
            await room.wait()
            return lengths(texts)

        replica = Replica(after)
        embedder = make([replica])
        asked = [asyncio.create_task(embedder.embed(["x" * size], 10)) for size in range(1, 21)]
        while len(replica.asked) < 2:
            await asyncio.sleep(0)
        room.set()
        found = await asyncio.gather(*asked)
        assert [vectors.tolist() for vectors in found] == [[[float(size)]] for size in range(1, 21)]
        assert sorted(map(len, replica.asked)) == [1, 1, 18]

    asyncio.run(story())


def test_many_texts_are_cut_into_calls_and_come_back_in_order() -> None:
    replica = Replica(at_once)
    texts = ["x" * (size % 50) for size in range(600)]
    found = asyncio.run(make([replica]).embed(texts, 10))
    assert found[:, 0].tolist() == [size % 50 for size in range(600)]
    assert [len(asked) for asked in replica.asked] == [256, 256, 88]


def test_a_dead_replicas_texts_go_to_another() -> None:
    ended, other = Replica(dead), Replica(at_once)
    assert asyncio.run(make([ended], [other]).embed(["abc"], 10)).tolist() == [[3.0]]
    assert (len(ended.asked), len(other.asked)) == (1, 1)


def test_nobody_answers_and_the_deadline_ends_the_wait() -> None:
    async def story() -> None:
        with pytest.raises(Unreachable, match="no answer in time"):
            await make([Replica(never)]).embed(["abc"], 0.05)
        with pytest.raises(Unreachable):
            await make([]).embed(["abc"] * 100, 0.05)

    asyncio.run(story())
