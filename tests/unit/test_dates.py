"""Dates in text: each expression, its days, and the words that must not be read as one."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygam.memory.dates import resolve_dates
from raygam.memory.times import parse_timestamp

MONDAY = "2023-05-08T13:56:00Z"
FIRST_US = parse_timestamp("0001-01-01T00:00:00Z")[0]
LAST_US = parse_timestamp("9999-12-31T23:59:59Z")[0]


def read(text: str, at: str = MONDAY) -> list[tuple[str, ...]]:
    """`(expression, day)` or `(expression, first, last)` of each date."""
    time_us, offset = parse_timestamp(at)
    found = resolve_dates(text, time_us, offset)
    return [(each.text, each.start) if each.start == each.end else (each.text, each.start, each.end) for each in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I adopted a cat yesterday.", [("yesterday", "2023-05-07")]),
        ("Today or tonight?", [("Today", "2023-05-08"), ("tonight", "2023-05-08")]),
        ("the day before yesterday", [("the day before yesterday", "2023-05-06")]),
        (
            "not tomorrow, the day after tomorrow",
            [("tomorrow", "2023-05-09"), ("the day after tomorrow", "2023-05-10")],
        ),
        ("It rained last night.", [("last night", "2023-05-07")]),
        ("This morning I ran.", [("This morning", "2023-05-08")]),
        ("3 days ago", [("3 days ago", "2023-05-05")]),
        ("a couple of days ago", [("a couple of days ago", "2023-05-06")]),
        ("a few days ago", [("a few days ago", "2023-05-04", "2023-05-06")]),
        ("a week ago", [("a week ago", "2023-05-01", "2023-05-07")]),
        ("two months ago", [("two months ago", "2023-03-01", "2023-03-31")]),
        ("five years ago", [("five years ago", "2018-01-01", "2018-12-31")]),
        ("We leave in 3 days.", [("in 3 days", "2023-05-11")]),
        ("last week", [("last week", "2023-05-01", "2023-05-07")]),
        ("this week", [("this week", "2023-05-08", "2023-05-14")]),
        ("next week", [("next week", "2023-05-15", "2023-05-21")]),
        ("last weekend", [("last weekend", "2023-05-06", "2023-05-07")]),
        ("this weekend", [("this weekend", "2023-05-13", "2023-05-14")]),
        (
            "last month, next month",
            [("last month", "2023-04-01", "2023-04-30"), ("next month", "2023-06-01", "2023-06-30")],
        ),
        ("last year", [("last year", "2022-01-01", "2022-12-31")]),
        ("last summer", [("last summer", "2022-06-01", "2022-08-31")]),
        ("next summer", [("next summer", "2023-06-01", "2023-08-31")]),
        ("last winter", [("last winter", "2022-12-01", "2023-02-28")]),
        ("last Friday", [("last Friday", "2023-05-05")]),
        ("last Monday", [("last Monday", "2023-05-01")]),
        ("next Friday", [("next Friday", "2023-05-19")]),
        ("this Friday", [("this Friday", "2023-05-12")]),
        ("this past Saturday", [("this past Saturday", "2023-05-06")]),
        ("We met on Friday.", [("on Friday", "2023-05-05")]),
        ("We will meet on Friday.", [("on Friday", "2023-05-12")]),
        ("Look at this from Sunday!", [("from Sunday", "2023-05-07")]),
        ("See you Saturday night!", [("Saturday night", "2023-05-13")]),
        ("May 3", [("May 3", "2023-05-03")]),
        ("3 May 2023", [("3 May 2023", "2023-05-03")]),
        ("May 3rd, 2021", [("May 3rd, 2021", "2021-05-03")]),
        ("the 3rd of May", [("3rd of May", "2023-05-03")]),
        ("2023-05-03", [("2023-05-03", "2023-05-03")]),
        ("May 2021", [("May 2021", "2021-05-01", "2021-05-31")]),
        ("June 14-16", [("June 14-16", "2023-06-14", "2023-06-16")]),
        ("in May", [("in May", "2023-05-01", "2023-05-31")]),
        ("We go in july.", [("in july", "2023-07-01", "2023-07-31")]),
        ("I was there in March.", [("in March", "2023-03-01", "2023-03-31")]),
        ("We will go in March.", [("in March", "2024-03-01", "2024-03-31")]),
        ("since October", [("since October", "2022-10-01", "2022-10-31")]),
        ("in 2022", [("in 2022", "2022-01-01", "2022-12-31")]),
        ("since 2019", [("since 2019", "2019-01-01", "2019-12-31")]),
        ("summer of 2021", [("summer of 2021", "2021-06-01", "2021-08-31")]),
        ("over the past two weeks", [("over the past two weeks", "2023-04-24", "2023-05-08")]),
    ],
)
def test_english(text: str, expected: list[tuple[str, ...]]) -> None:
    assert read(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("今天", [("今天", "2023-05-08")]),
        ("昨天去了公园", [("昨天", "2023-05-07")]),
        ("前天", [("前天", "2023-05-06")]),
        ("明天或者后天", [("明天", "2023-05-09"), ("后天", "2023-05-10")]),
        ("上周很忙", [("上周", "2023-05-01", "2023-05-07")]),
        ("下周去东京", [("下周", "2023-05-15", "2023-05-21")]),
        ("上周五", [("上周五", "2023-05-05")]),
        ("下周三", [("下周三", "2023-05-17")]),
        ("这周末", [("这周末", "2023-05-13", "2023-05-14")]),
        ("上个月和下个月", [("上个月", "2023-04-01", "2023-04-30"), ("下个月", "2023-06-01", "2023-06-30")]),
        ("去年", [("去年", "2022-01-01", "2022-12-31")]),
        ("今年，明年", [("今年", "2023-01-01", "2023-12-31"), ("明年", "2024-01-01", "2024-12-31")]),
        ("去年夏天", [("去年夏天", "2022-06-01", "2022-08-31")]),
        ("去年5月", [("去年5月", "2022-05-01", "2022-05-31")]),
        ("三天前", [("三天前", "2023-05-05")]),
        ("十二天前", [("十二天前", "2023-04-26")]),
        ("两个月前", [("两个月前", "2023-03-01", "2023-03-31")]),
        ("5月3日", [("5月3日", "2023-05-03")]),
        ("五月三号", [("五月三号", "2023-05-03")]),
        ("2023年5月3日", [("2023年5月3日", "2023-05-03")]),
        ("2021年", [("2021年", "2021-01-01", "2021-12-31")]),
        ("二〇二一年三月", [("二〇二一年三月", "2021-03-01", "2021-03-31")]),
        ("周五去了", [("周五", "2023-05-05")]),
        ("周五要去", [("周五", "2023-05-12")]),
    ],
)
def test_chinese(text: str, expected: list[tuple[str, ...]]) -> None:
    assert read(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "We sat in the sun, and he may march on.",
        "May I ask what you mean?",
        "You may 3 of you come in.",
        "We march 3 days for it.",
        "This may help.",
        "The other day I saw it.",
        "I go every Friday night, and on Sundays too.",
        "It was my last year of college.",
        "I read it in two days and loved it.",
        "April and June came along, august company.",
        "He is 2 years old.",
        "About 2022 people came, one of 2000 steps.",
        "Feb 30 and 2023-13-45 and June 31st",
        "3.5 years ago",
        "以前天气很好",
        "2月30日",
        "每周五",
        "",
    ],
)
def test_is_not_a_date(text: str) -> None:
    assert read(text) == []


def test_backfilled_turn_keeps_its_own_time() -> None:
    """Case backfill-keeps-event-time: the day is counted from the event, not from today."""
    assert read("I adopted a cat yesterday.", "2023-05-08T13:56:00Z") == [("yesterday", "2023-05-07")]


def test_day_is_the_speakers() -> None:
    assert read("today", "2023-05-08T01:00:00+08:00") == [("today", "2023-05-08")]  # 17:00 UTC of the day before
    assert read("today", "2023-05-07T17:00:00Z") == [("today", "2023-05-07")]


def test_weeks_run_from_monday_to_sunday() -> None:
    assert read("this week", "2023-05-14T12:00:00Z") == [("this week", "2023-05-08", "2023-05-14")]
    assert read("next Friday", "2023-05-14T12:00:00Z") == [("next Friday", "2023-05-19")]


def test_a_leap_day_finds_its_year() -> None:
    assert read("Feb 29") == [("Feb 29", "2024-02-29")]


def test_positions_survive_letters_that_grow_when_lowered() -> None:
    assert read("İİİ came yesterday") == [("yesterday", "2023-05-07")]


@pytest.mark.parametrize(
    "text", ["yesterday", "last week", "last month", "last year", "last winter", "1 week ago", "昨天"]
)
def test_nothing_before_the_calendar(text: str) -> None:
    assert resolve_dates(text, FIRST_US) == ()


@pytest.mark.parametrize(
    "text", ["tomorrow", "next week", "next month", "next year", "next summer", "in 5 weeks", "明年"]
)
def test_nothing_after_the_calendar(text: str) -> None:
    assert resolve_dates(text, LAST_US) == ()


WORDS = st.sampled_from(
    "today yesterday last next this past on in since the of a few couple 1 3 30 31 999 2023 9999 0001 days week weeks months years ago "
    "weekend Friday summer winter May march July Feb 29 30th 2023-02-29 now from until early "
    "上 下 周 五 月 个 年 天 前 后 去年 三 十 2月30日 两个 零 百 几".split()
)


@given(
    st.one_of(st.text(), st.lists(WORDS).map(" ".join), st.lists(WORDS).map("".join)),
    st.integers(FIRST_US, LAST_US),
    st.one_of(st.none(), st.integers(-14 * 60, 14 * 60)),
)
def test_any_text_at_any_time(text: str, time_us: int, offset: int | None) -> None:
    at = 0
    for found in resolve_dates(text, time_us, offset):
        assert date.fromisoformat(found.start) <= date.fromisoformat(found.end)
        at = text.index(found.text, at) + len(found.text)  # in order, none over another
