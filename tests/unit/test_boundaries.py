"""Where the topic changes: the detector, the cues it reads, and the measures it is judged by."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.segmentation import boundary_f1, half_segment, pk, window_diff
from raygam.memory.boundaries import TextTiling, TextTilingSettings
from raygam.memory.cohesion import MEASURES, cohesion
from raygam.memory.discourse import Cue, read
from raygam.memory.model import Cut, Event, Kind, User

DIMENSION = 16
OWNER = User("default", "u1")


def event(at: int, text: str, speaker: str = "", kind: str = Kind.UTTERANCE) -> Event:
    role = speaker or ("user", "assistant")[at % 2]
    return Event(OWNER, at + 1, f"m{at}", "s", role, role, text, at * 1_000_000, kind=kind)


def talk(*texts: str) -> list[Event]:
    return [event(at, text) for at, text in enumerate(texts)]


def topics(*numbers: int) -> NDArray[np.float32]:
    """A unit vector per event: near its topic's axis, and the same for the same place."""
    noise = np.random.default_rng(5).normal(scale=0.05, size=(len(numbers), DIMENSION))
    rows = np.eye(DIMENSION)[list(numbers)] + noise
    unit: NDArray[np.float32] = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return unit


def cuts(events: list[Event], vectors: NDArray[np.float32], force: bool = False) -> list[Cut]:
    return TextTiling().boundaries(events, vectors, force=force)


def indices(events: list[Event], vectors: NDArray[np.float32], force: bool = False) -> list[int]:
    return [cut.index for cut in cuts(events, vectors, force)]


SERVICE = talk(
    "I need a table for two tonight.",
    "Which part of town?",
    "In the north, please.",
    "The Willow has a free table. It is booked. Is there anything else I can help you with?",
    "I'm looking for a plumber who can mend a tap.",
    "What is wrong with the tap?",
    "It drips all night.",
    "A plumber comes tomorrow at nine.",
)
SERVICE_VECTORS = topics(0, 0, 0, 0, 1, 1, 1, 1)


def test_topic_change_after_a_closing_question_is_cut_once() -> None:
    assert indices(SERVICE, SERVICE_VECTORS) == [4]


def test_reason_names_the_shift_and_the_cues() -> None:
    (cut,) = cuts(SERVICE, SERVICE_VECTORS)
    assert "topic shift" in cut.reason
    assert "an offer of further help" in cut.reason
    assert "a stated need opens" in cut.reason
    assert 0.5 < cut.confidence <= 1.0


def test_single_topic_is_not_cut_unless_forced() -> None:
    events = talk(
        "My garden tomatoes are ripe.",
        "Those tomatoes look great, are they sweet?",
        "They are very sweet tomatoes.",
        "I would make a tomato soup of them.",
        "The tomato soup was what I thought of too.",
        "Add basil to the tomato soup.",
    )
    vectors = topics(0, 0, 0, 0, 0, 0)
    assert indices(events, vectors) == []
    assert len(indices(events, vectors, force=True)) == 1


def test_question_and_its_answer_stay_together_though_the_topic_changes_between_them() -> None:
    events = talk("We talked enough about the budget.", "Which airport do you fly from?", "Lisbon.")
    for force in (False, True):
        assert 2 not in indices(events, topics(0, 0, 1), force)
        assert 2 not in indices(events, topics(0, 1, 2), force)
    assert indices(events, topics(0, 1, 1), force=True) == [1]


def test_closing_question_binds_nothing() -> None:
    asked = talk("The parcel was sent.", "Do you need a receipt for the parcel?", "A new lamp would suit the hall.")
    offered = talk("The parcel was sent.", "Is there anything else?", "A new lamp would suit the hall.")
    assert indices(asked, topics(0, 0, 1), force=True) == [1]
    assert indices(offered, topics(0, 0, 1), force=True) == [2]


def test_turn_that_opens_something_else_does_not_answer() -> None:
    events = talk(
        "I need the phone number of the museum.",
        "The museum's number is 555 0199. Shall I plan a route to the museum?",
        "I want to order new running shoes in size nine for my daughter.",
        "What colour should the running shoes have?",
    )
    assert indices(events, topics(0, 0, 1, 1)) == [2]


def test_question_waits_for_its_answer_through_tool_calls() -> None:
    events = [
        event(0, "What does the old invoice say?", "user"),
        event(1, "open invoice", "assistant", Kind.THOUGHT),
        event(2, "read(invoice)", "assistant", Kind.ACTION),
        event(3, "total 20", "tool", Kind.OBSERVATION),
        event(4, "It says twenty.", "assistant"),
        event(5, "By the way, I want to paint the kitchen green.", "user"),
    ]
    assert indices(events, topics(0, 1, 2, 3, 4, 5), force=True) == [5]


def test_observation_stays_with_its_action_and_force_prefers_any_other_gap() -> None:
    events = [
        event(0, "list files", "assistant", Kind.ACTION),
        event(1, "a.txt", "tool", Kind.OBSERVATION),
        event(2, "delete a.txt", "assistant", Kind.ACTION),
        event(3, "done", "tool", Kind.OBSERVATION),
    ]
    assert indices(events, topics(0, 1, 1, 2), force=True) == [2]


