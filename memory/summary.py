"""The extractive summarizer: a segment in its own words (GAM, §3.2, without an LLM).

A summary is one to three of the segment's utterances, one a line, each behind the
name of the one who said it, so that nobody's words become another's. Nothing in it
comes from elsewhere: no words, no other language.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from .dates import resolve_dates
from .entities import segment_entities, speaker_names, topic_entities
from .keywords import SegmentTerms, keywords
from .model import Event
from .proposal import SegmentNotes
from .words import Word, han_runs, words

CONFIDENCE = 0.7
"""Of every extraction. Below the 0.8 above which retrieval's confidence factor fires: no judgement was made."""

MAX_UTTERANCES = 3
MAX_COST = 72.0
"""Of a whole summary, in words; a Chinese character costs `HAN_COST` of a word, so about 160 fit."""

HAN_COST = 0.45
_CHARACTERS_PER_WORD = 12
_MAX_CAPTION_WORDS = 14
_MIN_CONTENT = 2
_HAN_CONTENT = 0.4
_RECURRING = {1: 1.0, 2: 1.5}
_OFTEN = 2.0
_REDUNDANT = 0.9
_CONTENT_WEIGHT = 0.7
_FIRST_WEIGHT = 0.1
_QUESTION_WEIGHT = -0.15
_REDUNDANCY_WEIGHT = 0.35
_TAKEN = -math.inf
_MAX_READ = 4000
_ASCII_END = re.compile(r"[.!?][.!?\"')\]]*\s+")
_ANY_END = re.compile(r"[.!?…][.!?…\"'”’)\]]*\s+|[。！？][。！？”’」]*\s*")
_QUESTION_ENDS = frozenset({"?", "？", "吗", "呢"})
_ELLIPSIS = "…"


class ExtractiveSummarizer:
    """Implements the port `Summarizer` by rules and the events' vectors."""

    @property
    def name(self) -> str:
        """What is recorded with each topic."""
        return "extractive/1"

    def notes(self, events: Sequence[Event], vectors: NDArray[np.float32]) -> SegmentNotes:
        """Summarise a segment in its own language.

        Args:
            events: at least one, none of them recalled, in event order.
            vectors: their embeddings, unit length, `(len(events), dimension)`.
        """
        texts = [event.text for event in events]
        said = [words(text) for text in texts]
        terms = SegmentTerms.of(
            [said[at] + _caption_words(event) if event.captions else said[at] for at, event in enumerate(events)],
            [han_runs(text) for text in texts],
        )
        names = speaker_names({event.speaker for event in events})
        entities = segment_entities(texts, said, names)
        dates = tuple([resolve_dates(event.text, event.time_us, event.utc_offset_minutes) for event in events])
        return SegmentNotes(
            summary=_summary(events, vectors, _content(terms)),
            keywords=keywords(terms, entities, names),
            entities=topic_entities(entities),
            dates=tuple(dict.fromkeys(chain.from_iterable(dates))),
            event_dates=dates,
            event_entities=entities,
            confidence=CONFIDENCE,
        )


def _caption_words(event: Event) -> list[Word]:
    return [word for caption in event.captions for word in words(caption)]


def _content(terms: SegmentTerms) -> list[float]:
    """How much each event says of what the segment is about: its terms, more for those that recur."""
    weights = {key: _RECURRING.get(count, _OFTEN) for key, count in terms.spread.items()}
    content = [sum(map(weights.__getitem__, keys)) for keys in terms.keys_by_event]
    for at, runs in enumerate(terms.runs_by_event):
        if runs:
            content[at] += _HAN_CONTENT * sum(map(len, runs))
    return content


def _summary(events: Sequence[Event], vectors: NDArray[np.float32], content: Sequence[float]) -> str:
    chosen = sorted(_central(events, vectors, content))
    left = MAX_COST
    lines: list[str] = []
    for place, at in enumerate(chosen):
        line, cost = _line(events[at], left / (len(chosen) - place))
        lines.append(line)
        left -= cost
    return "\n".join(lines)


