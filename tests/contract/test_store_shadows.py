"""What every store promises: topics made anew are read once they are switched to, and not before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from raygam.adapters.schema import EVENT_STEP
from raygam.memory.chat import ModelCall
from raygam.memory.errors import RaygamError
from raygam.memory.model import Layer, Topic, TopicRelation
from raygam.memory.ports import Reader, Writer
from raygam.memory.progression import Progress
from raygam.memory.shadow import Consolidated, Shadow, Standing
from raygam.memory.writes import TaskCalls, UserRow, WriteSet
from tests.contract.store_rows import (
    ANNA,
    BEN,
    archived_state,
    closed,
    everything,
    leased,
    task,
    topic,
    turn,
    turns,
    vectors,
)


def shadowed(*made: Topic, label: str = "other/1", episodes: int = 1, relations: Any = ()) -> Shadow:
    return Shadow(ANNA, label, episodes, made, vectors(len(made) + 1)[1:], tuple(relations))


def two_topics(writer: Writer) -> None:
    """Anna's four turns in two episodes, the later one's topic superseding the other's."""
    archived_state(writer)
    writer.commit(WriteSet(tasks=[task("task-2", at=4)], leases=[leased(task("task-2"))]))
    second = closed(
        *("episode-2", "task-2", 3, 4),
        made=topic("topic-2", "episode-2", first_us=3000),
        topic_relations=(TopicRelation("topic-2", "topic-1", "contradict", 0.75),),
        supersedes=("topic-1",),
    )
    row = UserRow(ANNA, Progress(), last_seq=4, events=4, tasks_applied=2, topics=2)
    writer.commit(WriteSet(finished=[("task-2", "t1")], closed=[second], users=[row]))


ANEW = (
    topic("topic-1", "episode-1", summary="Rope", superseded_by="topic-2", label="rope", facts=("it holds",)),
    topic("topic-2", "episode-2", summary="Sail", first_us=3000, model="other/1"),
)
EDGES = (TopicRelation("topic-2", "topic-1", "causal", 0.875),)


def test_a_shadow_is_read_by_nobody_until_it_is_switched_to(writer: Writer, reader: Reader) -> None:
    two_topics(writer)
    before = everything(reader)
    assert reader.standings() == [Standing(ANNA, 2)]
    assert reader.archives(ANNA) == [
        Consolidated("task-1", (closed("episode-1", "task-1", 1, 2).episode,)),
        Consolidated("task-2", (closed("episode-2", "task-2", 3, 4).episode,)),
    ]
    assert reader.archives(BEN) == []
    writer.commit(WriteSet(shadows=[shadowed(*ANEW[:1], episodes=1)]))
    made = shadowed(*ANEW, episodes=2, relations=EDGES)
    writer.commit(WriteSet(shadows=[made]))
    assert everything(reader) == before
    assert reader.standings() == [Standing(ANNA, 2, "other/1", 2)]
    kept = reader.shadow(ANNA)
    assert kept is not None
    assert (kept.label, kept.topics, kept.relations) == (made.label, made.topics, made.relations)
    assert np.allclose(kept.vectors, made.vectors, atol=1e-3)
    assert reader.shadow(BEN) is None
    met = reader.topics_logged({ANNA: 0})[ANNA]
    last = int(reader.entries(ANNA).seqs[-1])

    writer.commit(WriteSet(switched=[ANNA]))
    assert reader.topics(ANNA) == list(ANEW)
    assert reader.topic_relations(ANNA) == list(EDGES)
    assert reader.version(ANNA) == (4, 2, 1)
    assert [row.topics for row in reader.users()] == [2]
    assert reader.vectors(ANNA, Layer.TOPIC, ["topic-2", "topic-1"]).tolist() == kept.vectors[::-1].tolist()
    since = reader.entries(ANNA, last)
    assert (since.refs, since.removed) == (["topic-1", "topic-2"], [False, False])
    assert since.vectors.tolist() == kept.vectors.tolist()
    assert reader.entries(ANNA).refs == ["1", "2", "3", "4", "topic-1", "topic-2"], "the old vectors are gone"
    logged = reader.topics_logged({ANNA: met.log_seq, BEN: 0})[ANNA]
    assert (logged.topics, logged.log_seq) == (list(ANEW), since.seqs[-1])
    assert reader.topics_logged({ANNA: logged.log_seq}) == {}
    assert reader.topics_logged({ANNA: 0})[ANNA].topics == list(ANEW)
    assert reader.standings() == [Standing(ANNA, 2, "other/1", 2, switched=True)]
    assert reader.shadow(ANNA) is None

    writer.commit(turns(turn(writer.counters()["seq"])))
    assert reader.entries(ANNA, int(since.seqs[-1])).layers == [Layer.EVENT], "numbers go on rising"
    writer.commit(WriteSet(users=[UserRow(ANNA, Progress(), last_seq=5, events=5, tasks_applied=2, topics=2)]))
    assert reader.version(ANNA) == (5, 2, 1), "a user's row does not bring the old count back"


