"""From a chat model's text to a JSON value."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygam.memory import schemas
from raygam.memory.errors import BadAnswer
from raygam.memory.model_output import json_value

BOUNDARIES = schemas.boundaries(12)
NOTES = schemas.notes(5)
LINKS = schemas.links(("n1",), ("n1", "a"), 1, 5)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"boundaries": [4]}', [4]),
        ('  \n{"boundaries": [4]}\n\n', [4]),
        ("[4, 9]", [4, 9]),
        ("[]", []),
        ("```\n[4]\n```", [4]),
        ('```JSON\n{"boundaries": [4]}```', [4]),
        ('Sure! Here it is:\n{"boundaries": [4]}\nAnything else?', [4]),
        ('The topic changes at [4] {as I see it}. {"boundaries": [4]}', [4]),
        ("Here you are: [4, 9].", [4, 9]),
        ('<think>first {"boundaries": [3]}, no</think>{"boundaries": [4]}', [4]),
        ('first {"boundaries": [3]}, no</think>\n{"boundaries": [4]}', [4]),
        ('<think>the topic changes at 4\n{"boundaries": [4]}', [4]),
        ("<THINKING>\n[1, 2]\n</THINKING>\n[4]", [4]),
        ("<think>a<thought>[1]</thought>[2]</think>[4]", [4]),
        ("[1]</thought><think>[2]</think>[4]<reasoning>or not?</reasoning>", [4]),
        ("<think>" * 30_000 + "</thought>[4]", [4]),
        ('{"boundaries": [4], "boundaries": [4]}', [4]),
        ('{"boundaries": [4]}\nThat is: {"boundaries": [4]}', [4]),
    ],
)
def test_wrappings_are_taken_off(text: str, value: list[int]) -> None:
    assert json_value(text, BOUNDARIES) == {"boundaries": value}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no JSON value"),
        ("The topic never changes.", "no JSON value"),
        ("<think>hm</think>", "no JSON value"),
        ('{"boundaries": [4, 9', "broken JSON or has no end"),
        ('{"boundaries": [4, 9], "why', "broken JSON or has no end"),
        ("{'boundaries': [4]}", "broken JSON or has no end"),
        ("{boundaries: [4]}", "broken JSON or has no end"),
        ('[{"boundaries": [4]}, {"bound', "broken JSON or has no end"),
        ('```json\n{"boundaries": [4,]}\n```', "broken JSON or has no end"),
        ('{"boundaries": [NaN]}', "broken JSON or has no end"),
        ('{"boundaries": [4]} or {"boundaries": [9]}', "2 different JSON values"),
        ("[4, 9", "broken JSON or has no end"),
        ("[4] or [9]", "2 different JSON values"),
        ('{"boundaries": [4], "boundaries": [9]}', "broken JSON"),
        ("{" * 300_000, "more than any that fits"),
        ("4", "a number, not an object with 'boundaries'"),
        ('"{}"', "a text, not an object"),
        ("null", "null, not an object"),
        (json.dumps(BOUNDARIES), "repeats the schema"),
        ("[" * 100_000, "broken JSON or has no end"),
        ('{"boundaries": [' + "9" * 5000 + "]}", "broken JSON or has no end"),
    ],
)
def test_what_is_not_one_whole_value_is_refused(text: str, reason: str) -> None:
    with pytest.raises(BadAnswer, match=reason):
        json_value(text, BOUNDARIES)


def test_a_cut_off_answer_is_refused_though_it_reads() -> None:
    with pytest.raises(BadAnswer, match="cut off at its greatest length"):
        json_value('{"boundaries": [4]}', BOUNDARIES, cut_off=True)


def test_an_array_is_no_object_of_several_properties() -> None:
    for schema in (NOTES, LINKS):
        with pytest.raises(BadAnswer, match="an array, not an object with"):
            json_value("[1]", schema)


def test_what_stands_inside_a_whole_value_is_no_wrapping() -> None:
    summary = 'Ana wrote "</think>" and ```json {"summary": "x", "keywords": []}``` to Bo.'
    assert json_value(json.dumps({"summary": summary, "keywords": []}), NOTES)["summary"] == summary


def test_an_object_beside_the_one_that_is_meant_is_prose() -> None:
    assert json_value('As {"n": 4} shows: {"boundaries": [4]}', BOUNDARIES) == {"boundaries": [4]}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["summary", "keywords", "topic"]), JSON, min_size=1), st.booleans())
def test_an_object_comes_back_as_it_was(value: dict[str, Any], fenced: bool) -> None:
    text = json.dumps(value)
    assert json_value(f"```json\n{text}\n```" if fenced and "</think" not in text else text, NOTES) == value


@given(st.text(alphabet='{}[]",:0123456789 abn<think>/`\n', max_size=60))
def test_any_text_is_a_value_or_a_bad_answer(text: str) -> None:
    try:
        assert isinstance(json_value(text, BOUNDARIES), dict)
    except BadAnswer as error:
        assert str(error)
