from __future__ import annotations

from collections.abc import Sequence

from raygam.memory.linearise import linearise, memory_line
from raygam.memory.model import Event, Origin, ResolvedDate, User
from raygam.memory.ranking import Factors
from raygam.memory.retrieval import Path, RankedMemory
from raygam.memory.text import count_tokens
from raygam.memory.times import parse_timestamp

START_US = parse_timestamp("2023-05-08T10:00:00Z")[0]


def memory(
    at: int,
    text: str = "hello there",
    captions: tuple[str, ...] = (),
    dates: Sequence[ResolvedDate] = (),
    origin: Origin = Origin.SAID,
    superseded: bool = False,
) -> RankedMemory:
    event = Event(
        User("default", "u"), at, f"m{at}", "s", "Ana", "user", text, START_US + at * 60_000_000,
        captions=captions, origin=origin,
    )  # fmt: skip
    return RankedMemory(event, tuple(dates), 1.0, Factors(1.0), Path(None, None, event.message_id), superseded)


def test_a_line_carries_time_speaker_text_and_reference() -> None:
    assert memory_line(memory(5, "Hello\n there")) == "[2023-05-08 10:05] Ana: Hello there [ref: m5]"


def test_a_caption_is_nobodys_words_and_dates_are_shown() -> None:
    dates = [ResolvedDate("yesterday", "2023-05-07", "2023-05-07"), ResolvedDate("May", "2023-05-01", "2023-05-31")]
    assert memory_line(memory(0, "Look!", ("a red kite",), dates)) == (
        "[2023-05-08 10:00] Ana: Look! (caption of an attachment: a red kite)"
        " (yesterday: 2023-05-07) (May: 2023-05-01 to 2023-05-31) [ref: m0]"
    )


def test_recalled_and_superseded_memories_are_marked() -> None:
    assert "(recalled from memory)" in memory_line(memory(0, origin=Origin.RECALLED))
    assert "(past: superseded later)" in memory_line(memory(0, superseded=True))
    assert "(" not in memory_line(memory(0))


def test_lines_stand_in_event_time_order() -> None:
    lines = linearise([memory(9), memory(2), memory(5)], 1000, count_tokens).splitlines()
    assert [line[-3:-1] for line in lines] == ["m2", "m5", "m9"]


def test_the_salient_is_kept_whole_and_the_rest_is_counted() -> None:
    long = " ".join(["word"] * 40)
    ranked = [memory(at, long) for at in (7, 3, 1, 2, 4, 5, 6, 8)]
    one = count_tokens(memory_line(ranked[0]))
    text = linearise(ranked, 2 * one + 30, count_tokens)
    assert text.splitlines() == [
        "…2 events…",
        memory_line(ranked[1]),
        "…3 events…",
        memory_line(ranked[0]),
        "…1 event…",
    ]


def test_the_budget_holds_for_every_size() -> None:
    ranked = [memory(at, "word " * (at % 7 + 1), captions=("a kite",) * (at % 2)) for at in (5, 3, 9, 1, 7, 2, 8)]
    for budget in range(300):
        assert count_tokens(linearise(ranked, budget, count_tokens)) <= budget


def test_a_line_too_long_is_passed_over_for_a_shorter_one() -> None:
    text = linearise([memory(1, "word " * 500), memory(2, "short")], 60, count_tokens)
    assert text.splitlines() == ["…1 event…", memory_line(memory(2, "short"))]


def test_no_memories_make_no_text() -> None:
    assert linearise([], 100, count_tokens) == ""
