"""What a worker hands back for a task. A proposal changes nothing until the shard applies it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .model import Cut, EventRelation, Relationship, ResolvedDate, TopicRelation


@dataclass(frozen=True, slots=True)
class SegmentNotes:
    """What a summarizer says of one segment (GAM, §3.2).

    `event_dates` and `event_entities` have one entry per event given.
    `confidence` is the LLM's word, or the documented constant of an extractive one.
    """

    summary: str
    keywords: tuple[str, ...]
    entities: tuple[str, ...]
    dates: tuple[ResolvedDate, ...]
    event_dates: tuple[tuple[ResolvedDate, ...], ...]
    event_entities: tuple[tuple[str, ...], ...]
    confidence: float
    label: str = ""
    facts: tuple[str, ...] = ()
    relationships: tuple[Relationship, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A topic as the relation scorer sees it.

    `texts` are `(speaker, text)` of its own events when it is new, and empty for a
    stored candidate (its summary speaks for it). `similarity` is the cosine to the
    new topic (1.0 for itself).
    """

    topic_id: str
    summary: str
    keywords: tuple[str, ...]
    entities: tuple[str, ...]
    first_us: int
    last_us: int
    similarity: float
    texts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ScoredRelation:
    """A judged relation from the new topic to a candidate."""

    topic_id: str
    type: str
    confidence: float


@dataclass(frozen=True, slots=True)
class ProposedTopic:
    """A topic to be made, with its vector `(dimension,)` float32.

    Attributes:
        relations: to stored topics and earlier ones of the same proposal, each from the
            newer topic to the older by event time.
        supersedes: topics that this one makes past.
        superseded_by: a topic already known that makes this one past: it was told late.
    """

    summary: str
    keywords: tuple[str, ...]
    entities: tuple[str, ...]
    dates: tuple[ResolvedDate, ...]
    confidence: float
    model: str
    vector: NDArray[np.float32]
    relations: tuple[TopicRelation, ...]
    supersedes: tuple[str, ...] = ()
    superseded_by: str | None = None
    label: str = ""
    facts: tuple[str, ...] = ()
    relationships: tuple[Relationship, ...] = ()


@dataclass(frozen=True, slots=True)
class ProposedEpisode:
    """A segment to be closed. `topic` is None when all of its events are recalled."""

    seqs: tuple[int, ...]
    cut: Cut
    detector: str
    trigger: str
    topic: ProposedTopic | None
    event_dates: Sequence[tuple[ResolvedDate, ...]]
    event_entities: Sequence[tuple[str, ...]]
    relations: tuple[EventRelation, ...]


@dataclass(frozen=True, slots=True)
class Proposal:
    """The answer to one segment task; no episode means that no boundary was found.

    `links` are event relations that reach beyond an episode: each has a new event at one end at least.
    """

    task_id: str
    token: str
    episodes: tuple[ProposedEpisode, ...]
    links: tuple[EventRelation, ...] = ()
