"""Chinese time expressions: one guarded grammar."""

from __future__ import annotations

import re
from collections.abc import Callable

from . import day_spans as spans
from .day_spans import Span

_DIGITS = {digit: value for value, digit in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2}
_DAYS = {"大前": -3, "前": -2, "昨": -1, "今": 0, "明": 1, "后": 2, "大后": 3}
_SIDES = {"上上": -2, "上": -1, "这": 0, "本": 0, "下": 1, "下下": 2}
_YEARS = {"前": -2, "去": -1, "今": 0, "明": 1, "后": 2}
_SEASONS = {"春": "spring", "夏": "summer", "秋": "autumn", "冬": "winter"}
_UNITS = {"天": "day", "日": "day", "周": "week", "星期": "week", "礼拜": "week", "月": "month", "年": "year"}
_WEEKDAYS = {name: number for number, name in enumerate("一二三四五六日")} | {"天": 6}
_FEW = (2, 4)

_NUMBER = "[0-9]{1,3}|[一二两三四五六七八九十百]{1,4}|几"
_MONTH = "1[0-2]|0?[1-9]|十[一二]?|[一二三四五六七八九]"
_DAY = "3[01]|[12][0-9]|0?[1-9]|三十一?|二?十[一二三四五六七八九]?|[一二三四五六七八九]"
_YEAR = "[0-9]{4}|[一二三四五六七八九][零〇一二三四五六七八九]{3}"
_WEEK = "周|星期|礼拜"

TRIGGER = re.compile(r"[天日周年月晚夜早]|星期|礼拜")
"""Every expression of the grammar holds one of these."""

_PATTERN = re.compile(
    rf"""
    (?P<near>(大前|昨|今|明|大后|(?<!以)(?<!之)前|(?<![以之然最先])后)(?:天(?![气性生赋然])|日(?!本)|晚|夜|早))
    |(?P<ago>({_NUMBER})个?(天|日|周|星期|礼拜|月|年)(?:以|之)?(前|后))
    |(?P<week>(上上|下下|上|下|这|本)个?(?:{_WEEK})([一二三四五六日天末])?)
    |(?P<month>(上上|下下|上|下|这|本)个?月(?!台))
    |(?P<full>(?<![0-9])({_YEAR}|[0-9]{{2}}(?=年\ ?[0-9]))\ ?年(?:\ ?({_MONTH})\ ?月(?:份|\ ?({_DAY})\ ?[日号])?)?)
    |(?P<year>([前去今明]|(?<![以之])后)年(?:的?(?:(春|夏|秋|冬)[天季]|({_MONTH})月(?:份|({_DAY})[日号])?))?)
    |(?P<day>(?<![0-9一二三四五六七八九十])({_MONTH})\ ?月(?:份|\ ?({_DAY})\ ?[日号])?)
    |(?P<weekday>(?<!每)(?<!每个)(?:{_WEEK})([一二三四五六日天末])(?!游))
    """,
    re.VERBOSE,
)
_FUTURE = re.compile("[要会将]|打算|准备|计划|想去|希望|下[周个次]|见$")
_PAST = re.compile("[了过]|已经|曾")
_CLAUSE_REACH = 60
_SENTENCE_END = re.compile("[。！？!?\n，,；]")


def find(text: str, today: int) -> list[tuple[int, int, Span | None]]:
    """Return `(start, end, days)` of each expression, None for 2月30日; `today` is the speaker's day, as an ordinal."""
    found: list[tuple[int, int, Span | None]] = []
    for match in _PATTERN.finditer(text):
        name = match.lastgroup
        assert name is not None
        first = _PATTERN.groupindex[name] + 1
        span: Span | None
        try:
            span = _READERS[name](match, first, today)
        except (ValueError, OverflowError):  # 2月30日, the year 10000
            span = None
        found.append((match.start(), match.end(), span))
    return found


def number(text: str) -> int:
    """A number below a thousand in digits or Chinese numerals.

    Raises:
        ValueError: the numerals make no number.
    """
    if text.isdecimal():
        return int(text)
    if all(mark in _DIGITS for mark in text):
        return int("".join(str(_DIGITS[mark]) for mark in text))
    total, digit = 0, 0
    for mark in text:
        if mark in _DIGITS:
            digit = _DIGITS[mark]
        elif mark in "十百":
            total += (digit or 1) * (10 if mark == "十" else 100)
            digit = 0
        else:
            raise ValueError(f"{text!r} is no number")
    return total + digit


def _direction(match: re.Match[str]) -> int:
    text = match.string
    start, end = match.span()
    begin = max(0, start - _CLAUSE_REACH)
    for mark in _SENTENCE_END.finditer(text, begin, start):
        begin = mark.end()
    stop = _SENTENCE_END.search(text, end, end + _CLAUSE_REACH)
    clause = text[begin:start] + text[end : stop.start() if stop else end + _CLAUSE_REACH]
    return (_FUTURE.search(clause) is not None) - (_PAST.search(clause) is not None)


def _near(match: re.Match[str], first: int, today: int) -> Span:
    return spans.single(today + _DAYS[match.group(first)])


def _ago(match: re.Match[str], first: int, today: int) -> Span:
    words, unit, side = match.group(first, first + 1, first + 2)
    amount = _FEW if words == "几" else (number(words), number(words))
    return spans.ago(today, amount, _UNITS[unit], -1 if side == "前" else 1)


def _week(match: re.Match[str], first: int, today: int) -> Span:
    side, name = match.group(first, first + 1)
    if name is None:
        return spans.week(today, _SIDES[side])
    if name == "末":
        return spans.weekend(today, _SIDES[side])
    return spans.weekday(today, _WEEKDAYS[name], _SIDES[side])


def _month(match: re.Match[str], first: int, today: int) -> Span:
    return spans.calendar_offset(today, "month", _SIDES[match.group(first)])


def _full(match: re.Match[str], first: int, _today: int) -> Span:
    year, month, day = match.group(first, first + 1, first + 2)
    return _calendar(number(year) + (2000 if len(year) == 2 else 0), month, day)


def _year(match: re.Match[str], first: int, today: int) -> Span:
    side, season, month, day = match.group(first, first + 1, first + 2, first + 3)
    year = spans.year_of(today) + _YEARS[side]
    return spans.season(year, _SEASONS[season]) if season else _calendar(year, month, day)


def _calendar(year: int, month: str | None, day: str | None) -> Span:
    if month is None:
        return spans.year(year)
    if day is None:
        return spans.months(year * 12 + number(month) - 1)
    return spans.day(year, number(month), number(day))


def _day(match: re.Match[str], first: int, today: int) -> Span:
    month, day = match.group(first, first + 1)
    if day is not None:
        return spans.day_near(today, number(month), number(day), _direction(match))
    here = spans.month_count(today)
    if here % 12 == number(month) - 1:
        return spans.months(here)
    return spans.month_near(today, number(month), _direction(match))


def _weekday(match: re.Match[str], first: int, today: int) -> Span:
    name = match.group(first)
    direction = _direction(match)
    if name == "末":
        return spans.weekend(today, -1 if direction < 0 and (today - 1) % 7 < 5 else 0)
    if direction < 0:
        return spans.weekday_before(today, _WEEKDAYS[name])
    return (spans.weekday_from if direction > 0 else spans.weekday_nearest)(today, _WEEKDAYS[name])


_READERS: dict[str, Callable[[re.Match[str], int, int], Span]] = {
    "near": _near,
    "ago": _ago,
    "week": _week,
    "month": _month,
    "full": _full,
    "year": _year,
    "day": _day,
    "weekday": _weekday,
}
