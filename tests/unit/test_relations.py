"""Relations by rules: what contradicts what, which of two is past, and what stays unrelated."""

from __future__ import annotations

import numpy as np
import pytest

from raygam.memory.model import Event, EventRelation, Kind, User
from raygam.memory.proposal import Candidate
from raygam.memory.relations import (
    RELATION_THRESHOLD,
    RuleRelationScorer,
    event_relations,
    semantic_confidence,
    superseded,
    utterances,
)
from raygam.memory.summary import ExtractiveSummarizer
from raygam.memory.times import parse_timestamp

USER = User("default", "u1")
EARLY = parse_timestamp("2024-02-01T12:00:00Z")[0]
LATE = parse_timestamp("2025-02-01T12:00:00Z")[0]


def event(seq: int, speaker: str, text: str, kind: str = Kind.UTTERANCE) -> Event:
    return Event(USER, seq, f"m{seq}", "s1", speaker, "user", text, seq, kind=kind)


def topic(topic_id: str, *turns: tuple[str, str], at: int, similarity: float = 1.0, stored: bool = False) -> Candidate:
    events = [event(seq, speaker, text) for seq, (speaker, text) in enumerate(turns)]
    notes = ExtractiveSummarizer().notes(events, np.eye(len(events), 8, dtype=np.float32))
    texts = () if stored else turns
    return Candidate(topic_id, notes.summary, notes.keywords, notes.entities, at, at, similarity, texts)


def judge(
    new: tuple[tuple[str, str], ...],
    old: tuple[tuple[str, str], ...],
    similarity: float,
    *,
    new_at: int = LATE,
    old_at: int = EARLY,
) -> tuple[str, float]:
    """Type and confidence of the one relation of a new topic to a stored one, ("", 0) if there is none."""
    found = RuleRelationScorer().relations(
        topic("new", *new, at=new_at), [topic("old", *old, at=old_at, similarity=similarity, stored=True)]
    )
    return (found[0].type, found[0].confidence) if found else ("", 0.0)


CONTRADICTIONS = [
    ("I love Sichuan food.", "Honestly I can't stand Sichuan food any more."),
    ("I love hiking.", "I hate hiking now."),
    ("I really enjoy my piano lessons.", "I quit piano lessons."),
    ("I like oysters.", "I'm allergic to oysters."),
    ("I'm a big fan of opera.", "I am not a fan of opera."),
    ("I work at Orbis.", "I now work at Vela."),
    ("I live in Porto.", "I moved to Lisbon."),
    ("My favourite colour is green.", "My favourite colour is now blue."),
    ("我喜欢吃火锅。", "我不再喜欢吃火锅了。"),
    ("我在华为工作。", "我现在在腾讯上班。"),
]


@pytest.mark.parametrize(("before", "after"), CONTRADICTIONS)
def test_contradicts(before: str, after: str) -> None:
    """Case changed-preference-keeps-both, the judgement: and in whichever order the two arrive."""
    for new, old, new_at, old_at in ((after, before, LATE, EARLY), (before, after, EARLY, LATE)):
        kind, confidence = judge((("Ana", new),), (("Ana", old),), 0.6, new_at=new_at, old_at=old_at)
        assert kind == "contradict"
        assert confidence >= RELATION_THRESHOLD


@pytest.mark.parametrize(
    ("speaker", "before", "after"),
    [
        ("Bo", "I love Sichuan food.", "I can't stand Sichuan food."),  # another one's taste
        ("Ana", "I love Sichuan food.", "I hate waiting in line for food."),
        ("Ana", "I love my dog, we walk far.", "I don't like it when dogs bark."),
        ("Ana", "I work at Vela.", "I still work at Vela."),
        ("Ana", "I live in Porto.", "Do I hate living in Porto?"),
        ("Ana", "I love Sichuan food.", "Bo hates Sichuan restaurants."),
        ("Ana", "I got used to the cold.", "I like the cold."),
    ],
)
def test_does_not_contradict(speaker: str, before: str, after: str) -> None:
    assert judge(((speaker, after),), (("Ana", before),), 0.6)[0] != "contradict"


