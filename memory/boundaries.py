"""Text-tiling over embeddings, with how people close and open a topic as evidence.

Every gap between two events gets log-odds of a boundary: a weighted sum of what the
vectors say (windows of 1, 2 and 4 events, Hearst's depth), of the words that both
sides share, and of the cues of the turns around it (`discourse.py`). Gaps between a
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

from .discourse import CLOSING, CUES, DESCRIPTIONS, OPENING, Cue, Reading, read
from .model import Cut, Event, Kind

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

WINDOWS = (1, 2, 4)
_REACH = 4
_NO_LENGTH = 1e-9
_LONGEST_TURN_WORDS = 40
_CUE_BITS = np.array([int(cue) for cue in CUES], dtype=np.int64)
_ASKS, _OPENS, _REACTS = int(Cue.QUESTION), int(OPENING), int(Cue.REACTION)
_CLOSING_WORDS = [(int(cue), DESCRIPTIONS[cue]) for cue in CUES if cue & CLOSING]
_OPENING_WORDS = [(int(cue), DESCRIPTIONS[cue]) for cue in CUES if cue & OPENING]
_SILENT = Reading(0, 0, frozenset())

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
"""Log-odds per unit of what vectors and words say; `TextTiling.cohesion` names the measures."""

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
        self._cue_table = np.zeros((len(CUES), 4))
        for (offset, cue), weight in self.settings.cue_weights.items():
            self._cue_table[CUES.index(cue), offset + 2] = weight

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
        cohesion = self.cohesion(events, vectors, readings)
        odds = self.odds(events, readings, cohesion)
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
        return [Cut(int(gap) + 1, _sigmoid(float(odds[gap])), _reason(readings, cohesion, int(gap))) for gap in chosen]

    def cohesion(
        self, events: Sequence[Event], vectors: NDArray[np.float32], readings: Sequence[Reading]
    ) -> dict[str, Floats]:
        """What holds the two sides of each gap together, one value per gap and measure.

        `similarity_w`: cosine of the w events before and after. `depth`: how far that lies
        below the peaks beside it, mean over the windows. `link`: best cosine of the two
        events after with the four before. `ahead`: of the first event after with the three
        that follow it.
        `shared_terms_w`: share of the lighter side's terms, weighted by rarity, that both have.
        """
        gram = _gram(events, vectors, self.settings.mean_shrinkage)
        return _similarities(gram) | _links(gram) | _shared_terms(readings)

    def odds(self, events: Sequence[Event], readings: Sequence[Reading], cohesion: Mapping[str, Floats]) -> Floats:
        """Log-odds of a boundary at each gap, `(len(events) - 1,)`."""
        settings = self.settings
        odds = np.full(len(events) - 1, settings.bias)
        for measure, weight in settings.cohesion_weights.items():
            odds += weight * cohesion[measure]
        cues = np.array([reading.cues for reading in readings], dtype=np.int64)
        said = ((cues[:, None] & _CUE_BITS) != 0) @ self._cue_table
        odds += said[:-1, 1] + said[1:, 2]
        odds[1:] += said[:-2, 0]
        odds[:-1] += said[2:, 3]
        words = np.array([reading.words for reading in readings[1:]])
        odds += settings.length_weight * np.log1p(np.minimum(words, _LONGEST_TURN_WORDS))
        return odds + settings.initiative_weight * _initiative(events)

    def _admissible(self, events: Sequence[Event], readings: Sequence[Reading], odds: Floats) -> Flags:
        """Gaps that may be cut: not inside question and answer, not inside a tool call."""
        admissible = ~_tool_gaps(events)
        asker, waited = None, 0
        for gap in range(len(odds)):
            if readings[gap].cues & _ASKS:
                asker, waited = events[gap].speaker, 0
            if asker is None:
                continue
            following = events[gap + 1]
            reading = readings[gap + 1].cues
            answers = following.kind == Kind.UTTERANCE and following.speaker != asker
            elsewhere = reading & _OPENS and not reading & _REACTS
            if not (answers and elsewhere and odds[gap] >= self.settings.unanswered_floor):
                admissible[gap] = False
            waited += 1
            if answers or waited >= self.settings.longest_wait:
                asker = None
        return admissible

    def _choose(self, odds: Floats, admissible: Flags) -> NDArray[np.intp]:
        threshold = max(self.settings.floor, float(odds.mean()) + self.settings.deviations * float(odds.std()))
        return np.flatnonzero(admissible & (odds >= threshold) & (odds > self.settings.floor))


def _gram(events: Sequence[Event], vectors: NDArray[np.float32], shrinkage: float) -> Floats:
    """Inner products of the vectors less their speaker's (shrunken) mean in the buffer."""
    places: dict[str, int] = {}
    speakers = np.array([places.setdefault(event.speaker, len(places)) for event in events])
    member = (speakers == np.arange(len(places))[:, None]).astype(np.float32)
    plain = np.asarray(vectors, dtype=np.float32)
    means = (member @ plain) / (member.sum(axis=1, keepdims=True) + np.float32(shrinkage))
    centred = plain - means[speakers]
    gram: Floats = (centred @ centred.T).astype(np.float64)
    return gram


