"""What leaves the engine: the messages that a partition's transactions put out, and what stands in them.

Their form is described in `docs/kafka.md`; other systems build on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ..memory import identity
from ..memory.model import Topic, TopicRelation
from ..memory.ports import OutboxReader
from ..memory.times import format_time
from ..memory.writes import BufferedEvent, ClosedEpisode, DeadLetter, MessageKind, OutboxMessage, WriteSet
from .batches import TurnBatch
from .records import owner_of
from .summary import relationships


@dataclass(frozen=True, slots=True)
class OutboxRules:
    """What is told to other systems.

    Attributes:
        dead_letters: records of a topic that could not be taken.
        updates: every episode that was consolidated.
    """

    dead_letters: bool = False
    updates: bool = False


class Outbox:
    """The messages of one partition: makes them, and knows how many wait. The shard serialises calls.

    Args:
        reader: what the ledger holds of them.
        rules: what is told.
    """

    def __init__(self, reader: OutboxReader, rules: OutboxRules) -> None:
        self._reader = reader
        self._rules = rules
        self._unsent = Counter(reader.unsent())

    def tell_of_letters(self, batch: TurnBatch, partition: int, write: WriteSet) -> None:
        """Put a message into the write for each dead letter that comes from a topic."""
        if self._rules.dead_letters and write.dead_letters and batch.source.startswith(identity.TOPIC_SOURCE):
            name = batch.position.name if batch.position is not None else ""
            write.messages += [letter_message(letter, partition, name) for letter in write.dead_letters]

    def tell_of_episode(self, closed: ClosedEpisode, held: Mapping[int, BufferedEvent], write: WriteSet) -> None:
        """Put a message into the write for an episode that it closes."""
        if self._rules.updates:
            write.messages.append(update_message(closed, [held[seq].message_id for seq in closed.episode.seqs]))

    def follow(self, write: WriteSet) -> None:
        """Count what a transaction has put out."""
        self._unsent.update(message.kind for message in write.messages)

    def forget(self, kind: str, count: int) -> None:
        """Count what a transaction has deleted."""
        self._unsent[kind] -= count
        if self._unsent[kind] <= 0:  # the ledger says whether it is so: what is not counted would not be sent
            self._unsent[kind] = self._reader.unsent().get(kind, 0)

    def unsent(self) -> dict[str, int]:
        """How many messages wait, by kind; a kind without any is left out."""
        return {kind: count for kind, count in self._unsent.items() if count}

    def messages(self, kind: str, limit: int, max_bytes: int) -> list[OutboxMessage]:
        """The first messages of a kind, in order."""
        return self._reader.messages(kind, limit, max_bytes)


def letter_message(letter: DeadLetter, partition: int, source_name: str) -> OutboxMessage:
    """The message that tells of a dead letter: its bytes as they came, and why it is one.

    Args:
        letter: the letter.
        partition: where it was read.
        source_name: the topic's name.
    """
    owner = owner_of(letter.payload)
    id_ = identity.letter_id(letter.source, partition, letter.offset)
    return OutboxMessage(
        MessageKind.DEAD_LETTER,
        id_,
        None if owner is None else identity.record_key(owner),
        (
            ("id", id_),
            ("reason", letter.reason),
            ("detail", letter.detail),
            ("source", letter.source),
            ("source_name", source_name),
            ("partition", str(partition)),
            ("offset", str(letter.offset)),
        ),
        letter=(letter.source, letter.offset),
    )


def update_message(closed: ClosedEpisode, message_ids: Sequence[str]) -> OutboxMessage:
    """The message that tells of a consolidated episode.

    Args:
        closed: the episode, its topic and relations.
        message_ids: of its events, in order.
    """
    episode, topic = closed.episode, closed.topic
    document = {
        "id": episode.id,
        "tenant": episode.user.tenant,
        "user_id": episode.user.user_id,
        "session_id": episode.session_id,
        "episode": {
            "first": format_time(episode.first_us),
            "last": format_time(episode.last_us),
            "message_ids": list(message_ids),
            "trigger": str(episode.trigger),
        },
        "topic": None if topic is None else _topic(topic),
        "relations": [_relation(relation) for relation in closed.topic_relations],
        "superseded": list(closed.supersedes),
        "model": None if topic is None else topic.model,
    }
    return OutboxMessage(
        MessageKind.UPDATE,
        episode.id,
        identity.record_key(episode.user),
        (("id", episode.id),),
        msgspec.json.encode(document),
    )


def _topic(topic: Topic) -> dict[str, Any]:
    return {
        "id": topic.id,
        "summary": topic.summary,
        "keywords": list(topic.keywords),
        "entities": list(topic.entities),
        "dates": [{"text": date.text, "start": date.start, "end": date.end} for date in topic.dates],
        "superseded_by": topic.superseded_by,
        "label": topic.label,
        "facts": list(topic.facts),
        "relationships": relationships(topic),
    }


def _relation(relation: TopicRelation) -> dict[str, Any]:
    return {
        "source": relation.source_id,
        "target": relation.target_id,
        "type": str(relation.type),
        "confidence": float(relation.confidence),
    }