def test_the_older_by_event_time_is_past() -> None:
    """Cases changed-preference-keeps-both and late-message-does-not-supersede."""
    old, new = topic("old", ("Ana", "I work at Orbis."), at=EARLY), topic("new", ("Ana", "I work at Vela."), at=LATE)
    assert superseded(new, old, "contradict") == "old"
    assert superseded(old, new, "contradict") == "old"
    assert superseded(new, old, "semantic") is None


def test_of_the_same_time_the_stored_one_is_past() -> None:
    one, other = topic("new", ("Ana", "I work at Vela."), at=LATE), topic("old", ("Ana", "I work at Orbis."), at=LATE)
    assert superseded(one, other, "contradict") == "old"


def test_same_word_two_meanings() -> None:
    """Case same-word-two-meanings: even if the embedding were fooled."""
    fruit = (
        ("Ana", "I bought two kilos of apples at the market for a pie."),
        ("Ana", "The pie needs cinnamon and a little lemon."),
    )
    company = (
        ("Ana", "Apple moved its keynote to June, so I postponed my article."),
        ("Ana", "My editor at the magazine agreed to the new date."),
    )
    for similarity in (0.25, 0.5, 0.75, 0.9):
        assert judge(company, fruit, similarity)[0] in ("", "semantic")
        assert judge(fruit, company, similarity)[0] in ("", "semantic")


def test_coreference_needs_a_shared_name_and_likeness() -> None:
    new, old = (("Ana", "We walked Toby to Porto again."),), (("Ana", "Then we got Toby from the Porto shelter."),)
    assert judge(new, old, 0.7)[0] == "coreference"
    assert judge(new, old, 0.4) == ("semantic", 0.5)


def test_speakers_names_link_nothing() -> None:
    new = (("Ana", "At school I met Melanie, and Melanie sang."), ("Melanie", "The concert was loud."))
    old = (("Ana", "Once I told Melanie of it, and Melanie laughed."), ("Melanie", "Such a joke."))
    assert judge(new, old, 0.7)[0] == "semantic"


def test_a_term_of_most_candidates_tells_none_apart() -> None:
    texts = [
        "The garden kiln broke.",
        "A garden kiln exploded.",
        "Garden kiln smoke spread.",
        "Our garden kiln cooled.",
    ]
    candidates = [topic(str(at), ("Ana", text), at=EARLY, similarity=0.7, stored=True) for at, text in enumerate(texts)]
    new = topic("new", ("Ana", "The garden kiln glows."), at=LATE)
    assert {each.type for each in RuleRelationScorer().relations(new, candidates)} == {"semantic"}
    assert {each.type for each in RuleRelationScorer().relations(new, candidates[:1])} == {"coreference"}


def test_a_cause_in_the_words_of_an_earlier_topic() -> None:
    old = (("Ana", "I broke my ankle at the climbing gym."),)
    new = (("Ana", "I missed the marathon because of my ankle, the climbing gym paid for it."),)
    assert judge(new, old, 0.6)[0] == "causal"
    assert judge(new, old, 0.6, new_at=EARLY, old_at=LATE)[0] != "causal"
    assert (
        judge((("Ana", "I missed the marathon with my ankle, the climbing gym paid for it."),), old, 0.6)[0] != "causal"
    )


def test_supports_the_same_stance() -> None:
    assert judge((("Ana", "I enjoy hiking."),), (("Ana", "I love hiking."),), 0.7)[0] == "support"


@pytest.mark.parametrize(("similarity", "expected"), [(0.5, 0.6), (0.3, 0.4), (-0.5, 0.0), (1.0, 0.95)])
def test_semantic_confidence(similarity: float, expected: float) -> None:
    assert semantic_confidence(similarity) == pytest.approx(expected)