def _central(events: Sequence[Event], vectors: NDArray[np.float32], content: Sequence[float]) -> list[int]:
    """Indices of the utterances that say most of the segment, with the question that a short answer needs."""
    most = max(content)
    telling = [at for at, told in enumerate(content) if told >= _MIN_CONTENT] or [content.index(most)]
    questions = [event.text[-1:] in _QUESTION_ENDS for event in events]
    similar = vectors @ vectors.T
    to_all = similar.sum(axis=1).tolist()
    norm = math.sqrt(max(sum(to_all), 1e-12))  # of the sum of all: a row's sum over it is the cosine to the centroid
    share = _CONTENT_WEIGHT / max(most, 1.0)
    worth = [_TAKEN] * len(events)
    for at in telling:
        worth[at] = to_all[at] / norm + share * content[at] + (_QUESTION_WEIGHT if questions[at] else 0.0)
    worth[telling[0]] += _FIRST_WEIGHT
    alike = [0.0] * len(events)
    chosen: list[int] = []
    while len(chosen) < MAX_UTTERANCES:
        scores = [each - _REDUNDANCY_WEIGHT * other for each, other in zip(worth, alike, strict=True)]
        best = scores.index(max(scores))
        if worth[best] == _TAKEN:
            break
        chosen.append(best)
        alike = list(map(max, alike, similar[best].tolist()))
        worth = [each if other < _REDUNDANT else _TAKEN for each, other in zip(worth, alike, strict=True)]
        worth[best] = _TAKEN
    return _with_answer(events, chosen, questions)


def _with_answer(events: Sequence[Event], chosen: list[int], questions: Sequence[bool]) -> list[int]:
    """Add the answer to a chosen question, since a short one never says enough to be chosen itself."""
    for at in chosen:
        answer = at + 1
        if (
            len(chosen) < MAX_UTTERANCES
            and questions[at]
            and answer < len(events)
            and answer not in chosen
            and events[answer].speaker != events[at].speaker
        ):
            return [*chosen, answer]
    return chosen


def _line(event: Event, limit: float) -> tuple[str, float]:
    """`speaker: sentences [image: caption]` within a cost, and what it cost."""
    text = " ".join(event.text.split())
    caption = " ".join(f"[image: {_first_words(caption)}]" for caption in event.captions[:2])
    caption_cost = _cost(caption) if caption else 0.0
    cost = _cost(text)
    if cost + caption_cost > limit:
        text, cost = _shorten(text, max(limit - caption_cost, limit / 2))
    line = f"{event.speaker}: {text} {caption}" if caption else f"{event.speaker}: {text}"
    return line, cost + caption_cost


def _first_words(caption: str) -> str:
    shown = " ".join(caption.split()[:_MAX_CAPTION_WORDS])[: _MAX_CAPTION_WORDS * _CHARACTERS_PER_WORD]
    return shown if len(shown) == len(caption) else f"{shown} {_ELLIPSIS}"


def _cost(text: str) -> float:
    """Words of a text, where a Chinese character counts less and an over-long word more."""
    if text.isascii():
        return max(text.count(" ") + 1.0, len(text) / _CHARACTERS_PER_WORD)
    han = sum(map(len, han_runs(text)))
    return max(text.count(" ") + 1.0, (len(text) - han) / _CHARACTERS_PER_WORD) + HAN_COST * han


def _shorten(text: str, limit: float) -> tuple[str, float]:
    """Whole sentences of a text within a cost, the idle ones at its beginning left out; … where any is missing."""
    sentences = _sentences(text[:_MAX_READ])
    first = next((at for at, sentence in enumerate(sentences) if _is_telling(sentence)), 0)
    kept: list[str] = []
    cost = 0.0
    for sentence in sentences[first:]:
        more = _cost(sentence)
        if cost + more > limit:
            break
        kept.append(sentence)
        cost += more
    if kept:
        return f"{('' if han_runs(kept[0]) else ' ').join(kept)} {_ELLIPSIS}", cost
    return _cut(sentences[first], limit)


def _sentences(text: str) -> list[str]:
    ends = [match.end() for match in (_ASCII_END if text.isascii() else _ANY_END).finditer(text)]
    bounds = [0, *(end for end in ends if end < len(text)), len(text)]
    return [text[begin:end].rstrip() for begin, end in pairwise(bounds)]


def _is_telling(sentence: str) -> bool:
    return any(word.key for word in words(sentence)) or len("".join(han_runs(sentence))) > 3


def _cut(sentence: str, limit: float) -> tuple[str, float]:
    """The beginning of one over-long sentence, at a space or after a Chinese character."""
    kept: list[str] = []
    cost = 0.0
    for part in sentence.split():
        more = _cost(part)
        if cost + more > limit:
            if not kept or han_runs(part):
                kept.append(part[: int((limit - cost) / more * len(part))])
            break
        kept.append(part)
        cost += more
    return " ".join(kept) + _ELLIPSIS, limit
