"""The nouns of the domain, frozen. The glossary is page 1 of the design.

Times are integers: microseconds since 1970-01-01T00:00:00Z (`*_us`). Integers
order, subtract and store without a timezone to get wrong; `times.py` turns
them into text at the edges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

DEFAULT_TENANT = "default"


class Kind(StrEnum):
    """What sort of turn it is."""

    UTTERANCE = "utterance"
    ACTION = "action"
    OBSERVATION = "observation"
    THOUGHT = "thought"


class Origin(StrEnum):
    """Whether a turn is new, or memory that was read back aloud."""

    SAID = "said"
    RECALLED = "recalled"


class Trigger(StrEnum):
    """The maintenance events: when boundaries are looked for.

    `AHEAD` looks for none: it sets one turn aside whose time nothing bears out.
    """

    SESSION_END = "session_end"
    PAUSE = "pause"
    OVERFLOW = "overflow"
    FLUSH = "flush"
    AHEAD = "ahead"


class TopicRelationType(StrEnum):
    """Typed relations between topics (GAM, §3). `unrelated` is never stored."""

    SUPPORT = "support"
    CONTRADICT = "contradict"
    COREFERENCE = "coreference"
    CAUSAL = "causal"
    SEMANTIC = "semantic"


class EventRelationType(StrEnum):
    """Relations between events (MAGMA, §3), plus `reply` inside an episode."""

    TEMPORAL = "temporal"
    SEMANTIC = "semantic"
    CAUSAL = "causal"
    ENTITY = "entity"
    REPLY = "reply"


class Layer(StrEnum):
    """Which of a user's two vector sets a vector belongs to."""

    EVENT = "event"
    TOPIC = "topic"


class User(NamedTuple):
    """The owner of a memory: always the pair, never one joined string.

    A named tuple, since users are keys of nearly every map and its hash costs a fifth.
    """

    tenant: str
    user_id: str

    def __str__(self) -> str:
        return self.user_id if self.tenant == DEFAULT_TENANT else f"{self.user_id} (tenant {self.tenant})"


@dataclass(frozen=True, slots=True)
class ResolvedDate:
    """A time expression of a text and the days it means.

    Attributes:
        text: the expression as it stands in the text ("yesterday").
        start: first day, ISO 8601 ("2023-05-07").
        end: last day, inclusive; equal to `start` for a single day.
    """

    text: str
    start: str
    end: str


class Event(NamedTuple):
    """A turn inside memory: a named tuple, since every turn makes one on the fast path.

    `seq` is the position at which the partition accepted the turn: dense enough
    to sort by, with gaps, and the tie-break of equal times. `episode_id` is None
    while the event lies in its buffer.
    """

    user: User
    seq: int
    message_id: str
    session_id: str
    speaker: str
    role: str
    text: str
    time_us: int
    utc_offset_minutes: int | None = None
    kind: str = Kind.UTTERANCE
    origin: str = Origin.SAID
    captions: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = MappingProxyType({})
    tokens: int = 0
    episode_id: str | None = None
    dates: tuple[ResolvedDate, ...] = ()
    entities: tuple[str, ...] = ()

    @property
    def order(self) -> tuple[int, int]:
        """Sort key of a user's events: event time, ties by source position."""
        return (self.time_us, self.seq)

    @property
    def embedded_text(self) -> str:
        """The text that is embedded: `speaker: text [captions]` (template 1)."""
        return embedded_text(self.speaker, self.text, self.captions)


TEMPLATE_VERSION = 1


def embedded_text(speaker: str, text: str, captions: Sequence[str]) -> str:
    """Return `speaker: text [caption] …`; a change of it needs a new TEMPLATE_VERSION."""
    if not captions:
        return f"{speaker}: {text}"
    return f"{speaker}: {text} " + " ".join(f"[{caption}]" for caption in captions)


@dataclass(frozen=True, slots=True)
class Cut:
    """A boundary: `index` is the first event of the new segment (0-based)."""

    index: int
    confidence: float
    reason: str


@dataclass(frozen=True, slots=True)
class Episode:
    """A closed run of events: the archived event graph's header.

    `trigger`, `detector`, `confidence` and `reason` describe the cut that closed it.
    """

    id: str
    user: User
    session_id: str
    seqs: tuple[int, ...]
    first_us: int
    last_us: int
    trigger: str
    detector: str
    confidence: float
    reason: str


@dataclass(frozen=True, slots=True)
class Relationship:
    """What a chat model read of two entities: subject, what holds between them, object."""

    subject: str
    relation: str
    object: str


@dataclass(frozen=True, slots=True)
class Topic:
    """A node of the topic associative network (GAM, §3.2).

    `episode_id` is the cross-layer edge to the archived event graph that the
    summary was made from. `model` names what wrote it ("extractive/1").
    `label`, `facts` and `relationships` are a chat model's; rules leave them empty.
    """

    id: str
    user: User
    episode_id: str
    summary: str
    keywords: tuple[str, ...]
    entities: tuple[str, ...]
    dates: tuple[ResolvedDate, ...]
    first_us: int
    last_us: int
    confidence: float
    model: str
    superseded_by: str | None = None
    label: str = ""
    facts: tuple[str, ...] = ()
    relationships: tuple[Relationship, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicRelation:
    """A typed, weighted relation from a newer topic to an older one."""

    source_id: str
    target_id: str
    type: str
    confidence: float


@dataclass(frozen=True, slots=True)
class EventRelation:
    """A relation inside an archived event graph; events are named by `seq`."""

    source_seq: int
    target_seq: int
    type: str
    weight: float = 1.0
