"""English time expressions: one guarded grammar, read on lower-cased text.

A word is read as a date only where the words around it say so: "we may march"
holds none, "in March" does. What remains open ("on Friday", "in May") is settled
by the tense of its sentence, else by nearness.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

from . import day_spans as spans
from .day_spans import Span

_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july"),
    *("august", "september", "october", "november", "december"),
)
_MONTH_NUMBERS = {name: number for number, name in enumerate(_MONTHS, 1)}
_MONTH_NUMBERS |= {name[:3]: number for number, name in enumerate(_MONTHS, 1)} | {"sept": 9}
_ALSO_WORDS = frozenset({"march", "may", "mar", "jan", "jun"})
_BARE_MONTHS = frozenset({"january", "february", "july", "september", "october", "november", "december"})
_NUMBERS = {
    name: number
    for number, name in enumerate(
        ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"), 1
    )
} | {"a": 1, "an": 1, "couple": 2}
_FEW = (2, 4)

_WEEKDAY = "|".join(_WEEKDAYS)
_MONTH = "|".join(_MONTHS)
_ANY_MONTH = f"{_MONTH}|jan|feb|mar|apr|jun|jul|aug|sept|sep|oct|nov|dec"
_NUMBER = rf"[0-9]{{1,3}}|(?:an?\ )?(?:couple|few)(?:\ of)?|an?|{'|'.join(name for name in _NUMBERS if len(name) > 2)}"
_SEASONS = ("spring", "summer", "autumn", "fall", "winter")
_SEASON = "|".join(_SEASONS)
_UNIT = "day|week|month|year"
_NOT_COUNTED = (
    r"(?![0-9:%]|[.,][0-9]|\s(?:days|weeks|months|years|hours|minutes|people|times|meters|metres|miles|km|kg|steps"
    r"|dollars|euros|points|words|pieces|calories|of\sthem|more)\b)"
)
_LAST_NEXT = "last|next|this\\ past|this\\ last|this\\ coming|this\\ next|the\\ past|the\\ coming|this"

_FUTURE = re.compile(
    r"\b(?:will|gonna|going to|plan|plans|planning|hope|hoping|let's|looking forward|upcoming|(?:see|meet|catch) you)\b|['’]ll\b"
)
_PAST = re.compile(
    r"\b(?:was|were|did|didn['’]t|went|had|got|took|saw|came|made|met|found|bought|ate|gave|told|said|won|lost|spent"
    r"|left|felt|began|ran|wrote|read|\w{2,}ed)\b"
)
_SENTENCE_REACH = 200
_SENTENCE_END = re.compile(r"[.!?\n]")


class Rule(NamedTuple):
    """One kind of expression: words of which it holds at least one per set, its pattern, what it means."""

    needs: tuple[frozenset[bytes], ...]
    pattern: re.Pattern[str]
    read: Callable[[re.Match[str], str, int], Span | None]


def find(text: str, lower: str, words: Iterable[bytes], today: int) -> list[tuple[int, int, Span | None]]:
    """Return `(start, end, days)` of each expression; they may overlap.

    Days are None where the words mean no day ("30 February", "we may 3").

    Args:
        text: the text itself, for its capitals.
        lower: the same text in lower case, of the same length.
        words: its words, lower case, each digit written as 0.
        today: the speaker's day, as an ordinal.
    """
    found: list[tuple[int, int, Span | None]] = []
    for _, pattern, read in _applicable(_NEEDED.intersection(words)):
        for match in pattern.finditer(lower):
            try:
                span = read(match, text, today)
            except (ValueError, OverflowError):  # 30 February, the year 10000
                span = None
            found.append((match.start(), match.end(), span))
    return found


@lru_cache(maxsize=4096)
def _applicable(held: frozenset[bytes]) -> tuple[Rule, ...]:
    """The rules whose words a text holds, in order; most texts with a time word hold one of a few sets of them."""
    return tuple(rule for rule in _RULES if not any(need.isdisjoint(held) for need in rule.needs))


def _amount(word: str) -> tuple[int, int]:
    if word[0].isdigit():
        return int(word), int(word)
    if "few" in word:
        return _FEW
    if "couple" in word:
        return 2, 2
    return _NUMBERS[word], _NUMBERS[word]


def _direction(match: re.Match[str]) -> int:
    """Whether the sentence around an expression speaks of the future (1), the past (-1) or neither (0)."""
    text = match.string
    start, end = match.span()
    before = max(0, start - _SENTENCE_REACH)
    begin = max(text.rfind(mark, before, start) for mark in ".!?\n") + 1 or before
    stop = _SENTENCE_END.search(text, end, end + _SENTENCE_REACH)
    sentence = text[begin : stop.start() if stop else end + _SENTENCE_REACH]
    return (_FUTURE.search(sentence) is not None) - (_PAST.search(sentence) is not None)


def _near(match: re.Match[str], _text: str, today: int) -> Span:
    words = match.group()
    if "before yesterday" in words:
        return spans.single(today - 2)
    if "after tomorrow" in words:
        return spans.single(today + 2)
    if words == "yesterday" or words.startswith("last"):
        return spans.single(today - 1)
    return spans.single(today + (words == "tomorrow"))


def _ago(match: re.Match[str], _text: str, today: int) -> Span:
    number, unit, side = match.groups("")
    return spans.ago(today, _amount(number), unit, -1 if side == "ago" else 1)


def _rolling(match: re.Match[str], _text: str, today: int) -> Span:
    side, number, unit = match.groups("")
    return spans.rolling(today, _amount(number)[1], unit, -1 if side in ("last", "past") else 1)


def _past(match: re.Match[str], _text: str, today: int) -> Span:
    return spans.rolling(today, 1, match.group(1), -1)


def _ahead(match: re.Match[str], _text: str, today: int) -> Span | None:
    number, unit = match.groups("")
    if _direction(match) < 0:  # "I read it in two days": how long it took
        return None
    return spans.ago(today, _amount(number), unit, 1)


def _offset(match: re.Match[str], _text: str, today: int) -> Span:
    side, unit = match.groups("")
    offset = 1 if side.endswith(("next", "coming")) else -1 if side != "this" else 0
    if unit in _WEEKDAYS:
        number = _WEEKDAYS.index(unit)
        if offset < 0:
            return spans.weekday_before(today, number)
        return spans.weekday_from(today, number) if "coming" in side else spans.weekday(today, number, offset)
    if unit in _SEASONS:
        return spans.season_near(today, unit, offset)
    if unit == "weekend" and "coming" in side:
        offset = 0
    return spans.calendar_offset(today, unit, offset)


def _weekend(match: re.Match[str], _text: str, today: int) -> Span:
    direction = _direction(match)
    saturday, sunday = spans.weekend(today, 0)
    if direction > 0 or today >= saturday or (direction == 0 and today + 2 >= saturday):
        return saturday, sunday
    return spans.weekend(today, -1)


def _weekday(match: re.Match[str], _text: str, today: int) -> Span:
    preposition, name = match.groups("")
    return _open_weekday(match, name, today, {"since": -1, "until": 1, "till": 1, "by": 1}.get(preposition))


def _part(match: re.Match[str], _text: str, today: int) -> Span:
    return _open_weekday(match, match.group(1), today, None)


def _open_weekday(match: re.Match[str], name: str, today: int, side: int | None) -> Span:
    number = _WEEKDAYS.index(name)
    direction = _direction(match) if side is None else side
    if direction < 0:
        return spans.weekday_before(today, number)
    return spans.weekday_from(today, number) if direction > 0 else spans.weekday_nearest(today, number)


def _iso(match: re.Match[str], _text: str, _today: int) -> Span:
    year, _, month, number = match.groups("")
    return spans.day(int(year), int(month), int(number))


def _month_day(match: re.Match[str], text: str, today: int) -> Span | None:
    name, number, ordinal, last, year = match.groups("")
    if name in _ALSO_WORDS and not (ordinal or year) and not text[match.start()].isupper():
        return None  # "we may 3 at a time come"
    first = _calendar_day(match, name, number, year, today)
    if not last:
        return first
    return first[0], max(first[0], first[0] + int(last) - int(number))


def _day_month(match: re.Match[str], text: str, today: int) -> Span | None:
    number, ordinal, of, name, year = match.groups("")
    if name in _ALSO_WORDS and not (ordinal or year or of) and not text[match.start(4)].isupper():
        return None  # "all 3 may come"
    return _calendar_day(match, name, number, year, today)


def _calendar_day(match: re.Match[str], name: str, number: str, year: str | None, today: int) -> Span:
    if year:
        return spans.day(int(year), _MONTH_NUMBERS[name], int(number))
    return spans.day_near(today, _MONTH_NUMBERS[name], int(number), _direction(match))


def _month_year(match: re.Match[str], _text: str, _today: int) -> Span:
    name, year = match.groups("")
    return spans.months(int(year) * 12 + _MONTH_NUMBERS[name] - 1)


def _month(match: re.Match[str], text: str, today: int) -> Span | None:
    preposition, name = match.groups("")
    if preposition == "this" and name == "may" and text[match.end() - 3] != "M":  # "this may help"
        return None
    number = _MONTH_NUMBERS[name]
    here = spans.month_count(today)
    if preposition == "this":
        return spans.months(here - here % 12 + number - 1)
    if preposition in ("last", "this past"):
        return spans.month_near(today, number, -1)
    if preposition == "next":
        return spans.month_near(today, number, 1)
    if here % 12 == number - 1:
        return spans.months(here)
    side = {"since": -1, "until": 1, "till": 1, "by": 1}.get(preposition)
    return spans.month_near(today, number, _direction(match) if side is None else side)


def _bare(match: re.Match[str], text: str, today: int) -> Span | None:
    name = match.group(1)
    if name not in _BARE_MONTHS or not text[match.start()].isupper():  # April, May, June and August are also people
        return None
    here = spans.month_count(today)
    number = _MONTH_NUMBERS[name]
    return spans.months(here) if here % 12 == number - 1 else spans.month_near(today, number, _direction(match))


def _season(match: re.Match[str], _text: str, _today: int) -> Span:
    name, year = match.groups("")
    return spans.season(int(year), name)


def _year(match: re.Match[str], _text: str, _today: int) -> Span:
    return spans.year(int(match.group(1)))


def _needs(*names: str) -> frozenset[bytes]:
    return frozenset(name.encode() for name in names)


def _pattern(source: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{source})", re.VERBOSE)


_SIDE_WORDS = _needs("last", "next", "this", "past", "coming")
_WEEKDAY_WORDS = _needs(*_WEEKDAYS)
_MONTH_WORDS = _needs(*_MONTH_NUMBERS)
_YEAR_WORDS = _needs("0000")
_LENGTHS = _needs("days", "week", "weeks", "month", "months", "year", "years")
_STRETCHES = _needs("week", "weekend", "month", "year", *_SEASONS, *_WEEKDAYS)
_RULES = (
    Rule(
        (_needs("today", "tonight", "yesterday", "tomorrow"),),
        _pattern(r"(?:the\ )?day\ (?:before\ yesterday|after\ tomorrow)\b|(?:today|tonight|yesterday|tomorrow)\b"),
        _near,
    ),
    Rule(
        (_needs("night", "morning", "afternoon", "evening"), _SIDE_WORDS),
        _pattern(r"last\ (?:night|evening)\b|this\ (?:morning|afternoon|evening)\b"),
        _near,
    ),
    Rule(
        (_needs("ago"),),
        _pattern(rf"(?<![0-9][.,])(?<!half\ )({_NUMBER})\ ({_UNIT})s?\ (ago)\b"),
        _ago,
    ),
    Rule(
        (_LENGTHS, _needs("now", "today")),
        _pattern(rf"(?<![0-9][.,])(?<!half\ )({_NUMBER})\ ({_UNIT})s?\ (from)\ (?:now|today)\b"),
        _ago,
    ),
    Rule(
        (_LENGTHS, _SIDE_WORDS),
        _pattern(
            rf"(?:(?:in|over|for|during|within)\ )?(?:the\ |these\ |this\ )?(last|past|next|coming)"
            rf"\ ({_NUMBER})\ ({_UNIT})s\b"
        ),
        _rolling,
    ),
    Rule(
        (_LENGTHS, _SIDE_WORDS),
        _pattern(rf"(?:in|over|for|during|within)\ the\ (?:last|past)\ ({_UNIT})\b(?!\ of\b)"),
        _past,
    ),
    Rule((_LENGTHS, _needs("in")), _pattern(rf"in\ ({_NUMBER})\ (day(?=s)|week|month|year)s?\b"), _ahead),
    Rule(
        (_STRETCHES, _SIDE_WORDS),
        _pattern(rf"({_LAST_NEXT})\ (weekend|week|month|year|{_SEASON}|{_WEEKDAY})\b(?!\ of\b)"),
        _offset,
    ),
    Rule((_needs("weekend"),), _pattern(r"(?:over|at|on|for|during)\ the\ weekend\b"), _weekend),
    Rule(
        (_WEEKDAY_WORDS,),
        _pattern(
            rf"(on|since|until|till|by|before|after|from|for)\ ({_WEEKDAY})\b"
            r"(?!\ (?:mornings|nights|evenings|afternoons|school)\b)"
        ),
        _weekday,
    ),
    Rule(
        (_WEEKDAY_WORDS, _needs("night", "morning", "afternoon", "evening")),
        _pattern(rf"(?<!every\ )(?<!each\ )({_WEEKDAY})\ (?:morning|afternoon|evening|night)\b"),
        _part,
    ),
    Rule(
        (_YEAR_WORDS,),
        _pattern(r"(?<!-)([0-9]{4})([-/.])([0-9]{1,2})\2([0-9]{1,2})(?![0-9-])"),
        _iso,
    ),
    Rule(
        (_MONTH_WORDS,),
        _pattern(
            rf"({_ANY_MONTH})\.?\ (?:the\ )?([0-9]{{1,2}})(st|nd|rd|th)?"
            r"(?:\ ?(?:-|–|to)\ ?([0-9]{1,2})(?:st|nd|rd|th)?(?![0-9:]))?"
            rf"(?:,?\ (?:of\ )?([0-9]{{4}})(?![0-9]))?\b{_NOT_COUNTED}"
        ),
        _month_day,
    ),
    Rule(
        (_MONTH_WORDS,),
        _pattern(rf"([0-9]{{1,2}})(st|nd|rd|th)?(\ of)?\ ({_ANY_MONTH})\b\.?(?:,?\ ([0-9]{{4}})\b)?"),
        _day_month,
    ),
    Rule(
        (_MONTH_WORDS, _YEAR_WORDS),
        _pattern(rf"({_ANY_MONTH})\.?,?\ (?:of\ )?([0-9]{{4}})\b"),
        _month_year,
    ),
    Rule(
        (_MONTH_WORDS,),
        _pattern(
            r"(in|since|until|till|during|by|early|late|mid|last|next|this\ past|this|end\ of|start\ of|beginning\ of"
            rf"|middle\ of)[ -](?:early\ |late\ |mid[ -]|the\ end\ of\ )?({_MONTH})\b"
        ),
        _month,
    ),
    Rule((_MONTH_WORDS,), _pattern(rf"({_MONTH})\b"), _bare),
    Rule(
        (_YEAR_WORDS, _needs(*_SEASONS)),
        _pattern(rf"(?:in\ (?:the\ )?)?({_SEASON})(?:\ of|,)?\ ((?:19|20)[0-9]{{2}})\b"),
        _season,
    ),
    Rule(
        (_YEAR_WORDS,),
        _pattern(
            r"(?:in|since|by|of|from|until|till|before|after|during|around|early|late|mid|year)"
            rf"[ -]((?:19|20)[0-9]{{2}})\b{_NOT_COUNTED}"
        ),
        _year,
    ),
)
_NEEDED = frozenset().union(*(need for rule in _RULES for need in rule.needs))
TRIGGERS = frozenset().union(*(rule.needs[0] for rule in _RULES))
"""A text without one of these words holds no expression."""
