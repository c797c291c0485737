from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from raygam.adapters.faiss_index import FaissFlatIndex
from raygam.adapters.stub_embedder import StubEmbedder
from raygam.memory.candidates import MIN_CANDIDATES
from raygam.memory.errors import Rejected
from raygam.memory.model import (
    Episode,
    Event,
    EventRelation,
    Layer,
    Origin,
    ResolvedDate,
    Topic,
    TopicRelation,
    User,
)
from raygam.memory.presentation import as_document
from raygam.memory.ranking import semantic_probability
from raygam.memory.retrieval import RankedMemory, RetrievalResult, retrieve
from raygam.memory.times import parse_timestamp
from raygam.memory.view import MemoryView
from raygam.memory.writes import VectorEntries

USER = User("default", "ana")
START_US = parse_timestamp("2023-05-08T10:00:00Z")[0]
MINUTE_US = 60_000_000
DAY_US = 24 * 60 * MINUTE_US
EMBEDDER = StubEmbedder(256)


@dataclass
class Graphs:
    """A `GraphReader` over lists, and the index that goes with it."""

    stored: list[Event] = field(default_factory=list)
    stored_episodes: list[Episode] = field(default_factory=list)
    stored_topics: list[Topic] = field(default_factory=list)
    relations: list[TopicRelation] = field(default_factory=list)
    tasks: int = 0
    reads: list[str] = field(default_factory=list)
    index: FaissFlatIndex = field(default_factory=lambda: FaissFlatIndex(256))
    logged: int = 0

    def version(self, user: User) -> tuple[int, int, int] | None:
        return (self.stored[-1].seq, self.tasks, 0) if self.stored else None

    def events(self, user: User, after_seq: int = 0, seqs: Sequence[int] | None = None) -> list[Event]:
        self.reads.append("events")
        if seqs is not None:
            by_seq = {event.seq: event for event in self.stored}
            return [by_seq[seq] for seq in seqs]
        return [event for event in self.stored if event.seq > after_seq]

    def episodes(self, user: User) -> list[Episode]:
        self.reads.append("episodes")
        return list(self.stored_episodes)

    def topics(self, user: User) -> list[Topic]:
        return list(self.stored_topics)

    def topic_relations(self, user: User) -> list[TopicRelation]:
        return list(self.relations)

    def event_relations(self, user: User) -> list[EventRelation]:
        return []

    def say(
        self,
        text: str,
        speaker: str = "Ana",
        *,
        minute: int | None = None,
        session: str = "s1",
        origin: Origin = Origin.SAID,
        captions: tuple[str, ...] = (),
    ) -> Event:
        seq = len(self.stored) + 1
        at = START_US + (seq if minute is None else minute) * MINUTE_US
        event = Event(USER, seq, f"m{seq}", session, speaker, "user", text, at, origin=origin, captions=captions)
        self.stored.append(event)
        self._log(Layer.EVENT, str(seq), event.embedded_text)
        return event

    def close(
        self,
        events: Sequence[Event],
        name: str,
        summary: str | None,
        confidence: float = 0.5,
        dates: tuple[ResolvedDate, ...] = (),
    ) -> None:
        """Archive events under a topic, or under none where `summary` is None."""
        seqs = tuple(event.seq for event in events)
        first_us, last_us = events[0].time_us, events[-1].time_us
        episode = Episode(
            f"episode-{name}", USER, events[0].session_id, seqs, first_us, last_us, "flush", "test", 1.0, "test"
        )
        self.stored_episodes.append(episode)
        for seq in seqs:
            self.stored[seq - 1] = self.stored[seq - 1]._replace(episode_id=episode.id, dates=dates)
        if summary is not None:
            topic = Topic(name, USER, episode.id, summary, (), (), (), first_us, last_us, confidence, "test")
            self.stored_topics.append(topic)
            self._log(Layer.TOPIC, name, summary)
        self.tasks += 1

    def supersede(self, old: str, new: str) -> None:
        self.stored_topics = [
            replace(topic, superseded_by=new) if topic.id == old else topic for topic in self.stored_topics
        ]
        self.tasks += 1

    def view(self) -> MemoryView:
        view = MemoryView(USER)
        view.refresh(self)
        return view

    def ask(
        self, query: str, k: int = 10, mode: str = "gam", as_of_us: int | None = None, view: MemoryView | None = None
    ) -> RetrievalResult:
        vector = EMBEDDER.embed([query])[0]
        return retrieve(view or self.view(), query, vector, self.index, k, mode, as_of_us)

    def _log(self, layer: Layer, ref: str, text: str) -> None:
        self.logged += 1
        rows = EMBEDDER.embed([text])
        self.index.apply(USER, VectorEntries(np.array([self.logged]), [layer], [ref], [False], rows))


