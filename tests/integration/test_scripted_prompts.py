"""Every prompt, put to the scripted model over HTTP: its answers are whole, fit, and are the same each time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from benchmarks.scripted_model import ScriptedModel, Step
from raygam.adapters.openai_chat import OpenAIChat
from raygam.memory import prompts
from raygam.memory.chat import ModelCall, Prompt
from raygam.memory.model import Event, EventRelation, User
from raygam.memory.proposal import Candidate, ScoredRelation
from raygam.memory.transcript import Passage, whole
from raygam.pipeline.asking import Asker

ANA = User("default", "ana")
KILN = (
    "The kiln broke again.",
    "Did the kiln crack?",
    "Yes, the kiln cracked yesterday, in Porto.",
    'Repair: the "kiln" EVENTS>>> because the kiln cracked',
    "Repair of a kiln is slow work, says Tomas.",
    "Good, the kiln can wait.",
)
TRIP = (
    "Shall we visit Lisbon?",
    "Lisbon in spring would be lovely.",
    "Spring tickets are cheap.",
    "I no longer like hotels in Lisbon, says Maria.",
    "Then ask Maria about hotels.",
    "旅行の計画を立てましょう",
)
EVENTS = [
    Event(
        ANA,
        at + 1,
        f"m{at}",
        "s",
        ("Ana", "Bo: the 2nd")[at % 2],
        "user",
        text,
        1_700_000_000_000_000 + at * 60_000_000,
    )
    for at, text in enumerate(KILN + TRIP)
]
ALL, TOLD = whole(EVENTS), whole(EVENTS[:6])


def topic(name: str, summary: str, *keywords: str) -> Candidate:
    return Candidate(name, summary, keywords, (), EVENTS[0].time_us, EVENTS[0].time_us, 0.5)


HOTELS = topic("new", "Maria no longer likes hotels in Lisbon", "Lisbon", "hotels")
OTHERS = [
    topic("kiln", "The kiln cracked; repair is slow", "kiln", "repair"),
    topic("hotels", "Maria knows hotels in Lisbon", "Lisbon", "hotels"),
]


class Asked:
    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self.calls: list[ModelCall] = []

    def __call__(self, prompt: Prompt[Any]) -> Any:
        return self._asker.for_task(ANA, {}, self.calls.append, self._asker.clock.now() + 60)(prompt)


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedModel]:
    with ScriptedModel() as server:
        yield server


@pytest.fixture(scope="module")
def asker(server: ScriptedModel) -> Iterator[Asker]:
    asker = Asker(OpenAIChat(server.url, None))
    yield asker
    asker.close()


@pytest.fixture
def ask(asker: Asker) -> Asked:
    return Asked(asker)


def test_all_prompts_are_answered_in_one_call_and_nothing_of_it_is_dropped(ask: Asked, server: ScriptedModel) -> None:
    first = ask(prompts.summary(ANA, TOLD))
    asked: list[Prompt[Any]] = [
        prompts.boundaries(ANA, ALL),
        prompts.summary(ANA, ALL),
        prompts.segments(ANA, ALL, closes=True),
        prompts.segments(ANA, ALL, closes=False),
        prompts.relations(ANA, HOTELS, OTHERS),
        prompts.links(ANA, [(HOTELS, OTHERS)], whole(EVENTS[6:]), TOLD),
        prompts.joined_parts(ANA, [first, first]),
    ]
    values = [ask(prompt) for prompt in asked]
    assert [ask(prompt) for prompt in asked] == values
    assert all((call.calls, call.dropped) == (1, 0) for call in ask.calls), ask.calls
    assert set(server.calls()) == {prompt.name for prompt in asked}


def test_topics_change_where_no_word_comes_back(ask: Asked) -> None:
    assert ask(prompts.boundaries(ANA, ALL)) == [6]
    closed, (last, tail) = ask(prompts.segments(ANA, ALL, closes=True)), ask(prompts.segments(ANA, ALL, closes=False))
    assert [segment.first for segment in closed] == [0, 6]
    assert all(segment.notes is not None for segment in closed)
    assert last.notes == closed[0].notes
    assert tail.notes is None


def test_notes_are_first_words_frequent_words_names_and_days(ask: Asked) -> None:
    notes = ask(prompts.summary(ANA, TOLD))
    assert notes.keywords[0] == "kiln"
    assert "Ana: Yes, the kiln cracked yesterday, in Porto." in notes.summary
    assert notes.entities == ("Porto", "Tomas")
    assert [(day.text, day.start) for day in notes.dates] == [("yesterday", "2023-11-13")]


def test_topics_that_share_words_are_related(ask: Asked) -> None:
    expected = [ScoredRelation("hotels", "contradict", 0.9)]
    assert ask(prompts.relations(ANA, HOTELS, OTHERS)) == expected
    links = ask(prompts.links(ANA, [(HOTELS, OTHERS), (OTHERS[1], [])], TOLD, []))
    assert links.relations == (tuple(expected), ())
    assert links.edges == (EventRelation(3, 4, "causal", 0.8),)


def test_parts_of_one_event_are_one(ask: Asked) -> None:
    halves = [Passage(EVENTS[3], "We shape", (), 1, 2), Passage(EVENTS[3], "the clay", (), 2, 2)]
    notes = ask(prompts.summary(ANA, halves))
    assert notes.summary == "Bo: the 2nd: We shape the clay"


def test_an_answer_longer_than_it_may_be_is_cut_off_and_asked_for_again(ask: Asked, server: ScriptedModel) -> None:
    server.script(Step('{"boundaries": [6', cut_off=True), Step("no"))
    assert ask(prompts.boundaries(ANA, ALL)) == [6]
    assert [call.calls for call in ask.calls] == [3]
    before, after = list(pairwise(server.asked))[-1]
    assert len(before.document["messages"]) == len(after.document["messages"]) == 4
