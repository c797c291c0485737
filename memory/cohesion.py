"""What holds the two sides of each gap between events together: vectors and shared terms.

The inner products of the vectors are summed over windows from an integral image, the
weights of the terms from a table of when each was said last. So every window at every
gap comes of a few array operations over a buffer, however short it is: buffers of
twenty events are the rule, and there the number of calls is what costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .model import Event

Floats = NDArray[np.float64]
Places = NDArray[np.intp]

WINDOWS = (1, 2, 4)
_TERM_WINDOWS = (2, 4)

MEASURES = (
    *(f"similarity_{window}" for window in WINDOWS),
    "depth",
    "link",
    "ahead",
    *(f"shared_terms_{window}" for window in _TERM_WINDOWS),
)
"""The rows of `cohesion`.

`similarity_w`: cosine of the w events before and after. `depth`: how far that lies
below the peaks beside it, mean over the windows. `link`: best cosine of the two
events after with the four before. `ahead`: of the first event after with the three
that follow it.
`shared_terms_w`: share of the lighter side's terms, weighted by rarity, that both have.
"""

_REACH = 4
_SPAN = 2 * _REACH
_NO_LENGTH = 1e-9
_UNIT = 2.0**32
_CACHED_SIZES = 128


def cohesion(
    events: Sequence[Event], vectors: NDArray[np.float32], terms: Sequence[tuple[int, ...]], shrinkage: float
) -> Floats:
    """Measure what holds the two sides of each gap together.

    Args:
        events: a buffer of at least two, in event order.
        vectors: their embeddings, `(len(events), dimension)`.
        terms: the distinct terms of each event, as numbers.
        shrinkage: imaginary events at the origin when a speaker's mean is taken.

    Returns:
        `(len(MEASURES), len(events) - 1)`: a row per measure, a column per gap.
    """
    gram = _gram(events, vectors, shrinkage)
    measures = np.empty((len(MEASURES), len(events) - 1))
    similar = len(WINDOWS)
    measures[:similar] = similarities = _similarities(gram)
    measures[similar] = _depth(similarities)
    measures[similar + 1 : similar + 3] = _links(gram)
    measures[similar + 3 :] = _shared_terms(terms)
    return measures


class _Layout(NamedTuple):
    """Where the values of each gap stand in the flat arrays of a buffer of `count` events.

    Attributes:
        corners: in the integral image, `(6, windows, gaps)`: the corners that the window
            before a gap, the one after it and both together are made of.
        links: in the padded cosines, `(2 * reach + reach - 1, gaps)`: the two events after
            the gap with each of the four before it, then the first with the three behind it.
        steps: the flat places themselves, `(2 * windows, gaps)`.
        spans: in the padded table of `_shared_terms`, `(count + reach, span)`: the events of
            a span, each in the column of its distance from the first.
        sides: in the weights of the spans, `(3, term windows, gaps)`: the span before the gap,
            the one after it, and both as one.
        rarity: weight of a term that `n` events of the buffer have, `(count + 1,)`, in units of `1 / _UNIT`.
    """

    corners: Places
    links: Places
    steps: Places
    spans: Places
    sides: Places
    rarity: Floats


@lru_cache(maxsize=_CACHED_SIZES)
def _layout(count: int) -> _Layout:
    middle = np.arange(1, count)
    window = np.array(WINDOWS)[:, None]
    first, last = np.maximum(middle - window, 0), np.minimum(middle + window, count)
    middles = np.broadcast_to(middle, first.shape)
    pairs = ((middles, middles), (first, first), (last, last), (first, middles), (middles, last), (first, last))
    corners = np.array([row * (count + 1) + column for row, column in pairs])

    width = count + 2 * _REACH
    opening = middle + _REACH
    back = opening - np.arange(1, _REACH + 1)[:, None]
    ahead = opening + np.arange(1, _REACH)[:, None]
    links = np.concatenate((opening * width + back, (opening + 1) * width + back, opening * width + ahead))

    steps = np.arange(2 * len(WINDOWS) * (count - 1)).reshape(-1, count - 1)

    offsets = np.arange(_SPAN)
    spans = (np.arange(count + _REACH)[:, None] + offsets) * _SPAN + offsets[::-1]
    shared = np.array(_TERM_WINDOWS)[:, None]
    before, after = (opening - shared) * _SPAN, opening * _SPAN
    sides = np.array((before + shared - 1, after + shared - 1, before + 2 * shared - 1))
    rarity = np.rint(np.log1p(count / np.maximum(np.arange(count + 1), 1)) * _UNIT)
    return _Layout(corners, links, steps, spans, sides, rarity)


def _gram(events: Sequence[Event], vectors: NDArray[np.float32], shrinkage: float) -> Floats:
    """Inner products of the vectors less their speaker's (shrunken) mean, `(events, events)`."""
    places: dict[str, int] = {}
    speakers = np.array([places.setdefault(event.speaker, len(places)) for event in events])
    member = (speakers == np.arange(len(places))[:, None]).astype(np.float32)
    plain = np.asarray(vectors, dtype=np.float32)
    means = (member @ plain) / (member.sum(axis=1, keepdims=True) + np.float32(shrinkage))
    centred = plain - means.take(speakers, axis=0)
    gram: Floats = (centred @ centred.T).astype(np.float64)
    return gram


