"""Days, weeks, months, years and seasons around a day, as spans of ordinals.

A span is `(first, last)`, both inclusive, in days as `date.toordinal()` counts
them. Weeks are Monday to Sunday; seasons are meteorological and northern
(summer is June to August). A day that does not exist, or one outside the years
1 to 9999, raises ValueError.
"""

from __future__ import annotations

from datetime import date

Span = tuple[int, int]

_SEASON_MONTHS = {"spring": 3, "summer": 6, "autumn": 9, "fall": 9, "winter": 12}


def single(ordinal: int) -> Span:
    """One day."""
    return ordinal, ordinal


def day(year: int, month: int, number: int) -> Span:
    """A day of the calendar."""
    return single(date(year, month, number).toordinal())


def week(today: int, offset: int) -> Span:
    """The week `offset` weeks after the one that holds `today`."""
    monday = today - (today - 1) % 7 + 7 * offset
    return monday, monday + 6


def weekend(today: int, offset: int) -> Span:
    """Saturday and Sunday of the week `offset` weeks after this one."""
    monday, sunday = week(today, offset)
    return monday + 5, sunday


def weekday(today: int, number: int, offset: int) -> Span:
    """Weekday `number` (Monday is 0) of the week `offset` weeks after this one."""
    return single(week(today, offset)[0] + number)


def weekday_before(today: int, number: int) -> Span:
    """The latest such weekday before today."""
    return single(today - 1 - (today - 2 - number) % 7)


def weekday_from(today: int, number: int) -> Span:
    """The first such weekday from today on."""
    return single(today + (number - (today - 1)) % 7)


def weekday_nearest(today: int, number: int) -> Span:
    """The nearest such weekday; at most three days away."""
    return single(today + (number - (today - 1) + 3) % 7 - 3)


def months(count: int, length: int = 1) -> Span:
    """`length` months from month `count`, which is `year * 12 + month - 1`."""
    first = date(count // 12, count % 12 + 1, 1).toordinal()
    after = count + length
    if after == 10_000 * 12:
        return first, date.max.toordinal()
    return first, date(after // 12, after % 12 + 1, 1).toordinal() - 1


def month_count(today: int) -> int:
    """The month of a day, as `year * 12 + month - 1`."""
    moment = date.fromordinal(today)
    return moment.year * 12 + moment.month - 1


def year_of(today: int) -> int:
    """The calendar year of a day."""
    return date.fromordinal(today).year


def year(number: int) -> Span:
    """A calendar year."""
    return months(number * 12, 12)


def season(year_number: int, name: str) -> Span:
    """The season that begins in that year; winter runs into the next."""
    return months(year_number * 12 + _SEASON_MONTHS[name] - 1, 3)


def season_near(today: int, name: str, side: int) -> Span:
    """The season that ended last (-1), is now or comes next (0), or begins next (1)."""
    here = year_of(today)
    if side < 0:
        for year_number in (here, here - 1, here - 2):
            span = season(year_number, name)
            if span[1] < today:
                return span
    else:
        for year_number in (here - 1, here, here + 1):
            span = season(year_number, name) if year_number else (0, 0)
            if today < span[0] or (side == 0 and today <= span[1]):
                return span
    raise ValueError(f"no such {name} in the calendar")


def month_near(today: int, month: int, side: int) -> Span:
    """Month 1..12 of a year not named: the latest before (-1), the nearest (0), the next after (1) this month."""
    here = month_count(today)
    forward = (month - 1 - here) % 12
    if side < 0:
        return months(here + forward - 12)
    if side > 0:
        return months(here + (forward or 12))
    return months(here + forward if forward <= 6 else here + forward - 12)


def day_near(today: int, month: int, number: int, side: int) -> Span:
    """A day of a year not named: the latest up to today (-1), the nearest (0), the first from today on (1)."""
    here = year_of(today)
    found = []
    for candidate in (here - 4, here - 1, here, here + 1, here + 4):
        try:
            found.append(date(candidate, month, number).toordinal())
        except ValueError:  # 29 February in most years, and the edges of the calendar
            continue
    if side < 0:
        found = [ordinal for ordinal in found if ordinal <= today] or found
    elif side > 0:
        found = [ordinal for ordinal in found if ordinal >= today] or found
    if not found:
        raise ValueError(f"no day {number} in month {month}")
    return single(min(found, key=lambda ordinal: abs(ordinal - today)))


def ago(today: int, amount: tuple[int, int], unit: str, direction: int) -> Span:
    """`amount` units before (-1) or after (1) today, as wide as the unit itself.

    `amount` is a range, for "a few"; days are days, "two months ago" is a month.
    """
    low, high = sorted((direction * amount[0], direction * amount[1]))
    if unit == "day":
        return today + low, today + high
    if unit == "week":
        return week(today, low)[0], week(today, high)[1]
    if unit == "month":
        here = month_count(today)
        return months(here + low)[0], months(here + high)[1]
    here = year_of(today)
    return year(here + low)[0], year(here + high)[1]


def rolling(today: int, amount: int, unit: str, direction: int) -> Span:
    """The days of "the past two weeks", up to today, or of "the next two weeks", from today."""
    days = amount * {"day": 1, "week": 7, "month": 30, "year": 365}[unit]
    return (today - days, today) if direction < 0 else (today, today + days)


def calendar_offset(today: int, unit: str, offset: int) -> Span:
    """Last (-1), this (0) or next (1) week, weekend, month or year."""
    if unit == "week":
        return week(today, offset)
    if unit == "weekend":
        return weekend(today, offset)
    if unit == "month":
        return months(month_count(today) + offset)
    return year(year_of(today) + offset)
