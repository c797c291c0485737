"""The cases on which other systems lost an episode to a local model's answer, each with its right result."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import pytest

from raygam.memory import prompts
from raygam.memory.chat import Prompt, Reading
from raygam.memory.errors import BadAnswer
from raygam.memory.model import Event, User
from raygam.memory.model_output import json_value
from raygam.memory.proposal import Candidate, ScoredRelation
from raygam.memory.transcript import whole

USER = User("default", "u1")
TWELVE = [Event(USER, seq, f"m{seq}", "s1", "Ana", "user", f"Turn {seq}.", seq * 60_000_000) for seq in range(12)]
FIVE = TWELVE[:5]
TOPICS = [Candidate(f"topic-{name}", "Ana: The kiln broke.", ("kiln",), (), 0, 0, 0.9) for name in "ab"]
NEW = Candidate("topic-new", "Ana: The kiln is repaired.", ("kiln",), (), 0, 0, 1.0)


T = TypeVar("T")


def read(prompt: Prompt[T], text: str, *, cut_off: bool = False) -> Reading[T]:
    return prompt.read(json_value(text, prompt.schema, cut_off))


@pytest.mark.parametrize(
    ("case", "answer", "expected", "dropped"),
    [
        ("think-block", '<think>the topic changes at 4</think>\n{"boundaries": [4, 9]}', [4, 9], 0),
        ("fenced", '```json\n{"boundaries": [4]}\n```', [4], 0),
        ("bare-array", "[4, 9]", [4, 9], 0),
        ("out-of-range", '{"boundaries": [-1, 0, 4, 4, 12, 99, "7"]}', [4, 7], 5),
    ],
)
def test_boundaries_of_twelve_events(case: str, answer: str, expected: list[int], dropped: int) -> None:
    assert read(prompts.boundaries(USER, whole(TWELVE)), answer) == Reading(expected, dropped), case


def test_an_echoed_schema_is_no_answer() -> None:
    """Case model-output-schema-echo; that the task is parked after the retries is the worker's."""
    with pytest.raises(BadAnswer, match="repeats the schema"):
        read(
            prompts.boundaries(USER, whole(TWELVE)),
            '{"type":"object","properties":{"boundaries":{"type":"array"}}}',
        )


def test_our_own_schema_echoed_is_no_answer() -> None:
    asked: list[Prompt[Any]] = [
        prompts.boundaries(USER, whole(TWELVE)),
        prompts.summary(USER, whole(FIVE)),
        prompts.segments(USER, whole(FIVE), closes=True),
        prompts.relations(USER, NEW, TOPICS),
        prompts.links(USER, [(NEW, TOPICS)], whole(FIVE), []),
        prompts.joined_parts(USER, []),
    ]
    for prompt in asked:
        with pytest.raises(BadAnswer, match="repeats the schema"):
            read(prompt, json.dumps(prompt.schema))
        with pytest.raises(BadAnswer):
            read(prompt, json.dumps(prompt.schema["properties"]))


def test_unknown_candidates_and_types_are_left_out() -> None:
    """Case model-output-unknown-candidate."""
    answer = (
        '{"relations":[{"topic":"zz","type":"support","confidence":0.9},'
        '{"topic":"a","type":"SUPPORT","confidence":"0.8"},{"topic":"b","type":"likes","confidence":0.9}]}'
    )
    found = read(prompts.relations(USER, NEW, TOPICS), answer)
    assert found == Reading([ScoredRelation("topic-a", "support", 0.8)], 2)


def test_a_missing_key_is_asked_for_again() -> None:
    """Case model-output-missing-key."""
    prompt = prompts.summary(USER, whole(FIVE))
    with pytest.raises(BadAnswer, match="'keywords' is missing from the answer, which has summary"):
        read(prompt, '{"summary":"A trip to Porto."}')
    found = read(prompt, '{"summary":"A trip to Porto.","keywords":["Porto","trip"]}')
    assert (found.value.summary, found.value.keywords, found.dropped) == ("A trip to Porto.", ("Porto", "trip"), 0)


@pytest.mark.parametrize("cut_off", [False, True])
def test_nothing_of_a_cut_text_is_used(cut_off: bool) -> None:
    """Case model-output-cut-off, with and without the server's word that it was cut."""
    prompt = prompts.summary(USER, whole(FIVE))
    with pytest.raises(BadAnswer, match=r"cut off|has no end"):
        read(prompt, '{"summary":"A trip to Por', cut_off=cut_off)
    found = read(prompt, '{"summary":"A trip to Porto.","keywords":["Porto"]}')
    assert (found.value.summary, found.value.keywords) == ("A trip to Porto.", ("Porto",))
