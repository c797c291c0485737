"""Answering a query from one user's memory: `retrieve(view, query, vector, index)`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .candidates import narrow
from .errors import Rejected
from .evidence import evidence
from .model import Event, Layer, ResolvedDate, Topic
from .ports import VectorIndex
from .query import Query, parse_query
from .ranking import (
    CONFIDENCE_BOOST,
    CONFIDENT_ABOVE,
    RECALLED_FACTOR,
    ROLE_BOOST,
    SUPERSEDED_FACTOR,
    TIME_BOOST,
    FactorArrays,
    FactorColumn,
    Factors,
    boost,
    semantic_probability,
)
from .view import MemoryView, Visible

Floats = NDArray[np.float32]
Ordinals = NDArray[np.int64]

MODES = ("gam", "flat")


@dataclass(frozen=True, slots=True)
class Path:
    """How a memory was reached: topic → episode → event; `via` is the related topic before it.

    `topic` is None for a live event, and for one whose episode has no topic.
    """

    topic: str | None
    episode: str | None
    event: str
    via: str | None = None


@dataclass(frozen=True, slots=True)
class RankedMemory:
    """One event at its place in the ranking, with its explanation."""

    event: Event
    dates: tuple[ResolvedDate, ...]
    score: float
    factors: Factors
    path: Path
    superseded: bool

    @property
    def source(self) -> str:
        """Where the event lies: "buffer" while it is live, else "archive"."""
        return "buffer" if self.event.episode_id is None else "archive"


@dataclass(frozen=True, slots=True)
class RetrievalResult:
    """The answer to a query.

    Attributes:
        query: as it was read.
        mode: what answered it.
        memories: best first.
        topics: those that narrowed the search, best first; beside the memories, not instead.
        candidate_share: candidates over the user's (visible) events; 0 for an empty memory.
        latest: the latest (visible) event: the present of the memory; None for an empty one.
    """

    query: Query
    mode: str
    memories: tuple[RankedMemory, ...]
    topics: tuple[Topic, ...]
    candidate_share: float
    latest: Event | None = None


def retrieve(
    view: MemoryView,
    query: str,
    vector: Floats,
    index: VectorIndex,
    k: int = 10,
    mode: str = "gam",
    as_of_us: int | None = None,
) -> RetrievalResult:
    """Rank a user's memories for a query.

    Args:
        view: the user's memory, refreshed.
        query: what is asked.
        vector: its embedding, float32 `(dimension,)`.
        index: holds the user's vectors up to the view's version.
        k: memories wanted; fewer come back from a smaller memory.
        mode: "gam", or "flat" for the nearest events alone.
        as_of_us: only events with `time_us <= as_of_us` are seen.

    Raises:
        Rejected: the mode is unknown or `k` is below 1.
    """
    if mode not in MODES:
        raise Rejected(f"unknown mode {mode!r}; choose one of {', '.join(MODES)}")
    if k < 1:
        raise Rejected(f"k is {k}; ask for at least one memory")
    times = view.times_us.values
    visible = view.visible(as_of_us)
    seen = times[visible.events]
    if not len(seen):
        return RetrievalResult(parse_query(query, (), 0, 0), mode, (), (), 0.0)
    parsed = parse_query(query, view.speakers, int(seen.min()), int(seen.max()))
    ranked = _flat if mode == "flat" else _graph_guided
    latest = view.events[int(np.flatnonzero(visible.events)[seen.argmax()])]
    return replace(ranked(view, parsed, vector, index, k, visible), latest=latest)


def _graph_guided(
    view: MemoryView, query: Query, vector: Floats, index: VectorIndex, k: int, visible: Visible
) -> RetrievalResult:
    match = view.lexical.match(query.terms)
    candidates = narrow(view, query, vector, index, match, visible)
    ordinals = candidates.ordinals
    semantic = semantic_probability(evidence(view, query, vector, index, match, candidates, visible))
    factors = factor_arrays(view, query, ordinals, semantic, visible)
    scores = factors.scores()
    best = np.lexsort((-ordinals, -view.times_us.values[ordinals], -scores))[:k].tolist()
    memories = tuple(
        _ranked(
            view,
            int(ordinals[at]),
            factors.at(at),
            candidates.via.get(int(view.topic_of.values[ordinals[at]])),
            visible,
        )
        for at in best
    )
    topics = tuple(view.topics[at] for at in candidates.topics)
    return RetrievalResult(query, "gam", memories, topics, len(ordinals) / int(visible.events.sum()))


def factor_arrays(
    view: MemoryView, query: Query, ordinals: Ordinals, semantic: FactorColumn, visible: Visible
) -> FactorArrays:
    """The factors of each candidate; see `ranking`."""
    topic_of = view.topic_of.values[ordinals]
    confident = np.array([topic.confidence > CONFIDENT_ABOVE for topic in view.topics] + [False])
    superseded = np.append(visible.superseded, False)
    named = np.array([speaker in query.speakers for speaker in view.speakers])
    timely = view.meets(query.conditions)[ordinals] if query.conditions else np.zeros(len(ordinals), dtype=bool)
    # A topic ordinal of -1 reads the False at the end.
    return FactorArrays(
        semantic=semantic,
        time=boost(timely, TIME_BOOST),
        confidence=boost(confident[topic_of], CONFIDENCE_BOOST),
        role=boost(named[view.speaker_of.values[ordinals]], ROLE_BOOST),
        superseded=boost(superseded[topic_of] & (not query.asks_past), SUPERSEDED_FACTOR),
        origin=boost(view.recalled.values[ordinals], RECALLED_FACTOR),
    )


def _flat(
    view: MemoryView, query: Query, vector: Floats, index: VectorIndex, k: int, visible: Visible
) -> RetrievalResult:
    """Nearest events by inner product; the baseline that everything else is compared with."""
    # A few more than asked for, so that equal scores are ordered by us and not by the index.
    refs, near = index.search(view.user, Layer.EVENT, vector, k + 32 if visible.events.all() else len(view))
    found = [(view.find(int(ref)), score) for ref, score in zip(refs, near.tolist(), strict=True)]
    hits = [(at, score) for at, score in found if at is not None and visible.events[at]]
    hits.sort(key=lambda hit: (-hit[1], -view.events[hit[0]].time_us, -hit[0]))
    memories = tuple(
        _ranked(view, at, Factors(min(1.0, max(1e-6, (1 + score) / 2))), None, visible) for at, score in hits[:k]
    )
    return RetrievalResult(query, "flat", memories, (), 1.0)


def _ranked(view: MemoryView, ordinal: int, factors: Factors, via: int | None, visible: Visible) -> RankedMemory:
    event = view.events[ordinal]
    topic = view.topic(ordinal)
    return RankedMemory(
        event=event,
        dates=view.dates(ordinal),
        score=factors.score,
        factors=factors,
        path=Path(
            topic.id if topic else None,
            event.episode_id,
            event.message_id,
            None if via is None else view.topics[via].id,
        ),
        superseded=topic is not None and bool(visible.superseded[view.topic_ordinals[topic.id]]),
    )
