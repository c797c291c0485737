"""Time conditions of a query: "in May 2023", "on 3 May", "last week", "去年".

A small guarded grammar, read left to right from the most specific form to the least; what
one form has taken, no other reads again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta

from .times import to_datetime

DAY_US = 86_400_000_000
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_FAR_PAST_US = (date.min.toordinal() - _EPOCH_ORDINAL) * DAY_US
_FAR_FUTURE_US = (date.max.toordinal() - _EPOCH_ORDINAL) * DAY_US

_MONTHS = {
    name: number
    for number, names in enumerate(
        (
            "january jan", "february feb", "march mar", "april apr", "may", "june jun",
            "july jul", "august aug", "september sept sep", "october oct", "november nov", "december dec",
        ),
        start=1,
    )
    for name in names.split()
}  # fmt: skip
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_NUMBERS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "ten": 10}
_MONTH = r"(?P<month>" + "|".join(sorted(_MONTHS, key=len, reverse=True)) + r")\b\.?"
_YEAR = r"(?P<year>(?:19|20)\d\d)(?!\d)"
_DAY = r"(?P<day>[0-3]?\d)(?:st|nd|rd|th)?"
_PREPOSITION = r"in|of|during|since|until|till|by|from|before|after|around|for|last|this|next|early|late|mid|every"
_OPENING = ("before", "prior to", "until", "till", "after", "since")
_OPENING_AT_END = re.compile(rf"\b({'|'.join(_OPENING)})\s+(?:the\s+)?$", re.IGNORECASE)
_LEADING = re.compile(rf"({_PREPOSITION}|the|and|or|year)[ -]", re.IGNORECASE)
_UNIT = r"dollars?|people|persons?|miles?|words?|pounds?|euros?|steps?|met(?:er|re)s?|km|calories|points?|times|%"


@dataclass(frozen=True, slots=True)
class TimeCondition:
    """A span of local time that a query names: `start_us <= time < end_us`.

    `kind` is "day", "week", "month", "year" or "span"; `text` the expression.
    """

    start_us: int
    end_us: int
    text: str
    kind: str


Span = tuple[date, date, str]
"""First day, first day after, kind."""


@dataclass(frozen=True, slots=True)
class _Frame:
    """The days that relative and incomplete expressions are read against."""

    first: date
    today: date

    def years(self) -> range:
        return range(self.first.year, self.today.year + 1)


def time_conditions(text: str, first_us: int, now_us: int) -> tuple[TimeCondition, ...]:
    """The times that a query names; see `parse_query` for the arguments.

    A date without a year is meant in every year of the memory. "before" and "since" in
    front of a date open its span to that side.
    """
    frame = _Frame(to_datetime(first_us).date(), to_datetime(now_us).date())
    left = text
    found: list[TimeCondition] = []
    for pattern, read in _FORMS:
        for match in pattern.finditer(left):
            try:
                spans = list(read(match, frame))
            except (ValueError, OverflowError):  # beyond the calendar: "last year" in the year 1
                continue
            if not spans and read not in (_numeric, _day_and_month):
                continue  # 31 February is read by nothing else; "last may" may be
            side, named = _side(text[: match.start()], match[0])
            found.extend(_condition(span, side, named) for span in spans)
            left = left[: match.start()] + "\x00" * (match.end() - match.start()) + left[match.end() :]
    return tuple(found)


def day_us(day: date) -> int:
    """Midnight at the start of a day, in microseconds since 1970 of the same clock."""
    return (day.toordinal() - _EPOCH_ORDINAL) * DAY_US


def _side(before: str, matched: str) -> tuple[str, str]:
    """The word that opens the span to one side, if there is one, and the date without prepositions."""
    inside = _LEADING.match(matched)
    if inside:
        word, named = inside[1].lower(), matched[inside.end() :]
        return (word, named) if word in _OPENING else ("", matched if word in ("last", "this", "next") else named)
    outside = _OPENING_AT_END.search(before)
    return (outside[1].lower() if outside else ""), matched


def _condition(span: Span, side: str, text: str) -> TimeCondition:
    start, end, kind = span
    start_us, end_us = day_us(start), day_us(end)
    if side in ("before", "prior to"):
        return TimeCondition(_FAR_PAST_US, start_us, f"{side} {text}", "span")
    if side in ("until", "till"):
        return TimeCondition(_FAR_PAST_US, end_us, f"{side} {text}", "span")
    if side in ("after", "since"):
        return TimeCondition(end_us if side == "after" else start_us, _FAR_FUTURE_US, f"{side} {text}", "span")
    return TimeCondition(start_us, end_us, text, kind)


def _month_span(year: int, month: int) -> Iterator[Span]:
    if 1 <= month <= 12 and 1 < year < 9999:
        yield date(year, month, 1), date(year + month // 12, month % 12 + 1, 1), "month"


def _day_span(year: int, month: int, day: int) -> Iterator[Span]:
    try:
        start = date(year, month, day)
    except ValueError:  # 30 February is no date
        return
    yield start, start + timedelta(days=1), "day"


def _year_span(year: int) -> Iterator[Span]:
    yield date(year, 1, 1), date(year + 1, 1, 1), "year"


def _numeric(match: re.Match[str], frame: _Frame) -> Iterator[Span]:
    yield from _day_span(int(match["year"]), int(match["number"]), int(match["day"]))


def _day_and_month(match: re.Match[str], frame: _Frame) -> Iterator[Span]:
    word = match["month"]
    month = _MONTHS[word.lower()]
    if not match["year"] and word in ("may", "march", "mar", "sep", "jun"):
        return
    years = [int(match["year"])] if match["year"] else frame.years()
    for year in years:
        yield from _day_span(year, month, int(match["day"]))


def _month_and_year(match: re.Match[str], frame: _Frame) -> Iterator[Span]:
    yield from _month_span(int(match["year"]), _MONTHS[match["month"].lower()])


def _month_alone(match: re.Match[str], frame: _Frame) -> Iterator[Span]:
    word = match["month"]
    if word.lower() in ("may", "march", "mar", "jun", "sep") and not word[0].isupper():
        return
    month, before = _MONTHS[word.lower()], match["before"].lower()
    if before in ("last", "next"):
        step = -1 if before == "last" else 1
        year = frame.today.year
        while (year, month) == (frame.today.year, frame.today.month) or (
            ((year, month) > (frame.today.year, frame.today.month)) != (step > 0)
        ):
            year += step
        yield from _month_span(year, month)
        return
    for year in frame.years():
        yield from _month_span(year, month)


def _year_alone(match: re.Match[str], frame: _Frame) -> Iterator[Span]:
    yield from _year_span(int(match["year"]))


def _ago(match: re.Match[str], frame: _Frame) -> Iterator[Span]:
    word = match["count"].lower()
    count = int(word) if word.isdigit() else _NUMBERS[word]
    if count < 200:
        yield from _shifted(frame.today, match["unit"].lower(), -count)


def _last(match: re.Match[str], frame: _Frame) -> Iterator[Span]:
    step = {"last": -1, "past": -1, "previous": -1, "this": 0, "next": 1}[match["which"].lower()]
    yield from _shifted(frame.today, match["unit"].lower(), step)


def _shifted(today: date, unit: str, step: int) -> Iterator[Span]:
    """The day, week, weekend, month or year that lies `step` of them from today."""
    monday = today - timedelta(days=today.weekday())
    if unit in ("day", "night"):
        day = today + timedelta(days=step)
        yield day, day + timedelta(days=1), "day"
    elif unit == "week":
        start = monday + timedelta(weeks=step)
        yield start, start + timedelta(weeks=1), "week"
    elif unit == "weekend":
        start = monday + timedelta(weeks=step, days=5)
        yield start, start + timedelta(days=2), "week"
    elif unit == "month":
        months = today.year * 12 + today.month - 1 + step
        yield from _month_span(months // 12, months % 12 + 1)
    elif unit == "year":
        yield from _year_span(today.year + step)
    else:
        day = monday + timedelta(days=_WEEKDAYS.index(unit))
        if step < 0 and day >= today:
            day -= timedelta(weeks=1)
        elif step > 0 and day <= today:
            day += timedelta(weeks=1)
        yield day, day + timedelta(days=1), "day"


_RELATIVE_DAYS = {"yesterday": -1, "today": 0, "tomorrow": 1, "昨天": -1, "今天": 0, "明天": 1, "前天": -2, "后天": 2}
_CHINESE_UNITS = {"周": "week", "星期": "week", "礼拜": "week", "月": "month", "年": "year"}


def _relative_day(match: re.Match[str], frame: _Frame) -> Iterator[Span]:
    yield from _shifted(frame.today, "day", _RELATIVE_DAYS[match[0].lower()])


def _chinese_date(match: re.Match[str], frame: _Frame) -> Iterator[Span]:
    written = match["year"]
    named = {"去年": -1, "今年": 0, "明年": 1, "前年": -2}.get(match["relative"] or "")
    if written:
        years = range(int(written), int(written) + 1)
    elif named is not None:
        years = range(frame.today.year + named, frame.today.year + named + 1)
    else:
        years = frame.years()
    for year in years:
        if match["number"] is None:
            if written or named is not None:
                yield from _year_span(year)
        elif match["day"] is None:
            yield from _month_span(year, int(match["number"]))
        else:
            yield from _day_span(year, int(match["number"]), int(match["day"]))


def _chinese_relative(match: re.Match[str], frame: _Frame) -> Iterator[Span]:
    step = {"上": -1, "这": 0, "本": 0, "下": 1}[match["which"]]
    yield from _shifted(frame.today, _CHINESE_UNITS[match["unit"]], step)


def _form(
    pattern: str, read: Callable[[re.Match[str], _Frame], Iterator[Span]]
) -> tuple[re.Pattern[str], Callable[[re.Match[str], _Frame], Iterator[Span]]]:
    return re.compile(pattern, re.IGNORECASE), read


_FORMS = (
    _form(rf"(?<!\d){_YEAR}[-/.](?P<number>\d\d?)[-/.](?P<day>\d\d?)(?!\d)", _numeric),
    _form(
        r"(?:(?P<year>(?:19|20)\d\d)年|(?P<relative>去年|今年|明年|前年))(?:的)?(?:(?P<number>1?\d)月(?:(?P<day>[0-3]?\d)[日号])?)?",
        _chinese_date,
    ),
    _form(r"(?P<year>\x01)?(?P<relative>\x01)?(?<!\d)(?P<number>1?\d)月(?:(?P<day>[0-3]?\d)[日号]|份)?", _chinese_date),
    _form(r"昨天|今天|明天|前天|后天", _relative_day),
    _form(r"(?P<which>[上这本下])(?:一?个)?(?P<unit>周|星期|礼拜|月)", _chinese_relative),
    _form(rf"(?<!\w){_DAY}(?: of)? {_MONTH}(?:,? {_YEAR})?", _day_and_month),
    _form(rf"\b{_MONTH} {_DAY}(?![\d:])(?:,? {_YEAR})?", _day_and_month),
    _form(rf"\b{_MONTH},? (?:of )?{_YEAR}", _month_and_year),
    _form(rf"(?<=\b)(?P<before>{_PREPOSITION})[ -]{_MONTH}(?! \w*ing\b)", _month_alone),
    _form(
        rf"\b(?:{_PREPOSITION}|year|the|in the year|spring|summer|autumn|fall|winter|(?:and|or)(?= \d+\W*$))[ -]{_YEAR}(?!\s*(?:{_UNIT}))",
        _year_alone,
    ),
    _form(r"\b(?:yesterday|today|tomorrow)\b", _relative_day),
    _form(
        rf"\b(?P<count>\d{{1,3}}|{'|'.join(_NUMBERS)}) (?P<unit>day|week|month|year)s? ago\b",
        _ago,
    ),
    _form(
        r"\b(?P<which>last|past|previous|this|next) (?P<unit>night|weekend|week|month|year|"
        + "|".join(_WEEKDAYS)
        + r")\b",
        _last,
    ),
)
