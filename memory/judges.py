"""A chat model behind the ports that rules serve too: one call each (GAM, §3.1 and §3.2).

For where ports are served by different models, or only some by a model; if one serves all,
`joint.py` asks for everything at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from . import long_input, prompts
from .consolidation import said_places
from .model import Cut, Event, User
from .model_readings import UNSTATED_CONFIDENCE
from .ports import Ask, BoundaryDetector
from .proposal import Candidate, ScoredRelation, SegmentNotes

Vectors = NDArray[np.float32]


class ChatDetector:
    """Implements the port `BoundaryDetector`.

    Args:
        ask: the model.
        fallback: finds the gap that closes where one must be found and the model sees none.
    """

    def __init__(self, ask: Ask, fallback: BoundaryDetector) -> None:
        self._ask, self._fallback = ask, fallback

    @property
    def name(self) -> str:
        """What is recorded with each cut."""
        return prompts.recorded(self._ask.model, "boundaries")

    def boundaries(self, events: Sequence[Event], vectors: Vectors, *, force: bool) -> list[Cut]:
        """Return cuts in increasing order, `0 < index < len(events)`.

        Recalled events are not shown: a cut lies before a said event, and what is recalled stays with what is
        before it. Over-long input takes several calls.

        Args:
            events: a buffer in event order.
            vectors: their embeddings, `(len(events), dimension)`.
            force: if the model's cuts close less than a quarter of the events, the fallback's deepest gap
                beyond them closes too, and its reason says so.

        Raises:
            BadAnswer, ModelAway, TooLong, Rejected, Refused: as `Ask`.
        """
        said = said_places(events)
        found: list[Cut] = []
        if len(said) > 1:
            for number in long_input.boundaries(self._ask, [events[at] for at in said]):
                found.append(Cut(said[number], UNSTATED_CONFIDENCE, "the topic changes"))
        if force and (forced := forced_cut(found, events, vectors, self._fallback, self._ask.model)) is not None:
            found.append(forced)
        return found


class ChatSummarizer:
    """Implements the port `Summarizer`."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    @property
    def name(self) -> str:
        """What is recorded with each topic."""
        return prompts.recorded(self._ask.model, "summary")

    def notes(self, events: Sequence[Event], vectors: Vectors) -> SegmentNotes:
        """Summarise events (none of them recalled), in their own language; in parts if they are too long.

        Raises:
            BadAnswer, ModelAway, TooLong, Rejected, Refused: as `Ask`.
        """
        return long_input.notes(self._ask, events)


class ChatScorer:
    """Implements the port `RelationScorer`.

    Args:
        ask: the model.
        user: whose topics it compares.
    """

    def __init__(self, ask: Ask, user: User) -> None:
        self._ask, self._user = ask, user

    @property
    def name(self) -> str:
        """What is recorded with each judgement."""
        return prompts.recorded(self._ask.model, "relations")

    def relations(self, topic: Candidate, candidates: Sequence[Candidate]) -> list[ScoredRelation]:
        """At most one relation per candidate; `unrelated` ones are left out, and no candidates ask nothing.

        Raises:
            BadAnswer, ModelAway, TooLong, Rejected, Refused: as `Ask`.
        """
        return long_input.relations(self._ask, self._user, topic, candidates) if candidates else []


def forced_cut(
    cuts: Sequence[Cut], events: Sequence[Event], vectors: Vectors, fallback: BoundaryDetector, model: str
) -> Cut | None:
    """The gap that closes where one must and a model's cuts close less than a quarter of the events.

    A quarter, since one event less would force again a few turns later, with a call each time.

    Returns:
        The fallback's surest cut beyond the model's and beyond the first quarter; None if none is needed, or
        there is a single event.
    """
    last = cuts[-1].index if cuts else 0
    least = (len(events) - 1) // 4 + 1
    if last >= least or len(events) < 2:
        return None
    beyond = [cut for cut in fallback.boundaries(events, vectors, force=True) if cut.index >= max(least, last + 1)]
    if not beyond:
        raise ValueError(f"detector {fallback.name!r} was to force a cut among {len(events)} events and returned none")
    deepest = max(beyond, key=lambda cut: (cut.confidence, -cut.index))
    saw = f"{model} saw no boundary" if not cuts else f"{model} saw none after event {last}"
    return replace(deepest, reason=f"{saw}; by {fallback.name}: {deepest.reason}")
