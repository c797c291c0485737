"""Text-tiling over embeddings, with how people close and open a topic as evidence.

Every gap between two events gets log-odds of a boundary: a weighted sum of what the
vectors say (windows of 1, 2 and 4 events, Hearst's depth), of the words that both
sides share (`cohesion.py`), and of the cues of the turns around it (`discourse.py`). Gaps between a
question and its answer, or an action and its observation, are bound. A gap is cut
when its log-odds pass an absolute floor and stand out of their buffer.
docs/design/boundaries.md has the evidence.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from .cohesion import MEASURES, Floats, cohesion
from .discourse import CLOSING, CUES, DESCRIPTIONS, OPENING, Cue, Reading, read
from .model import Cut, Event, Kind

Flags = NDArray[np.bool_]

_DEPTH = MEASURES.index("depth")
_LONGEST_TURN_WORDS = 40
_CUE_BITS = np.array([int(cue) for cue in CUES], dtype=np.int64)
_ASKS, _OPENS, _REACTS = int(Cue.QUESTION), int(OPENING), int(Cue.REACTION)
_CLOSING_WORDS = [(int(cue), DESCRIPTIONS[cue]) for cue in CUES if cue & CLOSING]
_OPENING_WORDS = [(int(cue), DESCRIPTIONS[cue]) for cue in CUES if cue & OPENING]
_SILENT = Reading(0, 0, ())

COHESION_WEIGHTS: Mapping[str, float] = MappingProxyType(
    {
        "similarity_1": -3.9,
        "similarity_2": -1.0,
        "depth": 1.5,
        "link": -2.6,
        "ahead": 1.4,
        "shared_terms_2": -3.0,
        "shared_terms_4": -4.6,
    }
)
"""Log-odds per unit of what vectors and words say; `cohesion.MEASURES` explains the measures."""

CUE_WEIGHTS: Mapping[tuple[int, Cue], float] = MappingProxyType(
    {
        (-2, Cue.THANKS): 0.8,
        (-2, Cue.OFFER): -0.6,
        (-2, Cue.NEED): -0.7,
        (-1, Cue.THANKS): 0.6,
        (-1, Cue.FAREWELL): 1.3,
        (-1, Cue.WELCOME): 0.9,
        (-1, Cue.OFFER): 0.7,
        (-1, Cue.DONE): 1.3,
        (-1, Cue.QUESTION): -1.4,
        (-1, Cue.NEED): -2.0,
        (-1, Cue.GREETING): -3.9,
        (0, Cue.GREETING): 3.0,
        (0, Cue.NEED): 1.5,
        (0, Cue.REQUEST): 0.1,
        (0, Cue.ENQUIRY): 0.2,
        (0, Cue.MARKER): 1.0,
        (0, Cue.REACTION): -0.8,
        (0, Cue.ANAPHORA): -0.5,
        (0, Cue.THANKS): -0.7,
        (0, Cue.FAREWELL): -1.5,
        (0, Cue.WELCOME): -2.8,
        (0, Cue.OFFER): -1.2,
        (0, Cue.DONE): -3.7,
        (1, Cue.OFFER): -1.4,
        (1, Cue.QUESTION): 0.3,
        (1, Cue.NEED): -1.2,
        (1, Cue.ENQUIRY): 0.7,
    }
)
"""Log-odds per cue of the turn at an offset from the gap: -1 is the turn before it, 0 opens the new segment."""


@dataclass(frozen=True, slots=True)
class TextTilingSettings:
    """Settings of the detector, all ours (the papers give none).

    Attributes:
        bias: log-odds of a gap without any evidence.
        cohesion_weights: see `COHESION_WEIGHTS`.
        cue_weights: see `CUE_WEIGHTS`.
        initiative_weight: half of it is added before a turn of the role "user" and taken
            before another's, where a buffer has both; peers get none.
        length_weight: per natural logarithm of the new turn's words.
        mean_shrinkage: imaginary events at the origin when a speaker's mean is taken; keeps
            the mean of a short buffer from swallowing its events.
        floor: least log-odds of a cut.
        deviations: a cut stands out of its buffer's mean by this many standard deviations.
        unanswered_floor: least log-odds for a cut between a question and a turn that opens
            something else instead of answering.
        longest_wait: events that a question may wait for its answer (tool calls between).
    """

    bias: float = -4.3
    cohesion_weights: Mapping[str, float] = field(default_factory=lambda: COHESION_WEIGHTS)
    cue_weights: Mapping[tuple[int, Cue], float] = field(default_factory=lambda: CUE_WEIGHTS)
    initiative_weight: float = 1.7
    length_weight: float = 1.0
    mean_shrinkage: float = 4.0
    floor: float = -0.5
    deviations: float = 0.5
    unanswered_floor: float = 1.0
    longest_wait: int = 8


class TextTiling:
    """A `BoundaryDetector` without a trained model. Pure, deterministic, thread-safe."""

    name = "text-tiling/1"

    def __init__(self, settings: TextTilingSettings | None = None) -> None:
        self.settings = settings or TextTilingSettings()
        self._cohesion_weights = np.zeros((len(MEASURES), 1))
        for measure, weight in self.settings.cohesion_weights.items():
            self._cohesion_weights[MEASURES.index(measure)] = weight
        by_cue = np.zeros((len(CUES), 4))
        for (offset, cue), weight in self.settings.cue_weights.items():
            by_cue[CUES.index(cue), offset + 2] = weight
        # A row for each set of cues, as the bits of `Reading.cues`; a column for each offset from the gap.
        self._cue_odds = ((np.arange(2 ** len(CUES))[:, None] & _CUE_BITS) != 0) @ by_cue

    def boundaries(self, events: Sequence[Event], vectors: NDArray[np.float32], *, force: bool) -> list[Cut]:
        """Return cuts in increasing order, `0 < index < len(events)`.

        Args:
            events: a buffer in event order.
            vectors: their embeddings, `(len(events), dimension)`.
            force: cut the deepest admissible gap if no gap would be cut; if every gap is
                bound, the deepest of them.
        """
        if len(events) < 2:
            return []
        readings = [read(event.text) if event.kind == Kind.UTTERANCE else _SILENT for event in events]
        terms = [reading.terms for reading in readings]
        measures = cohesion(events, vectors, terms, self.settings.mean_shrinkage)
        odds = self.odds(events, readings, measures)
        admissible = self._admissible(events, readings, odds)
        chosen = self._choose(odds, admissible)
        # A forced cut closes a quarter at least: one event less, and the next few turns would force again,
        # over a buffer that grows without end where every turn is like the last.
        enough = np.arange(len(odds)) >= len(odds) // 4
        if force and not (chosen.size and enough[chosen[-1]]):
            loose = ~_tool_gaps(events)
            held = next(gaps for gaps in (admissible & enough, loose & enough, enough) if gaps.any())
            candidates = np.flatnonzero(held)
            chosen = np.append(chosen, candidates[int(np.argmax(odds[candidates]))])
        return [Cut(int(gap) + 1, _sigmoid(float(odds[gap])), _reason(readings, measures, int(gap))) for gap in chosen]

    def odds(self, events: Sequence[Event], readings: Sequence[Reading], measures: Floats) -> Floats:
        """Log-odds of a boundary at each gap, `(len(events) - 1,)`; `measures` is what `cohesion` returns."""
        settings = self.settings
        odds: Floats = np.add.reduce(self._cohesion_weights * measures, axis=0, initial=settings.bias)
        said = self._cue_odds[[reading.cues for reading in readings]]
        odds += said[:-1, 1] + said[1:, 2]
        odds[1:] += said[:-2, 0]
        odds[:-1] += said[2:, 3]
        words = np.array([reading.words for reading in readings[1:]])
        odds += settings.length_weight * np.log1p(np.minimum(words, _LONGEST_TURN_WORDS))
        return odds + settings.initiative_weight * _initiative(events)

    def _admissible(self, events: Sequence[Event], readings: Sequence[Reading], odds: Floats) -> Flags:
        """Gaps that may be cut: not inside question and answer, not inside a tool call."""
        admissible = ~_tool_gaps(events)
        asking = [gap for gap in range(len(odds)) if readings[gap].cues & _ASKS]
        for asked, asked_next in itertools.pairwise([*asking, len(odds)]):
            asker = events[asked].speaker
            for gap in range(asked, min(asked_next, asked + max(self.settings.longest_wait, 1))):
                following = events[gap + 1]
                reading = readings[gap + 1].cues
                answers = following.kind == Kind.UTTERANCE and following.speaker != asker
                elsewhere = reading & _OPENS and not reading & _REACTS
                if not (answers and elsewhere and odds[gap] >= self.settings.unanswered_floor):
                    admissible[gap] = False
                if answers:
                    break
        return admissible

    def _choose(self, odds: Floats, admissible: Flags) -> NDArray[np.intp]:
        # As odds.mean() and odds.std(), which take longer to get going than to add up a short buffer.
        mean = float(odds.sum()) / len(odds)
        deviation = math.sqrt(float(np.square(odds - mean).sum()) / len(odds))
        threshold = max(self.settings.floor, mean + self.settings.deviations * deviation)
        return np.flatnonzero(admissible & (odds >= threshold) & (odds > self.settings.floor))


def _initiative(events: Sequence[Event]) -> Floats | float:
    """+0.5 where the user's turn opens, -0.5 where another's does, `(len(events) - 1,)`; 0 among peers."""
    users = [event.role == "user" for event in events]
    mixed = len({user for user, event in zip(users, events, strict=True) if event.kind == Kind.UTTERANCE}) == 2
    return np.array(users[1:]) - 0.5 if mixed else 0.0


def _tool_gaps(events: Sequence[Event]) -> Flags:
    """Gaps inside one step of an agent: before an observation, and from thought to action."""
    kinds = [event.kind for event in events]
    if all(kind == Kind.UTTERANCE for kind in kinds):
        return np.zeros(len(kinds) - 1, dtype=np.bool_)
    acting = (Kind.ACTION, Kind.OBSERVATION, Kind.THOUGHT)
    return np.array(
        [
            (after == Kind.OBSERVATION and before in acting) or (after == Kind.ACTION and before == Kind.THOUGHT)
            for before, after in itertools.pairwise(kinds)
        ],
        dtype=np.bool_,
    )


def _sigmoid(odds: float) -> float:
    return 1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, odds))))


def _reason(readings: Sequence[Reading], measures: Floats, gap: int) -> str:
    parts = [f"topic shift {measures[_DEPTH, gap] / 2:.2f} below its neighbours"]
    closing = [name for cue, name in _CLOSING_WORDS if readings[gap].cues & cue]
    opening = [name for cue, name in _OPENING_WORDS if readings[gap + 1].cues & cue]
    if closing:
        parts.append(f"{' and '.join(closing)} before it")
    if opening:
        parts.append(f"{' and '.join(opening)} opens")
    return "; ".join(parts)
