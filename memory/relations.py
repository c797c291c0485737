"""Relations between topics and between the events of an episode, by rules (GAM, §3.2, without an LLM).

Coarse to fine: the worker picks at most `CANDIDATES` topics by embedding, the
scorer judges only those. It reads words, not meanings, so it says little and says
why it may: `contradict` needs the same speaker, a shared object and an opposite
stance or a changed value; `coreference` needs a shared name or two shared terms.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .entities import speaker_names
from .model import Event, EventRelation, EventRelationType, Kind, TopicRelationType
from .proposal import Candidate, ScoredRelation
from .stance import Claim, changes_value, claims, may_meet, opposes
from .words import han_pieces, han_runs, words

RELATION_THRESHOLD = 0.6
"""A topic relation below this confidence is not kept."""

CANDIDATES = 5
"""How many earlier topics a new one is compared with."""

_MAX_CONFIDENCE = 0.95
_CONTRADICT_SIMILARITY = 0.3
_CAUSAL_SIMILARITY = 0.35
_COREFERENCE_SIMILARITY = 0.5
_SUPPORT_SIMILARITY = 0.6
_SHARED_TERMS = 2
_COMMON_AMONG_CANDIDATES = 3
_MAX_READINGS = 8192

_SEMANTIC_EVENT_SIMILARITY = 0.6
_SEMANTIC_PER_EVENT = 2
_MAX_PAIRS_PER_EVENT = 16
_REPLY_REACH = 3
_QUESTION = re.compile(r"[?？][\"'”’)]*(?:\s|$)|[吗呢][。.!！]?\s*$")

_CAUSES = (
    *(" because ", " due to ", "thanks to ", "that's why", "that is why", "which is why", " therefore", "as a result"),
    *("after that", "since then", "ever since", ", so i ", ", so we ", ", so now ", ". so i ", ". so we "),
)
_HAN_CAUSES = ("因为", "所以", "因此", "由于", "于是", "导致")


class _Reading(NamedTuple):
    """A topic as the rules see it; `terms` are stems of its keywords and names."""

    texts: tuple[tuple[str, str], ...]
    speakers: frozenset[str]
    names: frozenset[str]
    terms: frozenset[str]


_TYPES = (
    TopicRelationType.CONTRADICT,
    TopicRelationType.CAUSAL,
    TopicRelationType.COREFERENCE,
    TopicRelationType.SUPPORT,
)
"""In order of preference."""


class RuleRelationScorer:
    """Implements the port `RelationScorer`."""

    @property
    def name(self) -> str:
        """What is recorded with each judgement."""
        return "rules/1"

    def relations(self, topic: Candidate, candidates: Sequence[Candidate]) -> list[ScoredRelation]:
        """At most one relation per candidate, the most telling one; weak ones are left out.

        Types in order of preference: contradict, causal, coreference, support, semantic.
        """
        if not candidates:
            return []
        new = _read(topic)
        new_claims = _claims(new.texts)
        causes = _cause_terms(new.texts)
        old = [_read(candidate) for candidate in candidates]
        counts = Counter(term for reading in old for term in reading.terms | reading.names)
        common = frozenset(term for term, count in counts.items() if count >= _COMMON_AMONG_CANDIDATES)
        found: list[ScoredRelation] = []
        for candidate, reading in zip(candidates, old, strict=True):
            old_claims: list[Claim] = []
            if new_claims and may_meet(new_claims, candidate.summary):
                old_claims = _claims(candidate.texts) if candidate.texts else _stored_claims(candidate.summary)
            judged = (
                _contradicts(topic, new_claims, candidate, old_claims),
                _causes(topic, causes, candidate, reading),
                _corefers(new, candidate, reading, common),
                _supports(new_claims, candidate, old_claims),
            )
            type_, confidence = next(
                (
                    (type_, confidence)
                    for type_, confidence in zip(_TYPES, judged, strict=True)
                    if confidence >= RELATION_THRESHOLD
                ),
                (TopicRelationType.SEMANTIC, semantic_confidence(candidate.similarity)),
            )
            if confidence > 0:
                found.append(ScoredRelation(candidate.topic_id, type_.value, round(confidence, 4)))
        return found


def superseded(topic: Candidate, other: Candidate, relation: str) -> str | None:
    """Which of two topics the relation marks as past: of a contradiction, the older by event time.

    Arrival plays no part, so a late message never supersedes (invariant 12). Of two of
    the same time the new topic is taken as the newer.

    Returns:
        The id of the superseded topic, None if neither is.
    """
    if relation != TopicRelationType.CONTRADICT:
        return None
    newer = (topic.last_us, topic.first_us) >= (other.last_us, other.first_us)
    return other.topic_id if newer else topic.topic_id


def utterances(summary: str) -> tuple[tuple[str, str], ...]:
    """`(speaker, text)` of an extractive summary's lines; the speaker is empty in other prose."""
    found = []
    for line in summary.split("\n"):
        speaker, colon, text = line.partition(": ")
        found.append((speaker, text) if colon else ("", line))
    return tuple(found)


