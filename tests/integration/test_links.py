"""Relations of events that reach beyond an episode, from a worker's proposal to the reader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raygam import Memory
from raygam.adapters.stub_embedder import StubEmbedder
from raygam.memory.errors import LeaseLost
from raygam.memory.model import EventRelation, Relationship, User
from raygam.memory.proposal import Proposal
from raygam.pipeline.runtime import make_models
from raygam.pipeline.worker import Worker

ANA = User("default", "ana")


class Thinking:
    """A shard to whose proposals a model's reading and links are added."""

    def __init__(self, shard: Any, *links: EventRelation) -> None:
        self._shard = shard
        self._links = links

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shard, name)

    def submit(self, proposals: Sequence[Proposal]) -> list[LeaseLost | None]:
        (proposal,) = proposals
        (episode,) = proposal.episodes
        assert episode.topic is not None
        left = Relationship("Ana", "left", "Rome")
        topic = replace(episode.topic, label="A move", facts=("Ana moved.",), relationships=(left,))
        thought = replace(episode, topic=topic)
        done: list[LeaseLost | None] = self._shard.submit([replace(proposal, episodes=(thought,), links=self._links)])
        return done


def test_links_are_applied_with_their_proposal_or_not_at_all(tmp_path: Path) -> None:
    with Memory(tmp_path / "state", embedder="stub", partitions=1, workers=0) as memory:
        (shard,), (reader,) = memory._engine.shards, memory._engine.readers
        worker = Worker(make_models(StubEmbedder(384)))

        def work(first: int, *links: EventRelation) -> tuple[int, ...]:
            turns = [
                {"message_id": f"m{at}", "text": f"word {at}", "timestamp": 1000 * at} for at in (first, first + 1)
            ]
            base = {"user_id": "ana", "session_id": "s", "speaker": "Ana", "role": "user"}
            memory.add([base | turn for turn in turns])
            memory._engine.flush()
            assert worker.work(Thinking(shard, *links), reader).applied == 1
            return tuple(event.seq for event in reader.events(ANA))

        one, two = work(1)
        three, four = (4, 5)  # a flush has a number too
        link = EventRelation(three, one, "causal", 0.75)
        for wrong in (EventRelation(one, two, "causal"), EventRelation(three, three, "causal")):
            with pytest.raises(ValueError, match="one of the two must be an event that it archives"):
                work(3, wrong)
            shard.abandon("")
        before = reader.event_relations(ANA)
        assert work(3, link, link) == (one, two, three, four)
        assert [held for held in reader.event_relations(ANA) if held not in before and held.type == "causal"] == [link]
        shown = memory.show("ana")["topics"][-1]
        assert (shown["label"], shown["facts"]) == ("A move", ["Ana moved."])
        assert shown["relationships"] == [{"subject": "Ana", "relation": "left", "object": "Rome"}]
