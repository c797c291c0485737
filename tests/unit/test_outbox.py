"""What stands in the messages that leave the engine."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from raygam.memory.errors import Misconfigured
from raygam.memory.identity import letter_id, record_key
from raygam.memory.model import Episode, Relationship, ResolvedDate, Topic, TopicRelation, User
from raygam.memory.writes import ClosedEpisode, DeadLetter
from raygam.pipeline.config import read_settings
from raygam.pipeline.outbox import OutboxRules, letter_message, update_message

ANNA = User("acme", "anna")
EPISODE = Episode("e1", ANNA, "s1", (3, 4), 1_700_000_000_000_000, 1_700_000_060_500_000, "pause", "tiling", 0.7, "gap")


def test_an_update_says_what_was_consolidated() -> None:
    topic = Topic(
        *("t1", ANNA, "e1", "Anna moved to Łódź.", ("move", "Łódź"), ("Anna",)),
        *((ResolvedDate("yesterday", "2023-11-13", "2023-11-13"),), EPISODE.first_us, EPISODE.last_us, 0.9),
        *("extractive/1", "t9"),
        label="A move",
        facts=("Anna lives in Łódź",),
        relationships=(Relationship("Anna", "moved to", "Łódź"),),
    )
    relations = (
        TopicRelation("t1", "t0", "contradict", float(np.float32(0.75))),
        TopicRelation("t9", "t1", "support", 1),
    )
    closed = ClosedEpisode(EPISODE, "task", 0, (), (), topic, np.zeros(4, np.float32), relations, ("t0",))
    message = update_message(closed, ["m1", "m2"])
    assert (message.kind, message.id, message.key) == ("update", "e1", record_key(ANNA))
    assert message.headers == (("id", "e1"),)
    assert message.value is not None
    assert msgspec.json.decode(message.value) == {
        "id": "e1",
        "tenant": "acme",
        "user_id": "anna",
        "session_id": "s1",
        "episode": {
            "first": "2023-11-14T22:13:20Z",
            "last": "2023-11-14T22:14:20.500000Z",
            "message_ids": ["m1", "m2"],
            "trigger": "pause",
        },
        "topic": {
            "id": "t1",
            "summary": "Anna moved to Łódź.",
            "keywords": ["move", "Łódź"],
            "entities": ["Anna"],
            "dates": [{"text": "yesterday", "start": "2023-11-13", "end": "2023-11-13"}],
            "superseded_by": "t9",
            "label": "A move",
            "facts": ["Anna lives in Łódź"],
            "relationships": [{"subject": "Anna", "relation": "moved to", "object": "Łódź"}],
        },
        "relations": [
            {"source": "t1", "target": "t0", "type": "contradict", "confidence": 0.75},
            {"source": "t9", "target": "t1", "type": "support", "confidence": 1.0},
        ],
        "superseded": ["t0"],
        "model": "extractive/1",
    }


def test_an_episode_without_a_topic_says_so() -> None:
    message = update_message(ClosedEpisode(EPISODE, "task", 0, (), ()), ["m1", "m2"])
    assert message.value is not None
    document = msgspec.json.decode(message.value)
    assert (document["topic"], document["relations"], document["superseded"], document["model"]) == (None, [], [], None)


def test_a_dead_letter_says_where_it_lay_and_has_no_bytes_of_its_own() -> None:
    letter = DeadLetter(
        "kafka:abc", 17, "wrong_type", "text is a number – give text", b'{"user_id": "anna", "tenant": "acme"}'
    )
    message = letter_message(letter, 3, "dialogue")
    id_ = letter_id("kafka:abc", 3, 17)
    assert (message.kind, message.id, message.key) == ("dead_letter", id_, record_key(ANNA))
    assert (message.value, message.letter) == (None, ("kafka:abc", 17))
    assert dict(message.headers) == {
        "id": id_,
        "reason": "wrong_type",
        "detail": "text is a number – give text",
        "source": "kafka:abc",
        "source_name": "dialogue",
        "partition": "3",
        "offset": "17",
    }
    assert letter_message(DeadLetter("kafka:abc", 18, "blank", "", b""), 3, "dialogue").key is None
    ids = {letter_id("kafka:abc", 3, 17), letter_id("kafka:abc", 31, 7), letter_id("kafka:ab", 3, 17), id_}
    assert len(ids) == 3


def test_the_settings_say_what_is_told() -> None:
    assert read_settings().shard.outbox == OutboxRules(dead_letters=True, updates=False)
    assert read_settings(kafka_dead_letters=False).shard.outbox == OutboxRules()
    told = read_settings(kafka_updates_topic="updates", kafka_brokers="localhost")
    assert told.shard.outbox == OutboxRules(dead_letters=True, updates=True)
    with pytest.raises(Misconfigured, match=r"no Kafka broker is named.*Set kafka_brokers too"):
        _ = read_settings(kafka_updates_topic="updates").shard