def event_relations(events: Sequence[Event], vectors: NDArray[np.float32]) -> tuple[EventRelation, ...]:
    """Relations inside one episode.

    `temporal`: from each event to the next in event order. `reply`: from a turn to the
    one it answers. `semantic`: from an event to a later one that is alike and no
    neighbour, weighted by cosine; the strongest ones, at most two at any event.

    Args:
        events: in event order.
        vectors: their embeddings, unit length, `(len(events), dimension)`.
    """
    temporal = EventRelationType.TEMPORAL.value
    found = [EventRelation(before.seq, after.seq, temporal) for before, after in pairwise(events)]
    found += _replies(events)
    if len(events) > 2:
        found += _alike(events, vectors)
    return tuple(found)


def _alike(events: Sequence[Event], vectors: NDArray[np.float32]) -> list[EventRelation]:
    similar = vectors @ vectors.T
    sources, targets = np.nonzero(similar > _SEMANTIC_EVENT_SIMILARITY)
    weights = similar[sources, targets]
    if len(weights) > _MAX_PAIRS_PER_EVENT * len(events):  # a page of the same words
        beyond = np.nonzero(targets - sources > 1)[0]
        strongest = beyond[np.argsort(-weights[beyond], kind="stable")[: _MAX_PAIRS_PER_EVENT * len(events)]]
        sources, targets, weights = sources[strongest], targets[strongest], weights[strongest]
    pairs = [
        (-weight, source, target)
        for weight, source, target in zip(weights.tolist(), sources.tolist(), targets.tolist(), strict=True)
        if target - source > 1
    ]
    degree = [0] * len(events)
    found = []
    for weight, source, target in sorted(pairs):
        if degree[source] < _SEMANTIC_PER_EVENT and degree[target] < _SEMANTIC_PER_EVENT:
            degree[source] += 1
            degree[target] += 1
            seqs = events[source].seq, events[target].seq
            found.append(EventRelation(*seqs, EventRelationType.SEMANTIC.value, round(min(-weight, 1.0), 4)))
    return found


def _replies(events: Sequence[Event]) -> list[EventRelation]:
    """Answers to questions of another speaker, and observations to the action they follow."""
    found: list[EventRelation] = []
    question = action = -1
    for at, event in enumerate(events):
        if event.kind == Kind.OBSERVATION:
            if action >= 0:
                found.append(EventRelation(event.seq, events[action].seq, EventRelationType.REPLY.value))
                action = -1
            continue
        if event.kind == Kind.ACTION:
            action = at
            continue
        if question >= 0 and at - question <= _REPLY_REACH and events[question].speaker != event.speaker:
            found.append(EventRelation(event.seq, events[question].seq, EventRelationType.REPLY.value))
            question = -1
        if _is_question(event.text):
            question = at
    return found


def _is_question(text: str) -> bool:
    if text.isascii() and "?" not in text:
        return False
    return _QUESTION.search(text) is not None


def _contradicts(topic: Candidate, new: list[Claim], candidate: Candidate, old: list[Claim]) -> float:
    """The same speaker claims the opposite, or another value for what has one."""
    if not old or candidate.similarity < _CONTRADICT_SIMILARITY:
        return 0.0
    earlier, later = old, new
    if (topic.last_us, topic.first_us) < (candidate.last_us, candidate.first_us):
        earlier, later = later, earlier
    strongest = max(
        (
            max(opposes(one, other), changes_value(one, other))
            for one in later
            for other in earlier
            if not one.speaker or not other.speaker or one.speaker == other.speaker
        ),
        default=0.0,
    )
    return _bounded(0.5 + strongest + 0.3 * candidate.similarity) if strongest else 0.0


