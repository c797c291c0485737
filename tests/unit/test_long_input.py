"""Input over a model's context: every character is in some prompt, and the answers come together again."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from operator import mul
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raygam.memory import long_input, prompts
from raygam.memory.chat import Prompt
from raygam.memory.errors import TooLong
from raygam.memory.long_input import NewTopic
from raygam.memory.model import Event, User
from raygam.memory.proposal import Candidate
from raygam.memory.transcript import whole

USER = User("default", "u1")
STRING = r'"(?:[^"\\]|\\.)*"'
LINE = re.compile(rf"(\d+) (?:\(part (\d+) of (\d+)\) )?(?:\d\d:\d\d )?({STRING}): ({STRING})((?: image {STRING})*)")


def event(seq: int, text: str, captions: tuple[str, ...] = ()) -> Event:
    """An event whose speaker tells which it is."""
    return Event(USER, seq, f"m{seq}", "s1", f"S{seq}", "user", text, seq * 60_000_000, captions=captions)


def told(prompt: Prompt[Any]) -> list[tuple[int, str, int, str, str]]:
    """`(number, speaker, part, text, captions)` of each line of events."""
    found = [LINE.fullmatch(line) for line in prompt.messages[-1].text.splitlines()]
    return [
        (
            int(line[1]),
            json.loads(line[4]),
            int(line[2] or 1),
            json.loads(line[5]),
            "".join(map(json.loads, re.findall(STRING, line[6]))),
        )
        for line in found
        if line
    ]


def opens(text: str) -> bool:
    return text.startswith("NEW")


def judged(prompt: Prompt[Any]) -> object:
    """A model that sees a boundary where an event begins with NEW, and notes who spoke."""
    events: dict[int, list[tuple[str, int, str]]] = defaultdict(list)
    for number, speaker, part, text, _ in told(prompt):
        events[number].append((speaker, part, text))
    starts = [at for at in sorted(events) if at > 0 and events[at][0][1] == 1 and opens(events[at][0][2])]
    match prompt.name.removesuffix(prompts.PART):
        case "boundaries":
            return {"boundaries": starts}
        case "summary":
            return noted(sorted(events), events)
        case "segments":
            cuts = [0, *starts, len(events)]
            return {
                "segments": [
                    {"first": a, "confidence": 0.9, "reason": "", "notes": noted(range(a, b), events)}
                    for a, b in pairwise(cuts)
                ]
            }
        case "joined_parts":
            shown = [json.loads(each) for each in re.findall(rf": ({STRING}) keywords", prompt.messages[-1].text)]
            return {"summary": " ".join(shown), "keywords": ["joined"], "topic": "all", "confidence": 0.8}
        case "links":
            names = list(events)
            return {
                "relations": [],
                "events": [{"source": names[0], "target": names[-1], "type": "causal", "confidence": 0.9}],
            }
        case "relations":
            found = re.findall(r"^([a-z]+) \(", prompt.messages[-1].text, re.MULTILINE)
            items = [{"topic": name, "type": "support", "confidence": 0.8} for name in found if name != "new"]
            return {"relations": items}
        case other:
            raise AssertionError(other)


def noted(numbers: Sequence[int], events: Any) -> dict[str, Any]:
    speakers = list(dict.fromkeys(speaker for number in numbers for speaker, _, _ in events[number]))
    return {"summary": " ".join(speakers), "keywords": speakers[:3], "facts": [f"{speakers[0]} spoke."]}


def all_is_shown(ask: Any, events: Sequence[Event]) -> None:
    parts: dict[str, dict[int, tuple[str, str]]] = defaultdict(dict)
    for prompt in ask.prompts:
        for _, speaker, part, text, captions in told(prompt):
            assert parts[speaker].setdefault(part, (text, captions)) == (text, captions)
    for each in events:
        pieces = [parts[each.speaker][part] for part in sorted(parts[each.speaker])]
        assert "".join(text for text, _ in pieces) == each.text
        assert "".join(caption for _, caption in pieces) == "".join(each.captions)


def dialogue(count: int, words: int = 12, every: int = 9) -> list[Event]:
    text = " ".join(["clay"] * words)
    return [event(at, ("NEW " if at % every == 0 else "") + text) for at in range(count)]


def starts(events: Sequence[Event]) -> list[int]:
    return [at for at, each in enumerate(events) if at and opens(each.text)]


def test_what_fits_is_one_call(replayed: Any) -> None:
    events = dialogue(30)
    for asked, found in (
        ("boundaries", long_input.boundaries),
        ("summary", long_input.notes),
        ("segments", lambda ask, shown: long_input.segments(ask, shown, closes=True)),
    ):
        ask = replayed(by=judged)
        found(ask, events)
        assert ask.asked == [asked]


@pytest.mark.parametrize("context", [800, 1200, 2000])
def test_boundaries_over_windows_are_those_of_the_whole(replayed: Any, context: int) -> None:
    events = dialogue(120)
    ask = replayed(by=judged, context_tokens=context)
    assert long_input.boundaries(ask, events) == starts(events)
    assert len(ask.asked) > 1
    assert ask.asked[0] == "boundaries"
    assert set(ask.asked[1:]) == {"boundaries_part"}
    all_is_shown(ask, events)


def test_each_gap_is_judged_by_one_window(replayed: Any) -> None:
    """Where a window begins, the one before it has seen what led there."""
    events = dialogue(200)
    ask = replayed(by=lambda prompt: {"boundaries": [1, 2]}, context_tokens=1200)
    assert long_input.boundaries(ask, events)[:2] == [1, 2]
    later = [told(prompt)[0][1] for prompt in ask.prompts[1:]]
    assert len(later) > 2
    found = {events[at].speaker for at in long_input.boundaries(ask, events)}
    assert not found & {f"S{int(speaker[1:]) + 1}" for speaker in later}
    assert {f"S{int(speaker[1:]) + 2}" for speaker in later} <= found


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("context", [1400, 2000, 4096])
def test_segments_over_windows_are_those_of_the_whole(replayed: Any, context: int, closes: bool) -> None:
    """Segments shorter than a window are seen whole in one: all of them have their notes."""
    events = dialogue(200)
    ask = replayed(by=judged, context_tokens=context)
    found = long_input.segments(ask, events, closes=closes)
    cuts = [0, *starts(events), len(events)]
    assert [each.first for each in found] == cuts[:-1]
    for each, begin, end in zip(found, cuts, cuts[1:], strict=False):
        if closes or end < len(events):
            assert each.notes is not None
            assert each.notes.summary == " ".join(event.speaker for event in events[begin:end])
            assert len(each.notes.event_dates) == end - begin
    assert closes or found[-1].notes is None
    assert ask.asked[0] == "segments"
    assert set(ask.asked[1:]) == {"segments_part"}
    all_is_shown(ask, events)


def test_a_segment_longer_than_a_window_is_still_to_be_noted(replayed: Any) -> None:
    events = dialogue(200, every=110)
    ask = replayed(by=judged, context_tokens=2000)
    found = long_input.segments(ask, events, closes=True)
    assert [each.first for each in found] == [0, 110]
    assert [each.notes for each in found] == [None, None]
    all_is_shown(ask, events)


def test_the_notes_of_parts_are_joined(replayed: Any) -> None:
    events = dialogue(100)
    ask = replayed(by=judged, context_tokens=1400)
    notes = long_input.notes(ask, events)
    assert notes.summary == " ".join(each.speaker for each in events)
    assert (notes.keywords, notes.label, notes.confidence) == (("joined",), "all", 0.8)
    parts = ask.asked.count("summary_part") + 1
    assert parts > 2
    assert ask.asked == ["summary", *["summary_part"] * (parts - 1), "joined_parts"]
    assert len(notes.facts) == parts  # of each part
    assert len(notes.event_dates) == len(notes.event_entities) == len(events)
    all_is_shown(ask, events)


def test_notes_of_very_many_parts_are_joined_in_steps(replayed: Any) -> None:
    events = dialogue(260)
    ask = replayed(by=judged, context_tokens=900)
    notes = long_input.notes(ask, events)
    assert ask.asked.count("joined_parts") > 1
    assert notes.summary == " ".join(each.speaker for each in events)


def test_an_event_that_alone_is_too_long_is_shown_in_parts(replayed: Any) -> None:
    long = event(1, "kiln " * 3000, captions=("a photo " * 800, "short"))
    events = [event(0, "Hello."), long, event(2, "NEW day."), event(3, "Yes.")]
    ask = replayed(by=judged, context_tokens=1600)
    found = long_input.segments(ask, events, closes=True)
    assert [each.first for each in found] == [0, 2]
    assert found[1].notes is not None
    all_is_shown(ask, events)
    ask = replayed(by=judged, context_tokens=1600)
    assert len(long_input.notes(ask, [long]).event_dates) == 1
    all_is_shown(ask, [long])
    ask = replayed(by=judged, context_tokens=1600)
    assert long_input.boundaries(ask, events) == [2]
    all_is_shown(ask, events)


@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.builds(mul, st.text(max_size=40), st.integers(0, 120)), min_size=1, max_size=4), st.integers(1100, 2000)
)
def test_nothing_is_cut_silently(replayed: Any, texts: list[str], context: int) -> None:
    events = [event(at, text, (text[::-1],) if at % 3 == 0 else ()) for at, text in enumerate(texts)]
    for asked in (
        long_input.boundaries,
        long_input.notes,
        lambda ask, shown: long_input.segments(ask, shown, closes=True),
    ):
        ask = replayed(by=judged, context_tokens=context)
        asked(ask, events)
        all_is_shown(ask, events)


def test_a_context_for_no_word_is_an_error_that_says_so(replayed: Any) -> None:
    for asked in (long_input.boundaries, long_input.notes):
        with pytest.raises(TooLong, match=r"scripted has a context of 200; serve the model with a longer context"):
            asked(replayed(context_tokens=200), dialogue(3))


def topic(name: str, words: int = 20) -> Candidate:
    return Candidate(name, " ".join(["clay"] * words), ("clay",), (), 0, 0, 0.9)


def test_relations_to_long_candidates_take_calls_for_some_at_a_time(replayed: Any) -> None:
    candidates = [topic(f"t{at}", 200) for at in range(5)]
    ask = replayed(by=judged, context_tokens=1200)
    found = long_input.relations(ask, USER, topic("new"), candidates)
    assert [each.topic_id for each in found] == [each.topic_id for each in candidates]
    assert len(ask.asked) > 1
    with pytest.raises(TooLong, match="a topic of u1 and a candidate"):
        long_input.relations(replayed(context_tokens=300), USER, topic("new"), candidates)


def test_links_over_several_calls(replayed: Any) -> None:
    """Topic by topic where all are too long together; one topic's events in windows."""
    events = dialogue(120)
    topics = [
        NewTopic(topic("t1"), [topic("old")], events[:20]),
        NewTopic(topic("t2"), [topic("old"), topic("t1")], events[20:]),
    ]
    earlier = [event(900 + at, "An old kiln.") for at in range(16)]
    ask = replayed(by=judged, context_tokens=2400)
    found = long_input.links(ask, USER, topics, earlier)
    assert len(found.relations) == 2
    assert ask.asked[0] == "links"
    assert set(ask.asked[1:]) == {"links_part"}
    assert len(ask.asked) > 2
    assert [("relations" in prompt.schema["properties"]) for prompt in ask.prompts] == [
        True,
        True,
        *[False] * (len(ask.prompts) - 2),
    ]
    assert len(found.edges) == len(ask.prompts)
    all_is_shown(ask, events)


