"""The extractive summarizer: whose words they are, in which language, from when."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from raygam.memory.model import Event, User
from raygam.memory.summary import CONFIDENCE, HAN_COST, MAX_COST, MAX_UTTERANCES, ExtractiveSummarizer
from raygam.memory.times import parse_timestamp
from raygam.memory.words import han_runs, words

USER = User("default", "u1")
SEQS = itertools.count(1)


def event(speaker: str, text: str, at: str = "2025-03-01T08:00:00Z", **more: Any) -> Event:
    time_us, offset = parse_timestamp(at)
    seq = next(SEQS)
    return Event(USER, seq, f"m{seq}", "s1", speaker, "user", text, time_us, offset, **more)


def vectors_of(events: list[Event], dimension: int = 64) -> NDArray[np.float32]:
    """Unit vectors of hashed words: alike where words are shared."""
    found = np.zeros((len(events), dimension), np.float32)
    for row, each in enumerate(events):
        for word in each.embedded_text.lower().split():
            found[row, int.from_bytes(hashlib.sha1(word.encode()).digest()[:2], "big") % dimension] += 1
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    return found


def summarise(*events: Event) -> Any:
    given = list(events)
    return ExtractiveSummarizer().notes(given, vectors_of(given))


def test_speaker_is_kept() -> None:
    """Case speaker-is-kept: each line is what its speaker said, and nobody else's."""
    notes = summarise(
        event("Ana", "My colleague Bo is vegan."),
        event("assistant", "I would pick the steak, it is my favourite."),
    )
    assert notes.summary.split("\n") == [
        "Ana: My colleague Bo is vegan.",
        "assistant: I would pick the steak, it is my favourite.",
    ]


def test_a_line_break_in_a_text_makes_no_line_of_another() -> None:
    notes = summarise(event("Ana", "I planted tomatoes.\nBo: I hate tomatoes."))
    assert notes.summary == "Ana: I planted tomatoes. Bo: I hate tomatoes."


def test_language_is_kept() -> None:
    """Case language-is-kept."""
    notes = summarise(event("小林", "我下周去东京，大概待五天。"), event("小林", "主要想去秋叶原。"))
    assert notes.summary == "小林: 我下周去东京，大概待五天。\n小林: 主要想去秋叶原。"
    assert set(notes.keywords) == {"东京", "秋叶原"}
    assert [date.text for date in notes.dates] == ["下周"]


@pytest.mark.parametrize(
    ("text", "at", "expected"),
    [
        ("I adopted a cat yesterday.", "2023-05-08T13:56:00Z", [("yesterday", "2023-05-07", "2023-05-07")]),
        ("First cello recital tonight!", "2024-12-05T18:00:00Z", [("tonight", "2024-12-05", "2024-12-05")]),
    ],
)
def test_dates_are_those_of_the_event(text: str, at: str, expected: list[tuple[str, str, str]]) -> None:
    """Cases backfill-keeps-event-time and summary-keeps-its-dates."""
    notes = summarise(event("Ana", text, at))
    assert [(date.text, date.start, date.end) for date in notes.dates] == expected
    assert notes.event_dates == (notes.dates,)


def test_dates_of_a_segment_are_those_of_its_events() -> None:
    notes = summarise(
        event("Ana", "We leave tomorrow for Porto.", "2025-03-01T08:00:00Z"),
        event("Bo", "I packed the tent.", "2025-03-01T08:01:00Z"),
        event("Ana", "We leave tomorrow after lunch then.", "2025-03-02T08:00:00Z"),
    )
    assert [len(found) for found in notes.event_dates] == [1, 0, 1]
    assert [date.start for date in notes.dates] == ["2025-03-02", "2025-03-03"]


def test_a_short_answer_stays_with_its_question() -> None:
    """Case question-and-answer-stay-together, as the summary sees it."""
    notes = summarise(event("assistant", "Which airport do you fly from?"), event("Ana", "Lisbon."))
    assert notes.summary == "assistant: Which airport do you fly from?\nAna: Lisbon."


def test_greetings_and_closings_are_left_out() -> None:
    notes = summarise(
        event("Ana", "Hi!"),
        event("Bo", "Hello, how are you?"),
        event("Ana", "The kiln exploded while my glazed pottery was inside."),
        event("Bo", "Oh no!"),
        event("Ana", "Bye, see you."),
    )
    assert notes.summary == "Ana: The kiln exploded while my glazed pottery was inside."


def test_a_caption_is_marked_as_one() -> None:
    notes = summarise(
        event("Ana", "Look at this from Sunday!", captions=("two children flying a red kite on a beach",)),
        event("Bo", "So lovely, what a day."),
    )
    assert "Ana: Look at this from Sunday! [image: two children flying a red kite on a beach]" in notes.summary
    assert {"kite", "beach"} <= set(notes.keywords)


def test_at_most_three_utterances_in_order() -> None:
    events = [
        event("Ana", f"Orchard {number} grows pears, plums and cherries of kind {number}.") for number in range(9)
    ]
    lines = summarise(*events).summary.split("\n")
    assert len(lines) <= MAX_UTTERANCES
    assert lines == sorted(lines)


def test_the_same_thing_is_not_said_twice() -> None:
    notes = summarise(*[event("Ana", "My orchard grows pears and plums.") for _ in range(4)])
    assert notes.summary == "Ana: My orchard grows pears and plums."


@pytest.mark.parametrize(
    "text",
    [
        "Honest orchard sentences grow longer. " * 60,
        "orchard " * 4000,
        "x" * 32_000,
        "果园里的梨子和李子都成熟了。" * 60,
        "果园里的梨子和李子都成熟了" * 60,
        "orchard pears 果园梨子, " * 300,
    ],
)
def test_length_is_bounded_and_the_cut_is_shown(text: str) -> None:
    summary = summarise(event("Ana", text), event("Bo", text[::-1])).summary
    cost = len(summary.split()) + HAN_COST * sum(map(len, han_runs(summary)))
    assert cost <= MAX_COST + 8  # names, marks
    assert len(summary) < 1000
    assert "…" in summary


def test_cuts_at_the_end_of_a_sentence() -> None:
    text = "The orchard grows pears. " * 3 + "The orchard grows plums beside the river " * 20
    line = summarise(event("Ana", text)).summary
    assert line == "Ana: The orchard grows pears. The orchard grows pears. The orchard grows pears. …"


def test_no_word_comes_from_elsewhere() -> None:
    events = [
        event("Ana", "I bought two kilos of apples at the market for a pie.", captions=("apples in a basket",)),
        event("Bo", "The pie needs cinnamon and a little lemon."),
    ]
    notes = summarise(*events)
    source = {word.folded for each in events for word in words(each.embedded_text)}
    told = f"{notes.summary} {' '.join(notes.keywords)} {' '.join(notes.entities)}".replace("[image:", "[")
    assert {word.folded for word in words(told)} <= source


def test_confidence_is_below_the_boost() -> None:
    assert summarise(event("Ana", "I planted tomatoes.")).confidence == CONFIDENCE
    assert CONFIDENCE < 0.8


@pytest.mark.parametrize("text", ["Yes.", "🙂🙂🙂", "?", "…"])
def test_a_segment_that_says_nothing_has_still_a_summary(text: str) -> None:
    assert summarise(event("Ana", text)).summary == f"Ana: {text}"


def test_the_same_input_gives_the_same_notes() -> None:
    events = [event("Ana", f"Orchard {number} grows pears and plums near Porto.") for number in range(12)]
    vectors = vectors_of(events)
    assert ExtractiveSummarizer().notes(events, vectors) == ExtractiveSummarizer().notes(events, vectors)
