"""Keywords of a segment, unsupervised, in the words of the dialogue itself.

A term weighs by how often and in how many turns it is said, whether it is a name,
and its length; two words that recur together become one phrase. Chinese is cut at
words that say nothing, and runs of two to four characters count where they recur
and are not always continued by the same character.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import chain, pairwise
from typing import NamedTuple

from .entities import is_talked_about
from .text import stem
from .words import PAUSE, Word, han_pieces

MAX_KEYWORDS = 8

_NAME_WEIGHT = 1.6
_PHRASE_WEIGHT = 1.9
_SPREAD_WEIGHT = 0.15
_MAX_SPREAD = 4
_MIN_TALKED_ABOUT = 2
_MAX_HAN_PIECE = 6
_SINGLES_CONSIDERED = 3 * MAX_KEYWORDS


class SegmentTerms(NamedTuple):
    """The words of a segment, counted once for all who need them.

    Attributes:
        words_by_event: words of each event, captions included.
        keys_by_event: the distinct keys among them.
        spread: in how many events each key stands.
        runs_by_event: each event's runs of Chinese characters (`han_runs`).
    """

    words_by_event: Sequence[Sequence[Word]]
    keys_by_event: Sequence[Set[str]]
    spread: Mapping[str, int]
    runs_by_event: Sequence[Sequence[str]]

    @classmethod
    def of(cls, words_by_event: Sequence[Sequence[Word]], runs_by_event: Sequence[Sequence[str]]) -> SegmentTerms:
        """Count the terms of a segment."""
        keys = [{word.key for word in words} for words in words_by_event]
        for found in keys:
            found.discard("")
        return cls(words_by_event, keys, Counter(chain.from_iterable(keys)), runs_by_event)


class _Candidate(NamedTuple):
    weight: float
    text: str
    keys: frozenset[str]


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
    candidates.sort(key=lambda candidate: -candidate.weight)  # stable: ties in order of the dialogue
    chosen: list[str] = []
    used: set[str] = set()
    for candidate in candidates:
        if candidate.keys <= used or _overlaps(candidate, chosen):
            continue
        chosen.append(candidate.text)
        used |= candidate.keys
        if len(chosen) == MAX_KEYWORDS:
            break
    return tuple(chosen)


def _overlaps(candidate: _Candidate, chosen: Iterable[str]) -> bool:
    """Whether a Chinese term lies in a chosen one, or the other way round."""
    text = candidate.text
    return not text.isascii() and any(text in other or other in text for other in chosen)


def _called_only(flat: Sequence[Word], keys: Sequence[str], known: Set[str], names: frozenset[str]) -> frozenset[str]:
    """Keys of those names of speakers that are not talked about at least twice."""
    present = known & {stem(name) for name in names}
    if not present:
        return frozenset()
    places = [at for at, key in enumerate(keys) if key in present]
    counts = Counter(keys[at] for at in places if is_talked_about(flat, at))
    return frozenset(key for key in present if counts[key] < _MIN_TALKED_ABOUT)


def _words(
    terms: SegmentTerms, entities_by_event: Sequence[tuple[str, ...]], names: frozenset[str]
) -> list[_Candidate]:
    flat = [word for words in terms.words_by_event for word in (*words, PAUSE)]
    keys = [word.key for word in flat]
    counts = Counter(keys)
    forms = dict(zip(reversed(keys), reversed(flat), strict=True))
    for idle in ("", *_called_only(flat, keys, counts.keys(), names)):
        counts.pop(idle, None)
        forms.pop(idle, None)
    again = {key for key, count in counts.items() if count > 1}
    pairs = Counter(
        [
            pair
            for pair, word in zip(pairwise(keys), flat, strict=False)
            if pair[0] in again and pair[1] in again and not word.breaks
        ]
    )
    known = Counter(entity for entities in entities_by_event for entity in entities)
    parts = {part for entity in known for part in entity.split()}
    singles = [
        (
            -count
            * (1 + _SPREAD_WEIGHT * (min(terms.spread[key], _MAX_SPREAD) - 1))
            * (2 * _NAME_WEIGHT if forms[key].surface in parts else forms[key].weight),
            at,
            key,
        )
        for at, (key, count) in enumerate(counts.items())
    ]
    singles.sort()
    return [
        *_phrases(pairs, forms),
        *_long_names(known, forms),
        *(
            _Candidate(-weight, forms[key].surface, frozenset((key,)))
            for weight, _, key in singles[:_SINGLES_CONSIDERED]
        ),
    ]


def _phrases(pairs: Mapping[tuple[str, str], int], forms: Mapping[str, Word]) -> list[_Candidate]:
    return [
        _Candidate(
            _PHRASE_WEIGHT * count * (forms[first].weight + forms[second].weight) / 2,
            f"{forms[first].surface} {forms[second].surface}",
            frozenset((first, second)),
        )
        for (first, second), count in pairs.items()
        if count > 1 and first != second
    ]


def _long_names(known: Mapping[str, int], forms: Mapping[str, Word]) -> list[_Candidate]:
    names = [(name, count) for name, count in known.items() if " " in name]
    if not names:
        return []
    keys = {word.surface: key for key, word in forms.items()}
    return [
        _Candidate(
            _PHRASE_WEIGHT * _NAME_WEIGHT * 2 * count, name, frozenset(keys.get(part, part) for part in name.split())
        )
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
    return [_Candidate(count * (1 + min(len(term), 4) / 4), term, frozenset((term,))) for term, count in terms.items()]