def ids(result: RetrievalResult) -> list[str]:
    return [memory.event.message_id for memory in result.memories]


def of(result: RetrievalResult, message_id: str) -> RankedMemory:
    return next(memory for memory in result.memories if memory.event.message_id == message_id)


WORDS = ("kettle anchor walnut meadow violin lantern cactus harbour saddle compass pepper glacier "
         "ribbon falcon marble cellar orchard thimble canyon bonfire").split()  # fmt: skip


def large(topics: int = 60, turns: int = 10) -> Graphs:
    """A memory of many topics; each turn says its topic's word and a number of its own."""
    graphs = Graphs()
    for at in range(topics):
        said = []
        for turn in range(turns):
            speaker = ("Ana", "Bo")[turn % 2]
            text = f"{WORDS[at % 20]}{at // 20} detail number{at}x{turn} of that"
            said.append(graphs.say(text, speaker, minute=at * 1000 + turn, session=f"s{at}"))
        graphs.close(said, f"topic{at}", f"About {WORDS[at % 20]}{at // 20}")
    return graphs


def test_an_empty_memory_has_no_answer() -> None:
    for mode in ("gam", "flat"):
        result = Graphs().ask("anything", mode=mode)
        assert (result.memories, result.topics, result.candidate_share) == ((), (), 0.0)


def test_unknown_mode_and_k_below_one_are_refused() -> None:
    graphs = Graphs()
    with pytest.raises(Rejected, match="gam, flat"):
        graphs.ask("anything", mode="magma")
    with pytest.raises(Rejected, match="at least one"):
        graphs.ask("anything", k=0)


@pytest.mark.parametrize("mode", ["gam", "flat"])
def test_k_above_the_memory_returns_each_event_once(mode: str) -> None:
    graphs = Graphs()
    said = [graphs.say("a red kite"), graphs.say("a blue boat"), graphs.say("a green hill")]
    graphs.close(said[:2], "t", "kite and boat")
    assert sorted(ids(graphs.ask("kite", k=50, mode=mode))) == ["m1", "m2", "m3"]


@pytest.mark.parametrize("query", ["", "?!", "the of", "🙂"])
@pytest.mark.parametrize("mode", ["gam", "flat"])
def test_a_query_without_terms_is_answered(query: str, mode: str) -> None:
    graphs = Graphs()
    graphs.say("a red kite")
    graphs.say("a blue boat")
    assert len(graphs.ask(query, mode=mode).memories) == 2


def test_every_event_is_found_by_its_own_text_and_few_are_looked_at() -> None:
    graphs = large()
    view = graphs.view()
    for event in graphs.stored[::7]:
        result = graphs.ask(event.text, view=view)
        assert ids(result)[0] == event.message_id
        assert 0 < result.candidate_share <= 0.3
        memory = result.memories[0]
        assert memory.path.episode == event.episode_id
        assert memory.path.topic == f"topic{event.session_id[1:]}"
        assert view.topics[0].id == "topic0"
    assert any(topic.id == "topic3" for topic in graphs.ask("meadow0 detail", view=view).topics)


def test_a_memory_that_nothing_has_consolidated_is_narrowed_and_found() -> None:
    graphs = Graphs()
    for at in range(600):
        graphs.say(f"{WORDS[at // 30]} note number{at}", minute=at, session=f"s{at // 100}")
    view = graphs.view()
    for event in graphs.stored[::41]:
        result = graphs.ask(event.text, view=view)
        assert ids(result)[0] == event.message_id
        assert result.memories[0].source == "buffer"
        assert result.memories[0].path.topic is None
        assert result.candidate_share <= 0.3


def test_events_without_a_topic_are_found_beside_a_large_memory() -> None:
    graphs = large()
    recalled = [graphs.say("From memory: the tortoise sleeps", origin=Origin.RECALLED, minute=10**6)]
    graphs.close(recalled, "recalled", None)
    live = graphs.say("the penguin sleeps", minute=2 * 10**6)
    assert ids(graphs.ask("tortoise"))[0] == recalled[0].message_id
    assert ids(graphs.ask("penguin"))[0] == live.message_id


