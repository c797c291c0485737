"""Keywords of a segment, unsupervised, in the words of the dialogue itself.

A term weighs by how often and in how many turns it is said, whether it is a name,
and its length; two words that recur together become one phrase. Chinese is cut at
words that say nothing, and runs of two to four characters count where they recur
and are not always continued by the same character.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

from .entities import is_talked_about
from .text import stem
from .words import PAUSE, Word, han_pieces

MAX_KEYWORDS = 8

_NAME_WEIGHT = 1.6
_PHRASE_WEIGHT = 1.9
_SPREAD_WEIGHT = 0.15
_MAX_SPREAD = 4
_SPREAD_FACTORS = {spread: 1 + _SPREAD_WEIGHT * (spread - 1) for spread in range(1, _MAX_SPREAD + 1)}
_MIN_TALKED_ABOUT = 2
_MAX_HAN_PIECE = 6
_SINGLES_CONSIDERED = 3 * MAX_KEYWORDS


class SegmentTerms(NamedTuple):
    """The words of a segment, counted once for all who need them.

    Attributes:
        words: words of all events, captions included, a `PAUSE` after each event.
        keys: the key of each of them.
        keys_by_event: the distinct keys of each event.
        spread: in how many events each key stands.
        runs_by_event: each event's runs of Chinese characters (`han_runs`).
    """

    words: Sequence[Word]
    keys: Sequence[str]
    keys_by_event: Sequence[Set[str]]
    spread: Mapping[str, int]
    runs_by_event: Sequence[Sequence[str]]

    @classmethod
    def of(cls, words_by_event: Sequence[Sequence[Word]], runs_by_event: Sequence[Sequence[str]]) -> SegmentTerms:
        """Count the terms of a segment."""
        flat: list[Word] = []
        for words in words_by_event:
            flat += words
            flat.append(PAUSE)
        keys = [word.key for word in flat]
        distinct: list[Set[str]] = []
        begin = 0
        for words in words_by_event:
            end = begin + len(words)
            found = set(keys[begin:end])
            found.discard("")
            distinct.append(found)
            begin = end + 1
        return cls(flat, keys, distinct, Counter(chain.from_iterable(distinct)), runs_by_event)


_Candidate = tuple[float, str, tuple[str, ...]]
"""Weight, term and the keys that it covers: a plain tuple, since a segment makes dozens and keeps eight."""

_weight = itemgetter(0)


def keywords(
    terms: SegmentTerms, entities_by_event: Sequence[tuple[str, ...]], names: frozenset[str]
) -> tuple[str, ...]:
    """Return at most `MAX_KEYWORDS` terms, best first, none a near duplicate of another.

    Args:
        terms: the segment's words.
        entities_by_event: its names.
        names: the speakers' names; one alone is a keyword only if it is talked about.
    """
    candidates = _words(terms, entities_by_event, names)
    if any(terms.runs_by_event):
        candidates += _han(terms.runs_by_event)
    candidates.sort(key=_weight, reverse=True)  # stable: ties in order of the dialogue
    chosen: list[str] = []
    used: set[str] = set()
    for _, text, keys in candidates:
        if used.issuperset(keys) or _overlaps(text, chosen):
            continue
        chosen.append(text)
        used.update(keys)
        if len(chosen) == MAX_KEYWORDS:
            break
    return tuple(chosen)


def _overlaps(text: str, chosen: Iterable[str]) -> bool:
    """Whether a Chinese term lies in a chosen one, or the other way round."""
    return not text.isascii() and any(text in other or other in text for other in chosen)


@lru_cache(maxsize=4096)
def _name_keys(names: frozenset[str]) -> frozenset[str]:
    return frozenset(map(stem, names))


def _called_only(terms: SegmentTerms, known: Set[str], names: frozenset[str]) -> Set[str]:
    """Keys of those names of speakers that are not talked about at least twice."""
    present = known & _name_keys(names)
    if not present:
        return present
    places = [at for at, key in enumerate(terms.keys) if key in present]
    counts = Counter(terms.keys[at] for at in places if is_talked_about(terms.words, at))
    return frozenset(key for key in present if counts[key] < _MIN_TALKED_ABOUT)


def _words(
    terms: SegmentTerms, entities_by_event: Sequence[tuple[str, ...]], names: frozenset[str]
) -> list[_Candidate]:
    keys = terms.keys
    counts = Counter(keys)
    forms = dict(zip(reversed(keys), reversed(terms.words), strict=True))
    for idle in ("", *_called_only(terms, counts.keys(), names)):
        counts.pop(idle, None)
        forms.pop(idle, None)
    pairs = Counter(
        [
            (first, second)
            for first, second, word in zip(keys, keys[1:], terms.words, strict=False)
            if first and second and not word.breaks
        ]
    )
    known = Counter(chain.from_iterable(entities_by_event))
    parts = {part for entity in known for part in entity.split()}
    most = _SPREAD_FACTORS[_MAX_SPREAD]
    singles: list[_Candidate] = []
    for key, count in counts.items():
        form = forms[key]
        value = 2 * _NAME_WEIGHT if form.surface in parts else form.weight
        singles.append((count * _SPREAD_FACTORS.get(terms.spread[key], most) * value, form.surface, (key,)))
    singles.sort(key=_weight, reverse=True)
    return [*_phrases(pairs, forms), *_long_names(known, forms), *singles[:_SINGLES_CONSIDERED]]


def _phrases(pairs: Mapping[tuple[str, str], int], forms: Mapping[str, Word]) -> list[_Candidate]:
    return [
        (
            _PHRASE_WEIGHT * count * (forms[first].weight + forms[second].weight) / 2,
            f"{forms[first].surface} {forms[second].surface}",
            (first, second),
        )
        for (first, second), count in pairs.items()
        if count > 1 and first != second and first in forms and second in forms
    ]


def _long_names(known: Mapping[str, int], forms: Mapping[str, Word]) -> list[_Candidate]:
    names = [(name, count) for name, count in known.items() if " " in name]
    if not names:
        return []
    keys = {word.surface: key for key, word in forms.items()}
    return [
        (_PHRASE_WEIGHT * _NAME_WEIGHT * 2 * count, name, tuple(keys.get(part, part) for part in name.split()))
        for name, count in names
    ]


def _han(runs_by_event: Sequence[Sequence[str]]) -> list[_Candidate]:
    pieces: Counter[str] = Counter()
    grams: Counter[str] = Counter()
    for runs in runs_by_event:
        for run in runs:
            found = han_pieces(run)
            pieces.update(found)
            for piece in found:
                for length in (2, 3, 4):
                    grams.update([piece[at : at + length] for at in range(len(piece) - length + 1)])
    continued = {
        part: count
        for gram, count in grams.items()
        for part in (gram[1:], gram[:-1])
        if count > 1 and count == grams.get(part)
    }
    terms = {piece: count for piece, count in pieces.items() if len(piece) <= _MAX_HAN_PIECE}
    terms |= {gram: count for gram, count in grams.items() if count > 1 and gram not in continued}
    return [(count * (1 + min(len(term), 4) / 4), term, (term,)) for term, count in terms.items()]