def _causes(topic: Candidate, causes: Sequence[frozenset[str]], candidate: Candidate, old: _Reading) -> float:
    """The new topic names a cause or a consequence in the words of an earlier topic."""
    if not causes or candidate.similarity < _CAUSAL_SIMILARITY or candidate.first_us > topic.first_us:
        return 0.0
    tied = max(len((terms & old.terms) - old.speakers) for terms in causes)
    return _bounded(0.35 + 0.1 * min(tied, 3) + 0.3 * candidate.similarity) if tied >= _SHARED_TERMS else 0.0


def _corefers(new: _Reading, candidate: Candidate, old: _Reading, common: frozenset[str]) -> float:
    """Both are about the same thing: they share a name, or two terms, that not most candidates hold."""
    if candidate.similarity < _COREFERENCE_SIMILARITY:
        return 0.0
    speakers = new.speakers | old.speakers
    names = (new.names & old.names) - common - speakers
    terms = (new.terms & old.terms) - common - speakers
    if not names and len(terms) < _SHARED_TERMS:
        return 0.0
    return _bounded(0.1 + 0.1 * min(len(names), 2) + 0.08 * min(len(terms), 4) + 0.6 * candidate.similarity)


def _supports(new: list[Claim], candidate: Candidate, old: list[Claim]) -> float:
    """Alike, and the same speaker takes the same stance on the same thing."""
    if not old or candidate.similarity < _SUPPORT_SIMILARITY:
        return 0.0
    agrees = any(
        one.stance and one.stance == other.stance and one.speaker == other.speaker and one.terms & other.terms
        for one in new
        for other in old
    )
    return _bounded(0.15 + candidate.similarity) if agrees else 0.0


def semantic_confidence(similarity: float) -> float:
    """Confidence that two topics are about like things: a cosine of .5 is worth .6 (MiniLM)."""
    return _bounded(similarity + 0.1)


def _bounded(confidence: float) -> float:
    return min(max(confidence, 0.0), _MAX_CONFIDENCE)


def _read(topic: Candidate) -> _Reading:
    if topic.texts:
        return _reading(topic.texts, topic.keywords, topic.entities)
    return _read_stored(topic.summary, topic.keywords, topic.entities)


@lru_cache(maxsize=_MAX_READINGS)
def _read_stored(summary: str, keywords: tuple[str, ...], entities: tuple[str, ...]) -> _Reading:
    """As the same topics are candidates again and again, they are read once."""
    return _reading(utterances(summary), keywords, entities)


def _reading(texts: tuple[tuple[str, str], ...], keywords: tuple[str, ...], entities: tuple[str, ...]) -> _Reading:
    return _Reading(
        texts=texts,
        speakers=speaker_names({speaker for speaker, _ in texts}),
        names=frozenset(name.lower() for name in entities),
        terms=_terms(" ".join((*keywords, *entities))),
    )


@lru_cache(maxsize=_MAX_READINGS)
def _stored_claims(summary: str) -> list[Claim]:
    return _claims(utterances(summary))


def _claims(texts: Iterable[tuple[str, str]]) -> list[Claim]:
    return [claim for speaker, text in texts for claim in claims(speaker, text)]


def _terms(text: str) -> frozenset[str]:
    """Stems that say something; a name keeps its capital apart from a common word (Apple, apples)."""
    found = {("^" + word.folded) if word.capital else word.key for word in words(text) if word.key}
    found.update(piece for run in han_runs(text) for piece in han_pieces(run))
    return frozenset(found)


def _cause_terms(texts: Sequence[tuple[str, str]]) -> list[frozenset[str]]:
    """Terms of each text that gives a cause or a consequence."""
    if not _gives_cause("\n".join([text for _, text in texts])):
        return []
    return [_terms(text) for _, text in texts if _gives_cause(text)]


def _gives_cause(text: str) -> bool:
    lower = text.lower()
    if any(cue in lower for cue in _CAUSES):
        return True
    return not text.isascii() and any(cue in text for cue in _HAN_CAUSES)
