"""Keywords of a segment, unsupervised, in the words of the dialogue itself.

A term weighs by how often and in how many turns it is said, whether it is a name,
and its length; two words that recur together become one phrase. Chinese is cut at
words that say nothing, and runs of two to four characters count where they recur
and are not always continued by the same character.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from .entities import is_talked_about
from .words import PAUSE, Word, han_pieces

MAX_KEYWORDS = 8

_NAME_WEIGHT = 1.6
_PHRASE_WEIGHT = 1.9
_SPREAD_WEIGHT = 0.15
_MAX_SPREAD = 4
_MIN_TALKED_ABOUT = 2
_MAX_HAN_PIECE = 6
_SINGLES_CONSIDERED = 3 * MAX_KEYWORDS


class _Candidate(NamedTuple):
    weight: float
    text: str
    keys: frozenset[str]


def keywords(
    words_by_event: Sequence[Sequence[Word]],
    runs_by_event: Sequence[Sequence[str]],
    entities_by_event: Sequence[tuple[str, ...]],
    names: frozenset[str],
) -> tuple[str, ...]:
    """Return at most `MAX_KEYWORDS` terms, best first, none a near duplicate of another.

    Args:
        words_by_event: words of each event, captions included.
        runs_by_event: its runs of Chinese characters (`han_runs`).
        entities_by_event: its names.
        names: the speakers' names; one alone is a keyword only if it is talked about.
    """
    candidates = _words(words_by_event, entities_by_event, names)
    if any(runs_by_event):
        candidates += _han(runs_by_event)
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


def _called_only(flat: Sequence[Word], names: frozenset[str]) -> frozenset[str]:
    """Those names of speakers that are not talked about at least twice."""
    counts = Counter(word.folded for at, word in enumerate(flat) if word.folded in names and is_talked_about(flat, at))
    return frozenset(name for name in names if counts[name] < _MIN_TALKED_ABOUT)


def _words(
    words_by_event: Sequence[Sequence[Word]], entities_by_event: Sequence[tuple[str, ...]], names: frozenset[str]
) -> list[_Candidate]:
    flat = [word for words in words_by_event for word in (*words, PAUSE)]
    idle = _called_only(flat, names)
    content = [word for word in flat if word.key and word.folded not in idle]
    counts = Counter([word.key for word in content])
    forms = {word.key: word for word in reversed(content)}
    spread = Counter([key for words in words_by_event for key in {word.key for word in words}])
    pairs = Counter(
        [(first.key, second.key) for first, second in pairwise(flat) if first.key and second.key and not first.breaks]
    )
    known = Counter(entity for entities in entities_by_event for entity in entities)
    parts = {part for entity in known for part in entity.split()}
    singles = [
        (
            -count
            * (1 + _SPREAD_WEIGHT * (min(spread[key], _MAX_SPREAD) - 1))
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
        if count > 1 and first != second and first in forms and second in forms
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