def _similarities(gram: Floats) -> Floats:
    """Cosines of the windows' sums, `(windows, gaps)`, from an integral image of the inner products."""
    count = len(gram)
    image = np.zeros((count + 1, count + 1))
    gram.cumsum(axis=0).cumsum(axis=1, out=image[1:, 1:])
    at_middle, at_first, at_last, first_middle, middle_last, first_last = image.take(_layout(count).corners)
    across = first_middle + middle_last - at_middle - first_last
    before = at_middle - 2 * first_middle + at_first
    after = at_last - 2 * middle_last + at_middle
    cosine = across / np.sqrt(np.maximum(before, _NO_LENGTH) * np.maximum(after, _NO_LENGTH))
    similarities: Floats = np.minimum(np.maximum(cosine, -1.0), 1.0)
    return similarities


def _depth(similarities: Floats) -> Floats:
    """How far each gap lies below the peaks on its left and right, mean over the windows, `(gaps,)`."""
    windows, gaps = similarities.shape
    heights = np.concatenate((similarities, similarities[:, ::-1]))
    # Climbing to the left from any place of a row ends where the last rise to the right ended that lies before it.
    peaks = _layout(gaps + 1).steps.copy()
    peaks[:, 1:][heights[:, :-1] >= heights[:, 1:]] = 0
    reached = heights.take(np.maximum.accumulate(peaks, axis=1))
    depth: Floats = np.add.reduce(reached[:windows] + reached[windows:, ::-1] - 2 * similarities) / windows
    return depth


def _links(gram: Floats) -> Floats:
    """Best cosines of single events across the gap and ahead of it, `(2, gaps)`."""
    count = len(gram)
    scale = 1.0 / np.sqrt(np.maximum(gram.diagonal(), _NO_LENGTH))
    cosine = np.full((count + 2 * _REACH, count + 2 * _REACH), -1.0)
    np.multiply(gram * scale, scale[:, None], out=cosine[_REACH:-_REACH, _REACH:-_REACH])
    found = cosine.take(_layout(count).links)
    links: Floats = np.maximum.reduceat(found, (0, 2 * _REACH))
    links[1, -1] = 0.0
    return links


def _shared_terms(terms: Sequence[tuple[int, ...]]) -> Floats:
    """Overlap of the terms on both sides of each gap, by rarity in the buffer, `(term windows, gaps)`.

    A term counts once in a span of events: where it is said for the first time, that is,
    was last said before the span began. So a table of the weight of terms, by event and
    by how many events ago each was last said, gives the weight of every span as sums along
    diagonals; what two spans share is what they weigh, less what they weigh together.
    The weights are whole numbers: their sums are exact, and no order of terms matters.
    """
    count = len(terms)
    layout = _layout(count)
    lengths = list(map(len, terms))
    said = np.fromiter(chain.from_iterable(terms), np.int64, sum(lengths))
    by_term = said.argsort(kind="stable")
    said = said.take(by_term)
    events = np.repeat(np.arange(_REACH, _REACH + count), lengths).take(by_term)
    again = said[1:] == said[:-1]

    numbers = np.zeros(len(said), dtype=np.intp)
    np.cumsum(~again, out=numbers[1:])
    weights = layout.rarity.take(np.bincount(numbers)).take(numbers)
    # Column 0: last said a whole span ago or never; the last column: by the event before.
    column = np.zeros(len(said), dtype=np.intp)
    np.copyto(column[1:], np.maximum(_SPAN - events[1:] + events[:-1], 0), where=again)
    table = np.bincount(events * _SPAN + column, weights, (_REACH + count + _SPAN) * _SPAN).reshape(-1, _SPAN)
    spans = table.cumsum(axis=1).take(layout.spans).cumsum(axis=1)
    before, after, together = spans.take(layout.sides)
    overlap: Floats = (before + after - together) / np.maximum(np.minimum(before, after), 1.0)
    return overlap