def test_unlike_topics_are_unrelated() -> None:
    assert judge((("Ana", "The kiln exploded."),), (("Bo", "Taxes rose."),), -0.2) == ("", 0.0)


def test_no_candidates() -> None:
    assert RuleRelationScorer().relations(topic("new", ("Ana", "Kilns."), at=LATE), []) == []


def test_utterances_of_a_summary() -> None:
    assert utterances("Ana: I sing: loudly.\nBo: No.") == (("Ana", "I sing: loudly."), ("Bo", "No."))
    assert utterances("A trip to Porto.") == (("", "A trip to Porto."),)


def edges(events: list[Event], kind: str, vectors: np.ndarray | None = None) -> list[tuple[int, int]]:
    given = np.eye(len(events), dtype=np.float32) if vectors is None else vectors
    return [(each.source_seq, each.target_seq) for each in event_relations(events, given) if each.type == kind]


def test_temporal_follows_event_order() -> None:
    events = [event(seq, "Ana", "Kilns.") for seq in (7, 3, 9)]
    assert edges(events, "temporal") == [(7, 3), (3, 9)]


def test_an_answer_replies_to_its_question() -> None:
    events = [
        event(1, "Ana", "The kiln is hot."),
        event(2, "Bo", "Which airport do you fly from?"),
        event(3, "Bo", "I can drive you."),
        event(4, "Ana", "Lisbon. And you?"),
        event(5, "Bo", "Porto."),
        event(6, "Ana", "Good."),
    ]
    assert edges(events, "reply") == [(4, 2), (5, 4)]


@pytest.mark.parametrize("question", ["你从哪里出发？", "你去吗", 'Really?" ', "Why? "])
def test_questions(question: str) -> None:
    assert edges([event(1, "Ana", question), event(2, "Bo", "Yes.")], "reply") == [(2, 1)]


@pytest.mark.parametrize("text", ["See https://x.org/?q=1 please", "No.", ""])
def test_no_questions(text: str) -> None:
    assert edges([event(1, "Ana", text), event(2, "Bo", "Yes.")], "reply") == []


def test_a_question_is_not_answered_much_later() -> None:
    events = [event(1, "Ana", "Who?"), *(event(seq, "Ana", "Hm.") for seq in (2, 3, 4)), event(5, "Bo", "Kilns.")]
    assert edges(events, "reply") == []


def test_an_observation_replies_to_its_action() -> None:
    events = [
        event(1, "agent", "search(kiln)", Kind.ACTION),
        event(2, "agent", "I wonder.", Kind.THOUGHT),
        event(3, "tool", "3 results", Kind.OBSERVATION),
        event(4, "tool", "unasked", Kind.OBSERVATION),
    ]
    assert edges(events, "reply") == [(3, 1)]


def test_semantic_links_like_events_beyond_neighbours() -> None:
    vectors = np.array([[1, 0], [1, 0], [0, 1], [0.8, 0.6]], np.float32)
    found = event_relations([event(seq, "Ana", "Kilns.") for seq in range(4)], vectors)
    assert [each for each in found if each.type == "semantic"] == [
        EventRelation(0, 3, "semantic", 0.8),
        EventRelation(1, 3, "semantic", 0.8),
    ]


def test_semantic_links_are_few() -> None:
    count = 30
    events = [event(seq, "Ana", "Kilns.") for seq in range(count)]
    found = edges(events, "semantic", np.tile(np.array([[1, 0]], np.float32), (count, 1)))
    degrees = np.bincount(np.array(found).ravel(), minlength=count)
    assert degrees.max() <= 2
    assert all(source < target for source, target in found)


def test_one_event_has_no_relations() -> None:
    assert event_relations([event(1, "Ana", "Why?")], np.ones((1, 2), np.float32)) == ()