def test_turns_are_numbered_behind_what_a_switch_adds_to_the_log(writer: Writer, reader: Reader) -> None:
    """A million topics replaced between two turns leave the first turn's numbers behind."""
    two_topics(writer)
    writer.commit(WriteSet(shadows=[shadowed(*ANEW, episodes=2, relations=EDGES)]))
    last: Any = writer
    last._next_vector_seq = writer.counters()["seq"] * EVENT_STEP - 1
    writer.commit(WriteSet(switched=[ANNA]))
    at = int(reader.entries(ANNA).seqs[-1])
    writer.commit(turns(turn(writer.counters()["seq"])))
    assert reader.entries(ANNA, at).layers == [Layer.EVENT]
    assert sorted(reader.entries(ANNA).seqs) == reader.entries(ANNA).seqs.tolist()


def test_a_switch_gives_a_topic_to_an_episode_that_had_none(writer: Writer, reader: Reader) -> None:
    two_topics(writer)
    writer.commit(WriteSet(tasks=[task("task-3", at=5)], leases=[leased(task("task-3"))]))
    third = turn(writer.counters()["seq"])
    writer.commit(turns(third))
    writer.commit(WriteSet(finished=[("task-3", "t1")], closed=[closed("episode-3", "task-3", third.seq)]))
    added = topic("topic-3", "episode-3", first_us=5000)
    writer.commit(WriteSet(shadows=[shadowed(*ANEW, added, episodes=3, relations=EDGES)]))
    writer.commit(WriteSet(switched=[ANNA]))
    assert reader.topics(ANNA) == [*ANEW, added]


def test_a_shadow_that_is_dropped_leaves_nothing(writer: Writer, reader: Reader) -> None:
    two_topics(writer)
    before = everything(reader)
    writer.commit(WriteSet(shadows=[shadowed(*ANEW, episodes=2, relations=EDGES)]))
    writer.commit(WriteSet(discarded=[ANNA]))
    assert reader.standings() == [Standing(ANNA, 2)]
    assert everything(reader) == before


def test_a_switch_is_refused_where_it_would_lose_an_episode(writer: Writer, reader: Reader) -> None:
    two_topics(writer)
    before = everything(reader)
    with pytest.raises(RaygamError, match="there is none"):
        writer.commit(WriteSet(switched=[ANNA]))
    writer.commit(WriteSet(shadows=[shadowed(ANEW[1], episodes=1)]))
    with pytest.raises(RaygamError, match="1 of 2 episodes"):
        writer.commit(WriteSet(switched=[ANNA]))
    writer.commit(WriteSet(shadows=[shadowed(ANEW[1], episodes=2)]))
    with pytest.raises(RaygamError, match="lacks the topics topic-1"):
        writer.commit(WriteSet(switched=[ANNA]))
    with pytest.raises(ValueError, match="shadow"):
        writer.commit(WriteSet(shadows=[replace(shadowed(*ANEW), vectors=vectors(1))]))
    assert everything(reader) == before


def test_calls_for_a_task_that_is_done_are_kept_until_its_topics_are_switched_to(
    writer: Writer, reader: Reader
) -> None:
    two_topics(writer)
    call = ModelCall("key", "model", "summary/1", 2, 30, 5, "said")
    writer.commit(WriteSet(calls=[TaskCalls("task-1", None, [call])]))
    assert reader.answers(["task-1", "task-2"]) == {"task-1": {"key": "said"}}
    writer.commit(WriteSet(tasks=[task("task-3")]))
    with pytest.raises(RaygamError, match="task-3, which is not done"):
        writer.commit(WriteSet(calls=[TaskCalls("task-3", None, [call])]))
    writer.commit(WriteSet(leases=[leased(task("task-3"))]))
    writer.commit(WriteSet(calls=[TaskCalls("task-3", "t1", [call])]))
    writer.commit(WriteSet(shadows=[shadowed(*ANEW, episodes=2, relations=EDGES)]))
    writer.commit(WriteSet(switched=[ANNA]))
    assert reader.answers(["task-1", "task-3"]) == {"task-3": {"key": "said"}}, "a task in work keeps its own"
    (usage,) = reader.model_usage()
    assert (usage.calls, usage.prompt_tokens) == (4, 60)
