"""Narrowing: from a query to the events worth a close look (GAM, §3.3).

Topics are ranked, the best of them are followed one hop along topic relations, and the
cross-layer edges lead to the events of their archives. A topic node refers to its raw
text, so its lexical side covers summary, keywords and the words of its events, and its
dense side the topic's vector and the best of its events. Of a long archive only the parts
nearest to the query are followed. Live buffers come along whole while they are small; else,
like all events without a topic, they are ranked in parts beside the topics, so that a
memory nothing has consolidated yet is found as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .lexical import LexicalMatch, bm25
from .model import Layer
from .ports import VectorIndex
from .query import Query
from .view import MemoryView, Visible

Floats = NDArray[np.float32]
Ordinals = NDArray[np.int64]

MIN_CANDIDATES = 160
"""A memory of at most this many events is looked at whole."""
CANDIDATE_SHARE = 0.28
MAX_CANDIDATES = 224
"""However large the memory, so that the close look takes the same time."""
HOP_SHARE = 0.15
"""Part of the candidates that is kept for topics related to the best ones."""
ANCHOR_HITS = 64
"""Nearest events, and nearest topics, whose similarity counts; the rest get the last one's."""
TIME_EVIDENCE = 3.0
"""What a topic gains that meets the query's time condition, in standard deviations of one score."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Events to be ranked.

    Attributes:
        ordinals: of the events, ascending.
        support: what their topic's evidence adds, `(candidates,)`, about zero mean over all topics.
        topics: ordinals of the topics that were followed and may be seen whole, best first.
        via: topic ordinal → the topic from which a relation led to it.
    """

    ordinals: Ordinals
    support: Floats
    topics: tuple[int, ...]
    via: dict[int, int]


def budget(events: int) -> int:
    """How many candidates a memory of so many events may have."""
    return max(MIN_CANDIDATES, min(int(CANDIDATE_SHARE * events), MAX_CANDIDATES))


def narrow(
    view: MemoryView,
    query: Query,
    vector: Floats,
    index: VectorIndex,
    match: LexicalMatch,
    visible: Visible,
) -> Candidates:
    """Choose the candidates of a query.

    Args:
        view: the user's memory.
        query: the parsed query.
        vector: its embedding, `(dimension,)`.
        index: holds the user's vectors.
        match: the postings of the query's terms over events.
        visible: what may be seen.
    """
    parts = view.parts()
    part_of = np.where(visible.events, parts.of_event, -1)
    held = np.bincount(part_of[visible.events], minlength=len(parts.topic))
    words = bm25(match.frequencies(len(view)), match.idf, view.lexical.lengths(), view.lexical.mean_length)
    near = _nearest_events(view, vector, index, visible)
    scores = (
        _lexical(view, match, words, part_of, parts.topic, visible)
        + _dense(view, vector, index, near, part_of, parts.topic, visible)
        + _timely(view, query, part_of, len(held), visible)
    ).astype(np.float32)
    scores[held == 0] = -np.inf
    chosen, order, via = _choose(view, scores, held, parts.topic, budget(int(held.sum())))
    ordinals = np.flatnonzero(visible.events & chosen[part_of])
    support = scores[part_of[ordinals]]
    return Candidates(ordinals, support, tuple(topic for topic in order if visible.topics[topic]), via)


def _choose(
    view: MemoryView, scores: Floats, held: Ordinals, topic_of: Ordinals, limit: int
) -> tuple[NDArray[np.bool_], list[int], dict[int, int]]:
    """Take parts best first until the limit is reached; some room goes to topics related to the best.

    Returns:
        Which parts are taken; the topics they belong to, best first; and for each topic
        that only a relation led to, the topic it is related to.
    """
    chosen = np.zeros(len(held), dtype=bool)
    left = limit
    loose = (topic_of < 0) & (held > 0)
    everything = int(held.sum()) <= limit
    if everything or int(held[loose].sum()) <= limit // 2:
        chosen[loose] = True  # live buffers come along whole
        left -= int(held[loose].sum())
    taken = _take(scores, held, chosen, left if everything or not any(view.related) else int(left * (1 - HOP_SHARE)))
    anchors = list(dict.fromkeys(topic for topic in topic_of[taken].tolist() if topic >= 0))
    nearness = np.zeros(len(view.topics) + 1, dtype=np.float32)  # the last is for parts without a topic
    via: dict[int, int] = {}
    for anchor in anchors:
        for other, _, confidence in view.related[anchor]:
            if confidence > nearness[other]:
                nearness[other] = confidence
                via[other] = anchor
    left -= int(held[taken].sum())
    followed = _take(np.where(nearness[topic_of] > 0, scores + nearness[topic_of], -np.inf), held, chosen, left)
    left -= int(held[followed].sum())
    rest = _take(scores, held, chosen, left)
    order = list(dict.fromkeys(topic for topic in topic_of[[*taken, *followed, *rest]].tolist() if topic >= 0))
    return chosen, order, {topic: via[topic] for topic in topic_of[followed].tolist() if topic not in anchors}


