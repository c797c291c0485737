"""Callers share the model's passes, and a query waits for one pass at most."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from raygam.adapters.stub_embedder import StubEmbedder
from raygam.memory.errors import Retryable
from raygam.pipeline.batching import BEHIND_SLICE, BatchingEmbedder, Behind


class Gated(StubEmbedder):
    """Notes each pass, and waits at the gate before it."""

    def __init__(self) -> None:
        super().__init__(8)
        self.passes: list[list[str]] = []
        self.entered = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.passes.append(list(texts))
        self.entered.release()
        assert self.gate.acquire(timeout=10)
        if "bad" in texts:
            raise ValueError("the model failed")
        return super().embed(texts)


def wait_for(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not met():
        assert time.monotonic() < deadline, "it did not come"


def test_what_waits_goes_together_and_short_requests_first() -> None:
    model = Gated()
    shared = BatchingEmbedder(model, slice_texts=10)
    long = [f"long {number}" for number in range(25)]
    with ThreadPoolExecutor() as callers:
        first = callers.submit(shared.embed, long)
        assert model.entered.acquire(timeout=10)  # its first slice is under way, two wait
        queries = [callers.submit(shared.embed, [f"query {number}"]) for number in range(3)]
        wait_for(lambda: len(shared._waiting) == 5)
        for _ in range(4):
            model.gate.release()
        found = first.result(timeout=10)
        answers = [query.result(timeout=10) for query in queries]
    shared.close()
    assert [len(texts) for texts in model.passes] == [10, 3, 10, 5]
    assert sorted(model.passes[1]) == ["query 0", "query 1", "query 2"]
    plain = StubEmbedder(8)
    assert np.array_equal(found, plain.embed(long))
    assert all(np.array_equal(answer, plain.embed([f"query {at}"])) for at, answer in enumerate(answers))


def test_an_error_reaches_its_callers_and_nobody_else() -> None:
    model = Gated()
    shared = BatchingEmbedder(model)
    model.gate.release(2)
    with pytest.raises(ValueError, match="the model failed"):
        shared.embed(["bad"])
    assert shared.embed(["good"]).shape == (1, 8)
    shared.close()


def test_closing_ends_who_waits() -> None:
    model = Gated()
    shared = BatchingEmbedder(model, slice_texts=1)
    with ThreadPoolExecutor() as callers:
        running = callers.submit(shared.embed, ["one"])
        assert model.entered.acquire(timeout=10)
        waiting = callers.submit(shared.embed, ["two"])
        while not shared._waiting:
            pass
        closing = callers.submit(shared.close)
        while not shared._closed:
            pass
        model.gate.release()
        assert running.result(timeout=10).shape == (1, 8)
        with pytest.raises(Retryable, match="closed"):
            waiting.result(timeout=10)
        closing.result(timeout=10)
    with pytest.raises(Retryable, match="closed"):
        shared.embed(["three"])


def test_nothing_to_embed_needs_no_pass() -> None:
    model = Gated()
    shared = BatchingEmbedder(model)
    assert shared.embed([]).shape == (0, 8)
    shared.close()
    assert model.passes == []


def test_the_slow_path_waits_behind_turns_and_queries_in_short_passes() -> None:
    model = Gated()
    shared = BatchingEmbedder(model, slice_texts=20)
    topics = [f"topic {number}" for number in range(2 * BEHIND_SLICE)]
    turns = [f"turn {number}" for number in range(12)]
    with ThreadPoolExecutor() as callers:
        behind = callers.submit(Behind(shared).embed, topics)
        assert model.entered.acquire(timeout=10)  # its first slice is under way
        asked = callers.submit(shared.embed, turns)
        wait_for(lambda: len(shared._waiting) == 2)
        for _ in range(3):
            model.gate.release()
        assert np.array_equal(behind.result(timeout=10), StubEmbedder(8).embed(topics))
        assert np.array_equal(asked.result(timeout=10), StubEmbedder(8).embed(turns))
    shared.close()
    assert model.passes == [topics[:BEHIND_SLICE], turns, topics[BEHIND_SLICE:]]