def test_a_small_memory_is_looked_at_whole() -> None:
    graphs = large(topics=MIN_CANDIDATES // 10)
    assert graphs.ask("kettle0").candidate_share == 1.0


def test_a_relation_leads_to_what_the_query_does_not_name() -> None:
    graphs = large()
    assert all(memory.path.via is None for memory in graphs.ask("anchor0 detail", k=100).memories)
    graphs.relations.append(TopicRelation("topic30", "topic1", "causal", 0.9))
    graphs.tasks += 1
    result = graphs.ask("anchor0 detail", k=200)
    reached = [memory for memory in result.memories if memory.path.topic == "topic30"]
    assert reached
    assert result.candidate_share <= 0.3


def test_role_fires_for_the_memorys_own_speaker_only() -> None:
    graphs = Graphs()
    graphs.say("I love the steak", "Ana Lima")
    graphs.say("I love the steak", "Bo")
    result = graphs.ask("What does ana think of steak?")
    assert (of(result, "m1").factors.role, of(result, "m2").factors.role) == (1.4, 1.0)
    assert ids(result)[0] == "m1"
    assert all(memory.factors.role == 1.0 for memory in graphs.ask("What about steak?").memories)


def test_time_fires_for_event_time_and_resolved_dates_only_where_the_query_names_a_time() -> None:
    graphs = Graphs()
    may = graphs.say("we repaired the kite", minute=0)
    graphs.say("we repaired the kite", minute=60 * 24 * 60, session="s2")  # July
    back = graphs.say("we repaired the kite", minute=90 * 24 * 60, session="s3")  # August, speaks of May
    graphs.close([back], "t", "kite", dates=(ResolvedDate("in May", "2023-05-01", "2023-05-31"),))
    result = graphs.ask("What was repaired in May 2023?")
    assert {memory.event.message_id: memory.factors.time for memory in result.memories} == {
        may.message_id: 1.4,
        "m2": 1.0,
        back.message_id: 1.4,
    }
    assert all(memory.factors.time == 1.0 for memory in graphs.ask("What was repaired?").memories)
    assert all(memory.factors.time == 1.0 for memory in graphs.ask("When was it repaired?").memories)


def test_dates_of_live_events_are_resolved_when_asked_for() -> None:
    graphs = Graphs()
    graphs.say("I adopted a cat yesterday.")
    memory = graphs.ask("When did Ana adopt a cat?").memories[0]
    assert [(date.start, date.end) for date in memory.dates] == [("2023-05-07", "2023-05-07")]


def test_confidence_is_the_memorys_own_and_above_the_mark() -> None:
    graphs = Graphs()
    said = [graphs.say("the red kite", minute=at * 100, session=f"s{at}") for at in range(3)]
    for event, confidence in zip(said, (0.9, 0.8, 0.5), strict=True):
        graphs.close([event], event.message_id, "kite", confidence)
    result = graphs.ask("kite")
    assert {memory.event.message_id: memory.factors.confidence for memory in result.memories} == {
        "m1": pytest.approx(1.2),
        "m2": 1.0,
        "m3": 1.0,
    }


def test_a_superseded_topic_is_past_unless_the_past_is_asked_for() -> None:
    graphs = Graphs()
    old = graphs.say("Ana lives in Porto", "Bo", minute=0)
    new = graphs.say("Ana lives in Lisbon", "Bo", minute=1000, session="s2")
    graphs.close([old], "old", "lives in Porto")
    graphs.close([new], "new", "lives in Lisbon")
    view = graphs.view()
    assert not of(graphs.ask("Where does Ana live?", view=view), "m1").superseded
    graphs.supersede("old", "new")
    assert view.refresh(graphs)
    now = graphs.ask("Where does Ana live?", view=view)
    assert of(now, "m1").superseded
    assert of(now, "m1").factors.superseded < 1.0
    assert of(now, "m2").factors.superseded == 1.0
    assert ids(now) == ["m2", "m1"]
    assert of(graphs.ask("Where did Ana live before?", view=view), "m1").factors.superseded == 1.0


def test_what_was_said_ranks_before_what_was_recalled() -> None:
    graphs = Graphs()
    graphs.say("I am allergic to walnuts.", minute=0)
    graphs.say("I am allergic to walnuts.", minute=1000, origin=Origin.RECALLED, session="s2")
    assert ids(graphs.ask("walnuts")) == ["m1", "m2"]


def test_a_caption_is_evidence() -> None:
    graphs = Graphs()
    graphs.say("Look at this from Sunday!", captions=("two children flying a red kite",))
    graphs.say("So lovely, what a day.", "Bo")
    graphs.say("I also repaired the kitchen tap.")
    assert ids(graphs.ask("How many children were flying a kite?"))[0] == "m1"


def test_an_answer_is_found_by_its_question() -> None:
    graphs = Graphs()
    graphs.say("We talked enough about the budget.")
    graphs.say("Which airport do you fly from?", "assistant")
    graphs.say("Lisbon.")
    assert "m3" in ids(graphs.ask("Which airport does Ana fly from?"))[:2]


def test_turns_of_other_sessions_are_no_context() -> None:
    graphs = Graphs()
    graphs.say("Which airport do you fly from?", "assistant", session="s1", minute=1)
    graphs.say("Lisbon.", session="s2", minute=2)
    graphs.say("Lisbon.", session="s1", minute=3)
    assert ids(graphs.ask("Which airport?")).index("m3") < ids(graphs.ask("Which airport?")).index("m2")


def test_a_late_turn_stands_between_its_neighbours_by_event_time() -> None:
    graphs = Graphs()
    first, last = graphs.say("first", minute=0), graphs.say("last", minute=10)
    middle = graphs.say("middle", minute=5)
    view = graphs.view()
    at = {event.message_id: view.find(event.seq) for event in (first, middle, last)}
    assert view.next.values[at["m1"]] == at["m3"] == view.previous.values[at["m2"]]
    assert view.next.values[at["m3"]] == at["m2"]
    assert view.previous.values[at["m1"]] == -1 == view.next.values[at["m2"]]


@pytest.mark.parametrize("mode", ["gam", "flat"])
def test_as_of_sees_nothing_later(mode: str) -> None:
    graphs = large()
    as_of_us = graphs.stored[99].time_us
    result = graphs.ask("detail of that", k=1000, mode=mode, as_of_us=as_of_us)
    assert result.memories
    assert all(memory.event.time_us <= as_of_us for memory in result.memories)
    assert ids(graphs.ask(graphs.stored[42].text, mode=mode, as_of_us=as_of_us))[0] == "m43"
    assert graphs.ask("detail", mode=mode, as_of_us=START_US - 1).memories == ()


def test_as_of_is_not_moved_by_what_came_later() -> None:
    graphs = Graphs()
    old = graphs.say("Ana lives in Porto", "Bo", minute=0)
    graphs.say("which town was it?", "Bo", minute=1)
    as_of_us = graphs.stored[-1].time_us
    before = graphs.ask("Where does Ana live?", as_of_us=as_of_us)
    new = graphs.say("Ana lives in Lisbon, Ana lives there", "Bo", minute=2)
    graphs.close([old], "old", "lives in Porto")
    graphs.close([new], "new", "lives in Lisbon")
    graphs.supersede("old", "new")
    after = graphs.ask("Where does Ana live?", as_of_us=as_of_us)
    assert ids(after) == ids(before) == ["m1", "m2"]
    assert not of(after, "m1").superseded
    assert of(after, "m1").factors.superseded == 1.0
    assert [topic.id for topic in after.topics] == ["old"]


def test_flat_is_the_nearest_by_inner_product() -> None:
    graphs = large()
    query = "violin1 detail number23x4"
    vector = EMBEDDER.embed([query])[0]
    products = EMBEDDER.embed([event.embedded_text for event in graphs.stored]) @ vector
    result = graphs.ask(query, mode="flat")
    shown = [products[int(message_id[1:]) - 1] for message_id in ids(result)]
    assert shown == pytest.approx(np.sort(products)[::-1][:10], abs=1e-5)
    assert result.topics == ()


def test_the_answer_is_the_same_each_time_and_equal_memories_stand_newest_first() -> None:
    graphs = Graphs()
    for at in range(20):
        graphs.say("the very same words", "Bo", minute=at * 100, session=f"s{at}")
    expected = [f"m{at}" for at in range(20, 10, -1)]
    for mode in ("gam", "flat"):
        assert ids(graphs.ask("same words", mode=mode)) == expected


def test_the_score_is_the_product_of_its_factors_and_semantic_lies_in_zero_to_one() -> None:
    result = large(topics=12).ask("What did Bo say of the anchor0 in May 2023?", k=50)
    for memory in result.memories:
        factors = memory.factors
        assert 0 < factors.semantic <= 1
        product = factors.semantic * factors.time * factors.confidence * factors.role
        assert memory.score == pytest.approx(product * factors.superseded * factors.origin)
    scores = [memory.score for memory in result.memories]
    assert scores == sorted(scores, reverse=True)


def test_semantic_probability_never_reaches_zero() -> None:
    spread = semantic_probability(np.array([0.0, -1e6, 5.0], dtype=np.float32))
    assert spread[2] == 1.0
    assert (spread > 0).all()
    assert semantic_probability(np.empty(0, dtype=np.float32)).shape == (0,)


def test_a_refresh_reads_only_what_is_new() -> None:
    graphs = Graphs()
    first = graphs.say("a red kite")
    view = MemoryView(USER)
    assert view.refresh(graphs)
    assert not view.refresh(graphs)
    graphs.reads.clear()
    graphs.say("a blue boat")
    assert view.refresh(graphs)
    assert graphs.reads == ["events"]
    assert [event.message_id for event in view.events] == ["m1", "m2"]
    graphs.close([first], "t", "kite", dates=(ResolvedDate("today", "2023-05-08", "2023-05-08"),))
    assert view.refresh(graphs)
    assert view.topic(0) == graphs.stored_topics[0]
    assert view.events[0].episode_id == "episode-t"
    assert [date.text for date in view.dates(0)] == ["today"]
    assert view.topic(1) is None


def test_a_view_that_grew_answers_as_one_read_at_once() -> None:
    graphs = Graphs()
    growing = MemoryView(USER)
    for at in range(15):
        said = []
        for turn in range(10):
            said.append(graphs.say(f"{WORDS[at]} detail number{at}x{turn}", minute=at * 1000 + turn, session=f"s{at}"))
            if turn % 3 == 0:
                growing.refresh(graphs)
        graphs.close(said, f"topic{at}", f"About {WORDS[at]}")
        growing.refresh(graphs)
    graphs.relations.append(TopicRelation("topic9", "topic1", "semantic", 0.7))
    graphs.tasks += 1
    growing.refresh(graphs)
    for query in ("What about the anchor detail?", "number3x4", "When was Ana at the harbour?"):
        assert as_document(graphs.ask(query, view=growing)) == as_document(graphs.ask(query))


def test_the_document_carries_provenance() -> None:
    graphs = Graphs()
    said = [graphs.say("We flew it yesterday", captions=("a red kite",)), graphs.say("Nice", "Bo")]
    graphs.close(said[:1], "t", "kite", dates=(ResolvedDate("yesterday", "2023-05-07", "2023-05-07"),))
    document = as_document(graphs.ask("red kite"), context="text")
    first = document["memories"][0]
    assert first["message_id"] == "m1"
    assert first["attachments"] == [{"caption": "a red kite"}]
    assert first["timestamp"] == "2023-05-08T10:01:00Z"
    assert first["dates"] == [{"text": "yesterday", "start": "2023-05-07", "end": "2023-05-07"}]
    assert first["path"] == {"topic": "t", "episode": "episode-t", "event": "m1"}
    assert (first["source"], document["memories"][1]["source"]) == ("archive", "buffer")
    assert document["topics"][0]["id"] == "t"
    assert (document["mode"], document["candidate_share"], document["context"]) == ("gam", 1.0, "text")


@pytest.mark.parametrize("mode", ["gam", "flat"])
def test_a_result_names_the_latest_event_that_was_visible(mode: str) -> None:
    graphs = Graphs()
    for minute in (5, 9, 7):
        graphs.say("tea", minute=minute)
    assert graphs.ask("tea", k=1, mode=mode).latest == graphs.stored[1]
    assert graphs.ask("tea", k=1, mode=mode, as_of_us=START_US + 8 * MINUTE_US).latest == graphs.stored[2]
    assert graphs.ask("tea", k=1, mode=mode, as_of_us=START_US).latest is None
