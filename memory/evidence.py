"""How well a turn answers a query, before any factor: the evidence behind `P_sem`.

A turn of a dialogue seldom stands alone: what was asked before it and what is said around
it tell what it is about. So the words of a query are looked for in the turn, in the turn
with its predecessor and in the five turns around it, its meaning in the turn and its
predecessor. A turn of few words or that only asks answers less; one that speaks of a date answers "when".
Evidence is a weighted sum; how the weights were found is in docs/design/retrieval.md.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .candidates import Candidates, standardise
from .lexical import LexicalMatch, bm25, coverage
from .model import Layer
from .ports import VectorIndex
from .query import Query
from .view import MemoryView, Visible

Floats = NDArray[np.float32]
Ordinals = NDArray[np.int64]

WEIGHTS: dict[str, float] = {
    "pair_words": 0.27,
    "window_words": 0.45,
    "coverage": 0.5,
    "meaning": 0.58,
    "meaning_before": 0.23,
    "length": 1.0,
    "question": -0.5,
    "dated": 1.2,
    "topic": 0.1,
}
FULL_LENGTH = 40
"""Terms beyond which a turn counts as no fuller: a monologue is not a better answer."""


def evidence(
    view: MemoryView,
    query: Query,
    vector: Floats,
    index: VectorIndex,
    match: LexicalMatch,
    candidates: Candidates,
    visible: Visible,
) -> Floats:
    """Evidence of each candidate, `(candidates,)`; only differences between candidates mean anything."""
    table = features(view, query, vector, index, match, candidates, visible)
    weights = np.array([WEIGHTS[name] for name in table], dtype=np.float32)
    total: Floats = (weights @ np.stack(list(table.values()))).astype(np.float32)
    return total


def features(
    view: MemoryView,
    query: Query,
    vector: Floats,
    index: VectorIndex,
    match: LexicalMatch,
    candidates: Candidates,
    visible: Visible,
) -> dict[str, Floats]:
    """The parts of the evidence by name, each `(candidates,)`."""
    around = neighbourhood(view, candidates.ordinals)
    around[~visible.events[around]] = -1
    return {
        **_words(view, match, around),
        **_meaning(view, vector, index, around),
        "length": np.log1p(np.minimum(view.lexical.lengths()[candidates.ordinals], FULL_LENGTH)),
        "question": view.questions.values[candidates.ordinals].astype(np.float32),
        "dated": _dated(view, query, candidates.ordinals),
        "topic": candidates.support,
    }


def neighbourhood(view: MemoryView, ordinals: Ordinals) -> Ordinals:
    """Ordinals of the five turns around each, `(candidates, 5)`; -1 where a session has none."""
    before = _step(view.previous.values, ordinals)
    after = _step(view.next.values, ordinals)
    return np.stack(
        [_step(view.previous.values, before), before, ordinals, after, _step(view.next.values, after)], axis=1
    )


def _step(links: Ordinals, ordinals: Ordinals) -> Ordinals:
    return np.where(ordinals >= 0, links[ordinals], -1)


def _words(view: MemoryView, match: LexicalMatch, around: Ordinals) -> dict[str, Floats]:
    size = len(view)
    held = np.concatenate([match.frequencies(size), np.zeros((len(match.terms), 1), dtype=np.float32)], axis=1)
    lengths = np.append(view.lexical.lengths(), np.float32(0))
    near, near_lengths = held[:, around], lengths[around]  # ordinal -1 is the empty column at the end
    mean = view.lexical.mean_length
    pair, window = near[:, :, 1] + near[:, :, 2], near.sum(axis=2)
    return {
        "pair_words": standardise(bm25(pair, match.idf, near_lengths[:, 1] + near_lengths[:, 2], 2 * mean)),
        "window_words": standardise(bm25(window, match.idf, near_lengths.sum(axis=1), 5 * mean)),
        "coverage": coverage(near[:, :, 2], match),
    }


def _meaning(view: MemoryView, vector: Floats, index: VectorIndex, around: Ordinals) -> dict[str, Floats]:
    present = np.unique(around[:, 1:3])
    present = present[present >= 0]
    similar = np.zeros(len(view), dtype=np.float32)
    similar[present] = index.similarities(
        view.user, Layer.EVENT, vector, [view.refs[ordinal] for ordinal in present.tolist()]
    )
    own = similar[around[:, 2]]
    centre = own.sum() / max(1, len(own))
    before = np.where(around[:, 1] >= 0, similar[around[:, 1]], centre)  # no turn says nothing either way
    return {"meaning": standardise(own), "meaning_before": standardise(before)}


def _dated(view: MemoryView, query: Query, ordinals: Ordinals) -> Floats:
    """1 for turns that speak of a date, where the query asks when."""
    if not query.asks_when:
        return np.zeros(len(ordinals), dtype=np.float32)
    return np.fromiter((bool(view.dates(at)) for at in ordinals.tolist()), dtype=np.float32, count=len(ordinals))
