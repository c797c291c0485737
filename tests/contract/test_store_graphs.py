"""What every store promises: archives, the topic associative network, the vector log."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from raygam.memory.errors import RaygamError
from raygam.memory.model import EventRelation, Layer, ResolvedDate, TopicRelation, User
from raygam.memory.ports import Reader, Writer
from raygam.memory.progression import Progress
from raygam.memory.writes import UserRow, WriteSet
from tests.contract.store_rows import (
    ANNA,
    BEN,
    FACTS,
    Factory,
    archived_state,
    closed,
    everything,
    leased,
    task,
    topic,
    turn,
    turns,
    vector,
    vectors,
)

# Archives and the topic associative network.


def test_an_archive_does_not_end_where_a_turn_was_set_aside(writer: Writer) -> None:
    archived_state(writer)
    aside = task("task-2", seqs=(4,), trigger="ahead")
    made = closed("episode-2", "task-2", 4)
    made = replace(made, episode=replace(made.episode, trigger="ahead"))
    writer.commit(WriteSet(tasks=[aside], leases=[leased(aside)]))
    writer.commit(WriteSet(finished=[("task-2", "t1")], closed=[made]))
    assert writer.archived_until_us(ANNA, "s") == 2000


def test_an_episode_and_its_topic_come_back(writer: Writer, reader: Reader) -> None:
    archived_state(writer)
    writer.commit(WriteSet(users=[UserRow(ANNA, Progress(), last_seq=4, events=4, tasks_applied=1, topics=1)]))
    assert reader.version(ANNA) == (4, 1, 0)
    assert reader.episodes(ANNA) == [closed("episode-1", "", 1, 2).episode]
    assert reader.topics(ANNA) == [topic("topic-1", "episode-1")]
    assert reader.event_relations(ANNA) == [EventRelation(1, 2, "temporal", 0.5)]
    events = reader.events(ANNA)
    assert [event.episode_id for event in events] == ["episode-1", "episode-1", None, None]
    assert events[0].entities == ("Maria", "Łódź")
    assert events[1].dates == (ResolvedDate("today", "2023-05-08", "2023-05-08"),)
    assert writer.archived_until_us(ANNA, "s") == 2000
    assert writer.archived_until_us(ANNA, "other") is None
    assert writer.archived_until_us(BEN, "s") is None
    assert reader.topics(BEN) == []


def test_relations_and_what_they_supersede(writer: Writer, reader: Reader) -> None:
    archived_state(writer)
    writer.commit(WriteSet(tasks=[task("task-2")], leases=[leased(task("task-2"))]))
    edges = (
        TopicRelation("topic-2", "topic-1", "contradict", 0.75),
        TopicRelation("topic-2", "topic-3", "causal", 1.0),
    )
    second = closed(
        *("episode-2", "task-2", 3),
        made=topic("topic-2", "episode-2", first_us=3000),
        topic_relations=edges,  # one of them to a topic of the same write
        supersedes=("topic-1",),
    )
    third = closed("episode-3", "task-2", 4, ordinal=1, made=topic("topic-3", "episode-3", first_us=4000))
    writer.commit(WriteSet(finished=[("task-2", "t1")], closed=[second, third]))
    assert reader.topic_relations(ANNA) == list(edges)
    assert [(made.id, made.superseded_by) for made in reader.topics(ANNA)] == [
        ("topic-1", "topic-2"),
        ("topic-2", None),
        ("topic-3", None),
    ]


def test_a_topic_supersedes_only_what_it_relates_to(writer: Writer, reader: Reader) -> None:
    archived_state(writer)
    writer.commit(WriteSet(tasks=[task("task-2")], leases=[leased(task("task-2"))]))
    made = closed("episode-2", "task-2", 3, made=topic("topic-2", "episode-2"), supersedes=("topic-1",))
    before = everything(reader)
    with pytest.raises(RaygamError, match="does not relate to"):
        writer.commit(WriteSet(finished=[("task-2", "t1")], closed=[made]))
    assert everything(reader) == before


def test_turns_of_many_users_come_with_their_vectors(writer: Writer, reader: Reader) -> None:
    odd = turn(3, captions=("a boat",), metadata={"a": [1]})
    writer.commit(turns(turn(1), turn(2, BEN), odd, turn(4, BEN)))
    found = reader.turns([(BEN, (4, 2)), (ANNA, (1, 3)), (ANNA, ())])
    assert [events for events, _ in found] == [reader.events(BEN, seqs=(4, 2)), [turn(1), odd], []]
    for (user, seqs), (_, rows) in zip([(BEN, "42"), (ANNA, "13")], found, strict=False):
        assert rows.tolist() == reader.vectors(user, Layer.EVENT, list(seqs)).tolist()
    assert found[2][1].shape == (0, 4)
    with pytest.raises(KeyError):
        reader.turns([(ANNA, (1, 2))])  # 2 is another's


def test_topics_are_read_from_a_place_of_the_log_on(writer: Writer, reader: Reader) -> None:
    archived_state(writer)
    first = reader.topics_logged({ANNA: 0, BEN: 0})
    assert list(first) == [ANNA]
    assert first[ANNA].topics == reader.topics(ANNA)
    assert first[ANNA].vectors.tolist() == reader.vectors(ANNA, Layer.TOPIC, ["topic-1"]).tolist()
    assert reader.topics_logged({ANNA: first[ANNA].log_seq}) == {}
    writer.commit(WriteSet(tasks=[task("task-2")], leases=[leased(task("task-2"))]))
    second = closed(
        *("episode-2", "task-2", 3),
        made=topic("topic-2", "episode-2", first_us=3000),
        topic_relations=(TopicRelation("topic-2", "topic-1", "contradict", 0.75),),
        supersedes=("topic-1",),
    )
    writer.commit(WriteSet(finished=[("task-2", "t1")], closed=[second]))
    later = reader.topics_logged({ANNA: first[ANNA].log_seq})[ANNA]
    assert [made.id for made in later.topics] == ["topic-2"]
    assert later.superseded == {"topic-1": "topic-2"}
    whole = reader.topics_logged({ANNA: 0})[ANNA]
    assert whole.topics == reader.topics(ANNA)
    assert whole.log_seq == later.log_seq


def test_many_relations_of_events_are_stored(writer: Writer, reader: Reader) -> None:
    """More than go into one statement, and some beside."""
    count = 250
    writer.commit(turns(*(turn(seq) for seq in range(1, count + 1)), tasks=[task("task-1")]))
    writer.commit(WriteSet(leases=[leased(task("task-1"))]))
    made = closed("episode-1", "task-1", *range(1, count + 1))
    writer.commit(WriteSet(finished=[("task-1", "t1")], closed=[made]))
    assert reader.event_relations(ANNA) == list(made.relations)


def test_links_reach_beyond_episodes(writer: Writer, reader: Reader) -> None:
    archived_state(writer)
    writer.commit(turns(turn(5, BEN), tasks=[task("task-2")], leases=[leased(task("task-2"))]))
    links = [EventRelation(3, 1, "causal", 0.5), EventRelation(3, 2, "entity", 1.0)]
    twice = [
        *links,
        links[0],
        EventRelation(1, 2, "temporal", 0.75),
    ]  # the last one is of the archive, and stays as it is
    made = closed("episode-2", "task-2", 3, 4)
    write = WriteSet(finished=[("task-2", "t1")], closed=[made], links=[(ANNA, link) for link in twice])
    before = everything(reader)
    for source, target in ((3, 5), (5, 3), (3, 9)):  # 5 is Ben's, 9 nobody's
        wrong = replace(write, links=[*write.links, (ANNA, EventRelation(source, target, "causal", 0.5))])
        with pytest.raises(RaygamError, match="names an event that its user does not have"):
            writer.commit(wrong)
        assert everything(reader) == before
    with pytest.raises(RaygamError, match="fault in raygam"):
        writer.commit(replace(write, links=[(ANNA, EventRelation(3, 1, "unrelated", 0.5))]))
    writer.commit(write)
    assert reader.event_relations(ANNA) == [
        EventRelation(1, 2, "temporal", 0.5),
        links[0],
        links[1],
        EventRelation(3, 4, "temporal", 0.5),
    ]
    assert reader.event_relations(BEN) == []


def test_turns_of_episodes_come_with_their_vectors(writer: Writer, reader: Reader) -> None:
    archived_state(writer)
    second = task("task-2")
    writer.commit(WriteSet(tasks=[second], leases=[leased(second)]))
    writer.commit(WriteSet(finished=[("task-2", "t1")], closed=[closed("episode-2", "task-2", 4, 3)]))
    found = reader.episode_turns(ANNA, ["episode-2", "none", "episode-1", "episode-2"])
    assert list(found) == ["episode-2", "episode-1"]
    for name, seqs in (("episode-1", (1, 2)), ("episode-2", (4, 3))):
        events, rows = found[name]
        assert events == reader.events(ANNA, seqs=seqs)
        assert rows.tolist() == reader.vectors(ANNA, Layer.EVENT, [str(seq) for seq in seqs]).tolist()
    assert reader.episode_turns(BEN, ["episode-1"]) == {}  # Anna's
    assert reader.episode_turns(ANNA, []) == reader.episode_turns(ANNA, ["none"]) == {}


@pytest.mark.parametrize(
    ("fault", "change"),
    [
        ("unrelated", {"topic_relations": (TopicRelation("topic-2", "topic-1", "unrelated", 0.9),)}),
        ("no such topic", {"topic_relations": (TopicRelation("topic-2", "nowhere", "causal", 0.9),)}),
        ("itself", {"topic_relations": (TopicRelation("topic-2", "topic-2", "causal", 0.9),)}),
        ("confidence", {"topic_relations": (TopicRelation("topic-2", "topic-1", "causal", 1.1),)}),
        ("superseded nothing", {"supersedes": ("nowhere",)}),
        ("place taken", {"task_id": "task-1"}),
        ("no such task", {"task_id": "nowhere"}),
        ("archive of another topic", {"topic": topic("topic-2", "episode-1")}),
        ("no archive", {"topic": topic("topic-2", "nowhere")}),
    ],
)
def test_a_graph_that_breaks_a_rule_is_refused(
    writer: Writer, reader: Reader, fault: str, change: dict[str, Any]
) -> None:
    archived_state(writer)
    writer.commit(WriteSet(tasks=[task("task-2")], leases=[leased(task("task-2"))]))
    before = everything(reader)
    made = closed("episode-2", "task-2", 3, 4, made=topic("topic-2", "episode-2"))
    with pytest.raises(RaygamError, match="fault in raygam"):
        writer.commit(WriteSet(finished=[("task-2", "t1")], closed=[replace(made, **change)]))
    assert everything(reader) == before
    writer.commit(WriteSet(finished=[("task-2", "t1")], closed=[made]))


# The vector log.


def test_the_vector_log_is_in_order_and_goes_on_from_anywhere(writer: Writer, reader: Reader) -> None:
    archived_state(writer)
    writer.commit(turns(turn(5, BEN), turn(6), turn(7)))
    whole = reader.entries(ANNA)
    assert whole.refs == ["1", "2", "3", "4", "topic-1", "6", "7"]
    assert whole.layers == [*[Layer.EVENT] * 4, Layer.TOPIC, Layer.EVENT, Layer.EVENT]
    assert whole.removed == [False] * 7
    assert whole.vectors.dtype == np.float32
    given = np.concatenate([vectors(4), [vector(0, 1, 0, 0)], vectors(3)[1:]])
    np.testing.assert_allclose(whole.vectors, given, atol=5e-4)
    assert np.all(np.diff(whole.seqs) > 0)
    assert reader.entries(BEN).refs == ["5"]
    for at, number in enumerate(whole.seqs.tolist()):
        rest = reader.entries(ANNA, after_seq=number)
        assert rest.refs == whole.refs[at + 1 :]
        assert rest.seqs.tolist() == whole.seqs[at + 1 :].tolist()
        assert reader.entries(ANNA, after_seq=number - 1).refs == whole.refs[at:]
    nothing = reader.entries(User("default", "nobody"))
    assert (nothing.vectors.shape, nothing.refs) == ((0, 4), [])


def test_log_numbers_rise_over_writes_of_every_kind(factory: Factory) -> None:
    """A number given later is greater: an index that carried up to N never misses one."""
    seen: list[int] = []
    store = factory.create_or_open(FACTS)
    writer = store.writer(0)
    for at in range(1, 5):
        first = 10 * at
        name = f"task-{at}"
        writer.commit(turns(*(turn(first + step) for step in range(3)), tasks=[task(name)]))
        writer.commit(WriteSet(leases=[leased(task(name))]))
        made = closed(f"e{at}", name, first, made=topic(f"topic-{at}", f"e{at}"))
        also = closed(f"f{at}", name, first + 1, ordinal=1, made=topic(f"topic+{at}", f"f{at}"))
        with_turns = turns(turn(first + 5)) if at % 2 else WriteSet()
        with_turns.finished, with_turns.closed = [(name, "t1")], [made, also]
        writer.commit(with_turns)
        numbers = store.reader(0).entries(ANNA).seqs.tolist()
        assert numbers[: len(seen)] == seen
        assert numbers == sorted(set(numbers))
        assert len(numbers) == len(seen) + 5 + at % 2
        seen = numbers
        if at == 2:
            store.close()
            store = factory.create_or_open(FACTS)
            writer = store.writer(0)
    store.close()