def test_force_cuts_even_where_every_gap_is_bound() -> None:
    events = talk("Where do you live?", "In Porto.")
    assert indices(events, topics(0, 1)) == []
    assert indices(events, topics(0, 1), force=True) == [1]


def test_chinese_topic_change_and_chinese_question() -> None:
    events = talk(
        "我想订一张去上海的火车票。",
        "您想什么时候出发？",
        "明天早上八点出发。",
        "好的，火车票已经为您预订成功。还有什么可以帮您的吗？",
        "我想找一家安静的咖啡馆写作业。",
        "您在哪个区？",
        "在城西的大学旁边。",
        "大学旁边的咖啡馆很安静。",
    )
    assert indices(events, topics(0, 0, 0, 0, 1, 1, 1, 1)) == [4]
    pair = talk("预算已经谈够了。", "您从哪个机场出发", "里斯本。")
    assert indices(pair, topics(0, 0, 1), force=True) == [1]


def test_chinese_closing_opens_a_gap_even_where_the_vectors_say_nothing() -> None:
    events = talk(
        "您的车已经预订成功。", "谢谢，再见！", "不客气，再见。", "你好，我想买一台冰箱。", "您要多大的冰箱？"
    )
    assert indices(events, np.zeros((5, DIMENSION), dtype=np.float32), force=True) == [3]


@pytest.mark.parametrize(
    ("text", "there", "absent"),
    [
        ("Anything else?", Cue.OFFER, Cue.QUESTION),
        ("What day? And can I help you with anything else?", Cue.OFFER, Cue.QUESTION),
        ("还需要别的吗？", Cue.OFFER, Cue.QUESTION),
        ("还有别的需要吗", Cue.OFFER, Cue.QUESTION),
        ("你们去吃饭吗", Cue.QUESTION, Cue.OFFER),
        ("您要多大的？", Cue.QUESTION, Cue.OFFER),
        ("which airport do you fly from", Cue.QUESTION, Cue.OFFER),
        ("Anything else? Which day suits you?", Cue.QUESTION, Cue.OFFER),
        ("Thanks a lot, bye!", Cue.THANKS | Cue.FAREWELL, Cue.NEED),
        ("You’re welcome", Cue.WELCOME, Cue.THANKS),
        ("I’d like a room", Cue.NEED, Cue.REACTION),
        ("Great, thanks. Can you book it?", Cue.REQUEST | Cue.QUESTION, Cue.NEED),
        ("Your order has been placed.", Cue.DONE, Cue.OFFER),
        ("I have a 19:17 from London.", Cue(0), Cue.FAREWELL),
        ("顺便问一下", Cue.MARKER, Cue.GREETING),
    ],
)
def test_cues(text: str, there: Cue, absent: Cue) -> None:
    cues = read(text).cues
    assert cues & there == there
    assert not cues & absent


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("force", [False, True])
def test_nothing_to_cut(count: int, force: bool) -> None:
    assert cuts(talk(*["hello"] * count), np.ones((count, DIMENSION), dtype=np.float32), force) == []


def test_equal_and_zero_vectors_are_evidence_of_nothing() -> None:
    events = talk("one", "two", "three", "four")
    for vectors in (np.zeros((4, DIMENSION), np.float32), np.full((4, DIMENSION), 0.25, np.float32)):
        assert cuts(events, vectors) == []
        (cut,) = cuts(events, vectors, force=True)
        assert 0.0 <= cut.confidence <= 1.0


def test_more_evidence_never_lowers_confidence() -> None:
    plain = talk("The soup is hot.", "The soup needs salt.", "My new bike is blue.", "A blue bike is easy to see.")
    closed = [*plain[:1], event(1, "The soup needs salt. Take care, goodbye!"), *plain[2:]]
    vectors = topics(0, 0, 1, 1)
    (before,) = cuts(plain, vectors, force=True)
    (after,) = cuts(closed, vectors, force=True)
    assert (before.index, after.index) == (2, 2)
    assert before.confidence < after.confidence


def test_settings_decide_how_much_evidence_a_cut_needs() -> None:
    strict = TextTiling(TextTilingSettings(floor=20.0))
    assert strict.boundaries(SERVICE, SERVICE_VECTORS, force=False) == []


_TEXTS = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["Anything else?", "Where?", "谢谢，再见！", "吗", "I need a car", "Thanks", "", "？", "that one"]),
)
_KINDS = st.sampled_from([Kind.UTTERANCE, Kind.UTTERANCE, Kind.ACTION, Kind.OBSERVATION, Kind.THOUGHT])