def _similarities(gram: Floats) -> dict[str, Floats]:
    """Cosines of the windows' sums, from an integral image of the inner products."""
    count = len(gram)
    image = np.zeros((count + 1, count + 1))
    image[1:, 1:] = gram.cumsum(axis=0).cumsum(axis=1)
    diagonal = image.diagonal()
    middle = np.arange(1, count)
    at_middle = diagonal[middle]
    measures: dict[str, Floats] = {}
    depth = np.zeros(count - 1)
    for window in WINDOWS:
        first, last = np.maximum(middle - window, 0), np.minimum(middle + window, count)
        first_middle, first_last, middle_last = image[first, middle], image[first, last], image[middle, last]
        across = first_middle + middle_last - at_middle - first_last
        before = at_middle - 2 * first_middle + diagonal[first]
        after = diagonal[last] - 2 * middle_last + at_middle
        similarity = across / np.sqrt(np.maximum(before, _NO_LENGTH) * np.maximum(after, _NO_LENGTH))
        measures[f"similarity_{window}"] = similarity = np.clip(similarity, -1.0, 1.0)
        depth += _climb(similarity) + _climb(similarity[::-1])[::-1] - 2 * similarity
    measures["depth"] = depth / len(WINDOWS)
    return measures


def _climb(heights: Floats) -> Floats:
    """The peak that is reached from each place by climbing to the left."""
    peaks = heights.tolist()
    below = math.inf
    for at, height in enumerate(peaks):
        if at and below >= height:
            peaks[at] = peaks[at - 1]
        below = height
    return np.array(peaks)


def _links(gram: Floats) -> dict[str, Floats]:
    count = len(gram)
    scale = 1.0 / np.sqrt(np.maximum(gram.diagonal(), _NO_LENGTH))
    cosine = np.full((count + 2 * _REACH, count + 2 * _REACH), -1.0)
    cosine[_REACH:-_REACH, _REACH:-_REACH] = gram * scale * scale[:, None]
    first = np.arange(1, count) + _REACH
    back = first[:, None] - np.arange(1, _REACH + 1)
    opening = cosine[first[:, None], back]
    second = cosine[first[:, None] + 1, back]
    ahead = cosine[first[:, None], first[:, None] + np.arange(1, _REACH)].max(axis=1)
    ahead[-1] = 0.0
    return {"link": np.maximum(opening, second).max(axis=1), "ahead": ahead}


def _shared_terms(readings: Sequence[Reading]) -> dict[str, Floats]:
    """Overlap of the terms of 2 and 4 events on both sides of each gap, by rarity in the buffer."""
    count = len(readings)
    columns: dict[str, int] = {}
    rows: list[int] = []
    places: list[int] = []
    for row, reading in enumerate(readings):
        for term in reading.terms:
            rows.append(row)
            places.append(columns.setdefault(term, len(columns)))
    present = np.zeros((count + 2 * _REACH, len(columns)), dtype=np.float32)
    present[np.array(rows, dtype=np.intp) + _REACH, np.array(places, dtype=np.intp)] = 1.0
    rarity = np.log1p(count / np.maximum(present.sum(axis=0), 1.0))
    measures: dict[str, Floats] = {}
    window = np.maximum(present[:-1], present[1:])
    for width in (2, 4):
        if width == 4:
            window = np.maximum(window[:-2], window[2:])
        before = window[_REACH - width + 1 : _REACH - width + count]
        after = window[_REACH + 1 : _REACH + count]
        shared = np.minimum(before, after) @ rarity
        lighter = np.minimum(before @ rarity, after @ rarity)
        measures[f"shared_terms_{width}"] = (shared / np.maximum(lighter, 1e-9)).astype(np.float64)
    return measures


def _initiative(events: Sequence[Event]) -> Floats:
    """+0.5 where the user's turn opens, -0.5 where another's does; 0 among peers."""
    user = np.array([event.role == "user" for event in events[1:]], dtype=np.float64)
    mixed = len({event.role == "user" for event in events if event.kind == Kind.UTTERANCE}) == 2
    return user - 0.5 if mixed else np.zeros(len(user))


def _tool_gaps(events: Sequence[Event]) -> Flags:
    """Gaps inside one step of an agent: before an observation, and from thought to action."""
    kinds = [event.kind for event in events]
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


def _reason(readings: Sequence[Reading], cohesion: Mapping[str, Floats], gap: int) -> str:
    parts = [f"topic shift {cohesion['depth'][gap] / 2:.2f} below its neighbours"]
    closing = [name for cue, name in _CLOSING_WORDS if readings[gap].cues & cue]
    opening = [name for cue, name in _OPENING_WORDS if readings[gap + 1].cues & cue]
    if closing:
        parts.append(f"{' and '.join(closing)} before it")
    if opening:
        parts.append(f"{' and '.join(opening)} opens")
    return "; ".join(parts)
