from __future__ import annotations

import pytest

from raygam.memory.query import Query, names_speaker, parse_query
from raygam.memory.times import format_time, parse_timestamp

FIRST_US = parse_timestamp("2022-03-01T08:00:00Z")[0]
NOW_US = parse_timestamp("2023-05-10T10:00:00Z")[0]  # a Wednesday


def parse(text: str, *speakers: str) -> Query:
    return parse_query(text, speakers, FIRST_US, NOW_US)


def spans(text: str) -> list[str]:
    """`first day..first day after` per condition."""
    return [f"{format_time(c.start_us)[:10]}..{format_time(c.end_us)[:10]}" for c in parse(text).conditions]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("What did Bo do in May 2023?", ["2023-05-01..2023-06-01"]),
        ("What did Bo do in may of 2023?", ["2023-05-01..2023-06-01"]),
        ("on May 3, 2023", ["2023-05-03..2023-05-04"]),
        ("Where was Bo on 1 May, 2022?", ["2022-05-01..2022-05-02"]),
        ("the 3rd of May 2022", ["2022-05-03..2022-05-04"]),
        ("the trip on 3 May", ["2022-05-03..2022-05-04", "2023-05-03..2023-05-04"]),
        ("What happened in July?", ["2022-07-01..2022-08-01", "2023-07-01..2023-08-01"]),
        ("plans for last December", ["2022-12-01..2023-01-01"]),
        ("was it 2022 or 2023?", ["2023-01-01..2024-01-01"]),
        ("in 2022", ["2022-01-01..2023-01-01"]),
        ("the meeting of 2023-05-07", ["2023-05-07..2023-05-08"]),
        ("what did we do yesterday", ["2023-05-09..2023-05-10"]),
        ("last week", ["2023-05-01..2023-05-08"]),
        ("last Friday", ["2023-05-05..2023-05-06"]),
        ("next month", ["2023-06-01..2023-07-01"]),
        ("two weeks ago", ["2023-04-24..2023-05-01"]),
        ("5月3日去哪了", ["2022-05-03..2022-05-04", "2023-05-03..2023-05-04"]),
        ("2023年5月做了什么", ["2023-05-01..2023-06-01"]),
        ("去年的旅行", ["2022-01-01..2023-01-01"]),
        ("去年5月", ["2022-05-01..2022-06-01"]),
        ("昨天说了什么", ["2023-05-09..2023-05-10"]),
        ("上个月的会", ["2023-04-01..2023-05-01"]),
        ("before 2023", ["0001-01-01..2023-01-01"]),
        ("since June 2022", ["2022-06-01..9999-12-31"]),
    ],
)
def test_a_date_becomes_a_time_condition(text: str, expected: list[str]) -> None:
    assert spans(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "What may Bo do?",
        "May I ask who called?",
        "They march for peace",
        "How many of 2000 people came?",
        "What did the 2000 people want?",
        "Who owns 42 or 1999 coins?",
        "on 31 February 2022",
        "room 2023",
        "What did she do before moving?",
        "",
    ],
)
def test_what_is_no_date_sets_no_condition(text: str) -> None:
    assert spans(text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("When did Bo leave?", True),
        ("Tell me when is the fair", True),
        ("What year did Bo move?", True),
        ("How long ago was it?", True),
        ("小林什么时候去东京？", True),
        ("How did Bo feel when he won?", False),
        ("Where does Bo live?", False),
    ],
)
def test_asks_when(text: str, expected: bool) -> None:
    assert parse(text).asks_when is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Where did Ana use to live?", True),
        ("Where Ana used to live", True),
        ("What was her previous job?", True),
        ("Where did she live before?", True),
        ("她以前住在哪里", True),
        ("Where does Ana live?", False),
    ],
)
def test_asks_past(text: str, expected: bool) -> None:
    assert parse(text).asks_past is expected


@pytest.mark.parametrize(
    ("text", "speaker", "expected"),
    [
        ("What did ANA say?", "Ana", True),
        ("What did Ana's brother say?", "Ana", True),
        ("Is a banana yellow?", "Ana", False),
        ("What did Ana say?", "Ana Lima", True),
        ("What did Lima say?", "Ana Lima", False),
        ("小林去东京想去哪里？", "小林", True),
        ("小李去东京", "小林", False),
        ("What did the assistant say?", "assistant", True),
        ("What will Bo eat?", "Will", False),
        ("Will Bo eat?", "Will", False),
        ("What did Will eat?", "Will", True),
        ("anything", "", False),
        ("C++ (draft)", "C++", True),
    ],
)
def test_names_speaker(text: str, speaker: str, expected: bool) -> None:
    assert names_speaker(text, speaker) is expected


def test_terms_leave_out_function_words_and_named_speakers() -> None:
    assert parse("What did Ana say about the kites?", "Ana", "Bo").terms == ("say", "kite")
    assert parse("What did Ana say about the kites?", "Bo").terms == ("ana", "say", "kite")


def test_terms_are_never_emptied() -> None:
    assert parse("Who was it?").terms == ("who", "was", "it")
    assert parse("Ana?", "Ana").terms == ("ana",)
    assert parse("?!").terms == ()