def _take(scores: Floats, held: Ordinals, chosen: NDArray[np.bool_], room: int) -> list[int]:
    """Mark the best parts not chosen yet that fit the room, best first; return them in that order."""
    open_parts = np.flatnonzero(np.isfinite(scores) & ~chosen)
    taken: list[int] = []
    # A part holds an event at least: no more parts than room can be of use.
    for part in open_parts[np.argsort(-scores[open_parts], kind="stable")][: max(0, room)].tolist():
        if held[part] <= room:
            chosen[part] = True
            taken.append(part)
            room -= int(held[part])
    return taken


def _nearest_events(view: MemoryView, vector: Floats, index: VectorIndex, visible: Visible) -> Floats:
    """Similarity of the nearest visible events; all others have that of the last of them."""
    everything = bool(visible.events.all())
    refs, near = index.search(view.user, Layer.EVENT, vector, ANCHOR_HITS if everything else len(view))
    found = [view.find(int(ref)) for ref in refs]
    hits = [
        (at, score) for at, score in zip(found, near.tolist(), strict=True) if at is not None and visible.events[at]
    ]
    hits = hits[:ANCHOR_HITS]
    similar = np.full(len(view), hits[-1][1] if hits else 0.0, dtype=np.float32)
    similar[[at for at, _ in hits]] = [score for _, score in hits]
    return similar


def _lexical(
    view: MemoryView, match: LexicalMatch, words: Floats, part_of: Ordinals, topic_of: Ordinals, visible: Visible
) -> Floats:
    """A part as one document (its events, and its topic's summary and keywords), and its best event."""
    size = len(topic_of)
    inside = part_of >= 0
    lengths = np.bincount(part_of[inside], weights=view.lexical.lengths()[inside], minlength=size).astype(np.float32)
    frequencies = match.grouped(part_of, size)
    summaries = view.topic_lexical.match(match.terms)
    rows = {term: row for row, term in enumerate(match.terms)}
    said = np.append(visible.topics, False)  # the last is for parts without a topic
    for term, topics, counts in zip(summaries.terms, summaries.documents, summaries.counts, strict=True):
        per_topic = np.zeros(len(said), dtype=np.float32)
        per_topic[topics] = counts
        frequencies[rows[term]] += (per_topic * said)[topic_of]
    lengths += (np.append(view.topic_lexical.lengths(), np.float32(0)) * said)[topic_of]
    whole = bm25(frequencies, _part_idf(frequencies, size), lengths, max(1.0, float(lengths.mean())))
    return standardise(whole) + standardise(_best(words, part_of, size))


def _dense(
    view: MemoryView,
    vector: Floats,
    index: VectorIndex,
    near: Floats,
    part_of: Ordinals,
    topic_of: Ordinals,
    visible: Visible,
) -> Floats:
    """The best event of a part, and its topic's own vector at half the weight."""
    total = standardise(_best(near, part_of, len(topic_of)))
    if view.topics:
        everything = bool(visible.topics.all())
        refs, similar = index.search(view.user, Layer.TOPIC, vector, ANCHOR_HITS if everything else len(view.topics))
        named = np.full(len(view.topics) + 1, similar.min(initial=1.0) if len(similar) else 0.0, dtype=np.float32)
        for ref, score in zip(refs, similar.tolist(), strict=True):
            at = view.topic_ordinals.get(ref)
            if at is not None and visible.topics[at]:
                named[at] = score
        total += standardise(named[topic_of]) / 2
    return total


def _timely(view: MemoryView, query: Query, part_of: Ordinals, size: int, visible: Visible) -> Floats:
    """What parts gain that hold an event which meets the query's time condition."""
    gained = np.zeros(size, dtype=np.float32)
    if query.conditions:
        meets = view.meets(query.conditions) & visible.events
        gained[part_of[meets]] = TIME_EVIDENCE
    return gained


def _best(values: Floats, part_of: Ordinals, size: int) -> Floats:
    """The largest value in each part; the smallest of all where a part holds nothing."""
    best = np.full(size, values.min(initial=0.0), dtype=np.float32)
    inside = part_of >= 0
    np.maximum.at(best, part_of[inside], values[inside])
    return best


def _part_idf(frequencies: Floats, size: int) -> Floats:
    holding = (frequencies > 0).sum(axis=1)
    idf: Floats = np.log(1 + (size - holding + 0.5) / (holding + 0.5)).astype(np.float32)
    return idf


def standardise(values: Floats) -> Floats:
    """Zero mean and unit deviation; zeros where all values are the same."""
    if not len(values):
        return values
    centred = values - np.float32(values.sum() / len(values))
    deviation = math.sqrt(float(centred @ centred) / len(values))
    if deviation < 1e-6:
        return np.zeros_like(values)
    scaled: Floats = centred * np.float32(1 / deviation)
    return scaled