@settings(deadline=None)
@given(
    turns=st.lists(st.tuples(_TEXTS, st.sampled_from(["user", "assistant", "Ana"]), _KINDS), max_size=14),
    seed=st.integers(0, 2**16),
    scale=st.sampled_from([0.0, 1e-6, 1.0]),
    force=st.booleans(),
)
def test_any_buffer(turns: list[tuple[str, str, Kind]], seed: int, scale: float, force: bool) -> None:
    events = [event(at, text, speaker, kind) for at, (text, speaker, kind) in enumerate(turns)]
    vectors = (np.random.default_rng(seed).normal(size=(len(events), 8)) * scale).astype(np.float32)
    found = cuts(events, vectors, force)
    places = [cut.index for cut in found]
    assert places == sorted(set(places))
    assert all(0 < place < len(events) for place in places)
    assert all(0.0 <= cut.confidence <= 1.0 and cut.reason for cut in found)
    assert found == cuts(events, vectors, force)
    if force and len(events) >= 2:
        assert found


@settings(deadline=None)
@given(
    terms=st.lists(st.sets(st.integers(0, 9), max_size=5), min_size=2, max_size=14),
    seed=st.integers(0, 2**16),
)
def test_measures_by_hand(terms: list[set[int]], seed: int) -> None:
    events = [event(at, "", ("user", "assistant")[seed >> at & 1]) for at in range(len(terms))]
    vectors = np.random.default_rng(seed).normal(size=(len(events), 8)).astype(np.float32)
    found = dict(zip(MEASURES, cohesion(events, vectors, list(map(tuple, terms)), 4.0), strict=True))
    rows = vectors.astype(np.float64)
    for speaker in {turn.speaker for turn in events}:
        own = [turn.speaker == speaker for turn in events]
        rows[own] -= vectors[own].sum(axis=0) / (sum(own) + 4.0)
    rarity = [float(np.log1p(len(terms) / max(1, sum(term in said for said in terms)))) for term in range(10)]

    def cosine(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
        return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))

    def weigh(said: set[int]) -> float:
        return sum(rarity[term] for term in said)

    depth = np.zeros(len(events) - 1)
    for width in (1, 2, 4):
        wanted = [
            cosine(rows[max(0, at - width) : at].sum(axis=0), rows[at : at + width].sum(axis=0))
            for at in range(1, len(events))
        ]
        assert found[f"similarity_{width}"] == pytest.approx(wanted, abs=1e-3)
        for gap, height in enumerate(wanted):
            for way in (wanted[: gap + 1][::-1], wanted[gap:]):
                climbed = next((at for at in range(len(way) - 1) if way[at + 1] < way[at]), len(way) - 1)
                depth[gap] += (way[climbed] - height) / 3
    assert found["depth"] == pytest.approx(depth, abs=3e-3)
    for gap, at in enumerate(range(1, len(events))):
        link = max(
            cosine(rows[a], rows[b]) for a in range(at, min(at + 2, len(events))) for b in range(max(0, at - 4), at)
        )
        assert found["link"][gap] == pytest.approx(link, abs=1e-3)
        ahead = max((cosine(rows[at], row) for row in rows[at + 1 : at + 4]), default=0.0)
        assert found["ahead"][gap] == pytest.approx(ahead, abs=1e-3)
        for width in (2, 4):
            before, after = set().union(*terms[max(0, at - width) : at]), set().union(*terms[at : at + width])
            lighter = min(weigh(before), weigh(after))
            share = weigh(before & after) / lighter if lighter else 0.0
            assert found[f"shared_terms_{width}"][gap] == pytest.approx(share, abs=1e-6)


def test_a_reading_is_the_same_in_any_case_and_in_full_width() -> None:
    assert read("OK, booked it").terms == read("ok booked IT").terms == read("ＯＫ，ｂｏｏｋｅｄ　ｉｔ").terms
    assert read("").terms == ()


def test_a_measure_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="tuple"):
        TextTiling(TextTilingSettings(cohesion_weights={"warmth": 1.0}))


def test_pk_and_window_diff_by_hand() -> None:
    # Eight events, cut at 4; window half of 4. Pairs (0,2) … (5,7): a cut lies between for i = 2, 3.
    assert half_segment(8, [4]) == 2
    assert pk(8, [4], [4], 2) == 0.0
    assert pk(8, [4], [], 2) == pytest.approx(2 / 6)
    assert pk(8, [4], [5], 2) == pytest.approx(2 / 6)  # found for i = 3, 4: wrong at 2 and 4
    # Cuts at 4 and 5: i = 2 and 4 hold one, i = 3 holds two. Pk sees i = 4 only, WindowDiff i = 3 as well.
    assert pk(8, [4], [4, 5], 2) == pytest.approx(1 / 6)
    assert window_diff(8, [4], [4, 5], 2) == pytest.approx(2 / 6)
    assert window_diff(8, [4], [4], 2) == 0.0


def test_measures_of_dialogues_without_cuts() -> None:
    assert half_segment(3, []) == 2
    assert half_segment(1, []) == 1
    assert pk(1, [], [], 1) == 0.0
    assert boundary_f1([([], [])]) == 1.0
    assert boundary_f1([([2, 4], [2, 5]), ([3], [])]) == pytest.approx(2 / 5)
