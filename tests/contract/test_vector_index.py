"""What every `VectorIndex` promises."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from raygam.adapters.faiss_index import FaissFlatIndex
from raygam.memory.errors import Misconfigured
from raygam.memory.model import Layer, User
from raygam.memory.ports import VectorIndex
from raygam.memory.writes import VectorEntries

DIMENSION = 16
ANA = User("t1", "ana")
OTHER_ANA = User("t2", "ana")

MakeIndex = Callable[[], VectorIndex]


@pytest.fixture(params=[FaissFlatIndex])
def make_index(request: pytest.FixtureRequest) -> MakeIndex:
    return lambda: request.param(DIMENSION)


def vectors(count: int, seed: int = 0) -> NDArray[np.float32]:
    drawn: NDArray[np.float32] = np.random.default_rng(seed).normal(size=(count, DIMENSION)).astype(np.float32)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    return drawn


def added(refs: Sequence[str], rows: NDArray[np.float32], first: int = 1, layer: Layer = Layer.EVENT) -> VectorEntries:
    count = len(refs)
    return VectorEntries(np.arange(first, first + count), [layer] * count, list(refs), [False] * count, rows)


def removed(ref: str, seq: int) -> VectorEntries:
    return VectorEntries(np.array([seq]), [Layer.EVENT], [ref], [True], np.zeros((1, DIMENSION), np.float32))


def nothing() -> VectorEntries:
    return VectorEntries(np.empty(0, np.int64), [], [], [], np.empty((0, DIMENSION), np.float32))


def test_search_is_exact(make_index: MakeIndex) -> None:
    index, rows = make_index(), vectors(500)
    index.apply(ANA, added([str(at) for at in range(500)], rows))
    for query in vectors(20, seed=1):
        refs, scores = index.search(ANA, Layer.EVENT, query, 10)
        products = rows @ query
        assert refs == [str(at) for at in np.argsort(-products)[:10]]
        assert scores == pytest.approx(np.sort(products)[::-1][:10], abs=1e-5)


def test_another_user_moves_nothing(make_index: MakeIndex) -> None:
    alone, shared, rows = make_index(), make_index(), vectors(3)
    query = vectors(1, seed=2)[0]
    for index in (alone, shared):
        index.apply(ANA, added(["a", "b", "c"], rows))
    shared.apply(OTHER_ANA, added([str(at) for at in range(5000)], vectors(5000, seed=3)))
    expected, scores = alone.search(ANA, Layer.EVENT, query, 10)
    refs, found = shared.search(ANA, Layer.EVENT, query, 10)
    assert refs == expected
    assert set(refs) == {"a", "b", "c"}
    assert np.array_equal(found, scores)


def test_layers_are_apart(make_index: MakeIndex) -> None:
    index, rows = make_index(), vectors(2)
    index.apply(ANA, added(["1"], rows[:1]))
    index.apply(ANA, added(["topic"], rows[1:], first=2, layer=Layer.TOPIC))
    assert index.search(ANA, Layer.EVENT, rows[0], 5)[0] == ["1"]
    assert index.search(ANA, Layer.TOPIC, rows[0], 5)[0] == ["topic"]


def test_applied_seq_tells_how_far_the_block_has_come(make_index: MakeIndex) -> None:
    index, rows = make_index(), vectors(4)
    assert index.applied_seq(ANA) is None
    index.apply(ANA, nothing())
    assert index.applied_seq(ANA) == 0
    index.apply(ANA, added(["a", "b"], rows[:2], first=7))
    assert index.applied_seq(ANA) == 8
    index.apply(ANA, added(["b", "c"], rows[2:], first=8))  # 8 is held already
    assert index.applied_seq(ANA) == 9
    assert index.vectors(ANA, Layer.EVENT, ["b"])[0] == pytest.approx(rows[1])


def test_a_removed_vector_is_gone_and_the_others_stay(make_index: MakeIndex) -> None:
    index, rows = make_index(), vectors(5)
    index.apply(ANA, added(list("abcde"), rows))
    index.apply(ANA, removed("b", 6))
    index.apply(ANA, removed("nobody", 7))
    refs, _ = index.search(ANA, Layer.EVENT, rows[1], 10)
    assert sorted(refs) == list("acde")
    assert index.vectors(ANA, Layer.EVENT, list("edca")) == pytest.approx(rows[[4, 3, 2, 0]])
    index.apply(ANA, added(["b"], rows[1:2], first=8))
    assert index.search(ANA, Layer.EVENT, rows[1], 1)[0] == ["b"]


def test_a_vector_added_again_replaces(make_index: MakeIndex) -> None:
    index, rows = make_index(), vectors(2)
    index.apply(ANA, added(["a"], rows[:1]))
    index.apply(ANA, added(["a"], rows[1:], first=2))
    refs, scores = index.search(ANA, Layer.EVENT, rows[1], 10)
    assert refs == ["a"]
    assert scores[0] == pytest.approx(1.0, abs=1e-5)


def test_similarities_follow_the_order_asked_for(make_index: MakeIndex) -> None:
    index, rows = make_index(), vectors(4)
    index.apply(ANA, added(list("abcd"), rows))
    query = vectors(1, seed=4)[0]
    found = index.similarities(ANA, Layer.EVENT, query, ["c", "missing", "a"])
    assert found == pytest.approx([rows[2] @ query, 0.0, rows[0] @ query], abs=1e-6)
    with pytest.raises(KeyError, match="missing"):
        index.vectors(ANA, Layer.EVENT, ["missing"])


def test_an_unknown_user_and_an_empty_layer_answer_with_nothing(make_index: MakeIndex) -> None:
    index = make_index()
    query = vectors(1)[0]
    assert index.search(ANA, Layer.EVENT, query, 5)[0] == []
    index.apply(ANA, added(["a"], vectors(1)))
    assert index.search(ANA, Layer.TOPIC, query, 5)[0] == []
    assert index.search(ANA, Layer.EVENT, query, 100)[0] == ["a"]
    assert index.search(OTHER_ANA, Layer.EVENT, query, 5)[0] == []


def test_an_evicted_user_is_built_anew(make_index: MakeIndex) -> None:
    index, rows = make_index(), vectors(2)
    index.apply(ANA, added(["a", "b"], rows))
    index.evict(ANA)
    index.evict(ANA)
    assert index.applied_seq(ANA) is None
    assert index.search(ANA, Layer.EVENT, rows[0], 5)[0] == []
    index.apply(ANA, added(["a", "b"], rows))
    assert index.search(ANA, Layer.EVENT, rows[0], 1)[0] == ["a"]


def test_vectors_of_another_dimension_are_refused(make_index: MakeIndex) -> None:
    index = make_index()
    with pytest.raises(Misconfigured, match="8 dimensions"):
        index.apply(ANA, added(["a"], np.ones((1, 8), np.float32)))
    assert index.applied_seq(ANA) is None


def test_the_least_recently_used_user_is_dropped_first() -> None:
    users = [User("t", name) for name in "abc"]
    block = 64 * DIMENSION * 4
    index = FaissFlatIndex(DIMENSION, max_bytes=2 * block)
    index.apply(users[0], added(["x"], vectors(1)))
    index.apply(users[1], added(["x"], vectors(1)))
    assert index.resident_bytes == 2 * block
    index.search(users[0], Layer.EVENT, vectors(1)[0], 1)
    index.apply(users[2], added(["x"], vectors(1)))
    assert [index.applied_seq(user) for user in users] == [1, None, 1]
    assert index.resident_bytes == 2 * block
    index.apply(users[2], added([str(at) for at in range(1000)], vectors(1000), first=2))
    assert [index.applied_seq(user) for user in users] == [None, None, 1001]  # the one in hand stays
