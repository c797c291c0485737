"""Names in a text: people, places, organisations, titles, and the ids and paths of agents.

By capitals, quotes and patterns, without a model. A capital at the beginning of a
sentence proves nothing: such a word counts only if it stands inside a sentence
elsewhere in the segment, or begins a longer name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import compress, pairwise

from .stopwords import GREETINGS
from .words import Word, han_pieces, han_runs

MAX_EVENT_ENTITIES = 8
MAX_TOPIC_ENTITIES = 12

_CONNECTORS = frozenset({"of", "de", "la", "da", "do", "del", "van", "von"})
_MAX_SHOUT = 6
_MAX_NAME = 64
_MAX_NAME_WORDS = 6
_SENTENCE_OPENERS = ("ed", "ing", "ly")
_QUOTED = re.compile(r"[\"“]([A-Z][^\"”“\n]{1,58}[^\"”“\n.,!?])[\"”]|《([^》\n]{1,30})》|「([^」\n]{1,30})」")
_QUOTES = ('"', "“", "《", "「")
_HAN_NAME = re.compile(
    r".{1,8}?(?:大学|学院|中学|小学|公司|集团|银行|医院|博物馆|图书馆|公园|广场|机场|车站|餐厅|酒店|大厦|先生|女士|老师|教授|医生)"
    r"|.{2,4}[市省县区镇村州岛寺湖]"
)
_HAN_COMMON = ("城市", "地区", "小区", "社区", "超市")


def speaker_names(speakers: Iterable[str]) -> frozenset[str]:
    """Lower-case words of the speakers' names, and short forms of them (Mel for Melanie)."""
    return frozenset().union(*map(_name_forms, speakers))


@lru_cache(maxsize=4096)
def _name_forms(speaker: str) -> frozenset[str]:
    parts = speaker[:_MAX_NAME].lower().split()
    return frozenset(part[:length] for part in parts for length in range(2, len(part) + 1)) | frozenset(parts)


def segment_entities(
    texts: Sequence[str], words_by_event: Sequence[Sequence[Word]], names: frozenset[str]
) -> tuple[tuple[str, ...], ...]:
    """Names in each event of a segment; see `event_entities`."""
    notable = [any([word.capital or word.identifier for word in words]) for words in words_by_event]
    established = named_in_sentences(compress(words_by_event, notable))
    return tuple(
        [
            event_entities(text, words, established, names) if named or '"' in text or not text.isascii() else ()
            for text, words, named in zip(texts, words_by_event, notable, strict=True)
        ]
    )


def named_in_sentences(words_by_event: Iterable[Sequence[Word]]) -> frozenset[str]:
    """Lower-case words that stand with a capital inside a sentence."""
    return frozenset(
        [
            word.folded
            for words in words_by_event
            for before, word in pairwise(words)
            if word.capital and not before.ends
        ]
    )


def is_talked_about(words: Sequence[Word], at: int) -> bool:
    """Whether the name at that place is spoken of and not called ("Thanks, Mel!")."""
    if at == 0 or words[at].breaks:
        return False
    before = words[at - 1]
    return not before.breaks and before.folded not in GREETINGS


def event_entities(
    text: str, words: Sequence[Word], established: frozenset[str], names: frozenset[str]
) -> tuple[str, ...]:
    """Names in one event, in order, each once; at most `MAX_EVENT_ENTITIES`.

    Args:
        text: the event's text.
        words: its words.
        established: words known as names, by `named_in_sentences` of the segment.
        names: `speaker_names`; a speaker who is only called is left out.
    """
    found: list[str] = []
    if not text.isupper():
        found += _capitalised(words, established, names)
    if '"' in text or (not text.isascii() and any(mark in text for mark in _QUOTES)):
        titles = [next(filter(None, groups)) for groups in _QUOTED.findall(text)]
        found = [name for name in found if not any(name in title for title in titles)] + titles
    if not text.isascii():
        found += _han_names(text)
    return tuple(dict.fromkeys(found))[:MAX_EVENT_ENTITIES] if found else ()


def _han_names(text: str) -> list[str]:
    return [
        piece
        for run in han_runs(text)
        for piece in han_pieces(run)
        if _HAN_NAME.fullmatch(piece) is not None and not piece.endswith(_HAN_COMMON)
    ]


def topic_entities(by_event: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """The names of a segment, most frequent first; at most `MAX_TOPIC_ENTITIES`."""
    counts = Counter(entity for entities in by_event for entity in entities)
    return tuple(entity for entity, _ in counts.most_common(MAX_TOPIC_ENTITIES))


def _capitalised(words: Sequence[Word], established: frozenset[str], names: frozenset[str]) -> list[str]:
    found: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        if word.identifier:
            found.append(word.surface)
            at += 1
        elif word.capital:
            stop = _run_end(words, at)
            first = at
            opens = (at == 0 or words[at - 1].ends) and word.folded not in established
            if opens and (stop - at == 1 or _only_opens(word, words[at + 1], names)):
                first += 1
            if first < stop and not _is_idle(words, first, stop, names):
                found.append(" ".join([part.surface for part in words[first:stop]]))
            at = stop
        else:
            at += 1
    return found


def _only_opens(word: Word, after: Word, names: frozenset[str]) -> bool:
    """Whether a capital before a name is that of the sentence: "Woohoo Mel", "Visited Paris"."""
    return after.folded in names or word.folded.endswith(_SENTENCE_OPENERS)


def _run_end(words: Sequence[Word], at: int) -> int:
    """Where the name that begins at `at` ends: capitals, and "of" or "de" between capitals."""
    stop = at + 1
    while stop < len(words) and stop - at < _MAX_NAME_WORDS and not words[stop - 1].breaks:
        if words[stop].capital:
            stop += 1
        elif words[stop].folded in _CONNECTORS and stop + 1 < len(words) and words[stop + 1].capital:
            stop += 2
        else:
            break
    return stop


def _is_idle(words: Sequence[Word], first: int, stop: int, names: frozenset[str]) -> bool:
    if stop - first > 1:
        return False
    word = words[first]
    if word.folded in names:
        return not is_talked_about(words, first)
    return len(word.surface) < 2 or (word.surface.isupper() and len(word.surface) > _MAX_SHOUT)