def test_nothing_is_asked_where_there_is_nothing_to_relate(replayed: Any) -> None:
    """One over-long event without candidates, beside another topic."""
    long = event(1, "clay " * 4000)
    topics = [NewTopic(topic("t1"), [], [long]), NewTopic(topic("t2"), [topic("t1")], dialogue(4)[1:])]
    ask = replayed(by=judged, context_tokens=2400)
    found = long_input.links(ask, USER, topics, [])
    assert len(found.relations) == 2
    assert ask.asked == ["links"]
    assert ask.prompts[0].schema["properties"]


def test_earlier_events_take_a_quarter_at_most(replayed: Any) -> None:
    topics = [NewTopic(topic("t1"), [topic("old")], dialogue(4))]
    earlier = [event(900, "kiln " * 2000), *(event(901 + at, "An old kiln.") for at in range(4))]
    ask = replayed(by=judged, context_tokens=4096)
    long_input.links(ask, USER, topics, earlier)
    (prompt,) = ask.prompts
    assert [speaker for _, speaker, *_ in told(prompt)] == ["S0", "S1", "S2", "S3", "S901", "S902", "S903", "S904"]


def test_a_buffer_of_2048_tokens_is_one_call_in_a_context_of_4096(replayed: Any) -> None:
    events: list[Event] = []
    tokens = 0
    ask = replayed(by=judged, context_tokens=4096)
    while tokens < 2048:
        events.append(event(len(events), " ".join(["clay"] * 24) + ".", ()))
        tokens += ask.count_tokens(events[-1].embedded_text)
    long_input.segments(ask, events, closes=True)
    assert ask.asked == ["segments"]
    assert whole(events)[0].parts == 1
