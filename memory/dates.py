"""The days that a text means: "yesterday", "last Friday", "3 May 2023", 上周五.

A grammar of our own, in English and Chinese. It prefers silence to a guess: a
date that was never meant misleads every question of "when".
"""

from __future__ import annotations

from datetime import date
from functools import lru_cache
from operator import itemgetter

from . import dates_chinese, dates_english
from .day_spans import Span
from .model import ResolvedDate
from .words import plain_words

_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_LAST_ORDINAL = date.max.toordinal()
_MAX_FOUND = 64
"""Expressions read in one text: a page of dates is a list, not a memory."""

_DAY_US = 86_400_000_000
_MINUTE_US = 60_000_000
_ASCII_LOWER = {code: code + 0x20 for code in range(0x41, 0x5B)}


def resolve_dates(text: str, time_us: int, utc_offset_minutes: int | None = None) -> tuple[ResolvedDate, ...]:
    """Return the time expressions of a text, in order, with the days they mean.

    Days are those of the speaker: of `time_us` shifted by `utc_offset_minutes`, or
    UTC days if it is None. An expression that names no day of the years 1 to 9999 is
    left out. Of overlapping expressions the longest is kept.
    """
    words = plain_words(text)
    english = not dates_english.TRIGGERS.isdisjoint(words)
    chinese = not text.isascii() and dates_chinese.TRIGGER.search(text) is not None
    if not (english or chinese):
        return ()
    today = (time_us + (utc_offset_minutes or 0) * _MINUTE_US) // _DAY_US + _EPOCH_ORDINAL
    if not 1 <= today <= _LAST_ORDINAL:  # the offset led out of the calendar
        return ()
    found: list[tuple[int, int, Span | None]] = []
    if english:
        lower = text.lower()
        if len(lower) != len(text):  # "İ" grows: positions would no longer be those of the text
            lower = text.translate(_ASCII_LOWER)
        found += dates_english.find(text, lower, words, today)
    if chinese:
        found += dates_chinese.find(text, today)
    if not found:
        return ()
    return tuple(
        ResolvedDate(text[start:end], _iso(first), _iso(last))
        for start, end, (first, last) in (_longest(found) if len(found) > 1 else _meaningful(found))
    )


@lru_cache(maxsize=4096)
def _iso(ordinal: int) -> str:
    return date.fromordinal(ordinal).isoformat()


def _longest(found: list[tuple[int, int, Span | None]]) -> list[tuple[int, int, Span]]:
    """Without overlaps, longest first, and without those that mean no day; in order of the text."""
    kept: list[tuple[int, int, Span | None]] = []
    if len(found) > _MAX_FOUND:
        found = sorted(found, key=itemgetter(0))[:_MAX_FOUND]
    for entry in sorted(found, key=lambda entry: (entry[0] - entry[1], entry[0])):
        start, end, _ = entry
        if all(end <= other[0] or start >= other[1] for other in kept):
            kept.append(entry)
    return sorted(_meaningful(kept))


def _meaningful(found: list[tuple[int, int, Span | None]]) -> list[tuple[int, int, Span]]:
    return [
        (start, end, span)
        for start, end, span in found
        if span is not None and 1 <= span[0] <= span[1] <= _LAST_ORDINAL
    ]
