"""Messages from the outbox into topics: in order, with headers, and it is known which are there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from kafka import errors

from ..memory.errors import Misconfigured, RaygamError
from ..memory.writes import MessageKind, OutboxMessage
from . import kafka_errors
from .kafka_cluster import KafkaCluster
from .kafka_connection import KafkaConnection
from .kafka_producer import let_go, make_client

DEAD = ".dead"
"""Behind a topic's name: where its dead letters go."""

_DELIVERY_SECONDS = 10
_LARGEST = 1 << 30
"""What was read of a topic, whatever its size, goes into another: the topic's own limit counts."""


class MessageProducer:
    """Sends messages to the topics of their kinds. One thread at a time; after an error, make another.

    Args:
        connection: where and as whom.
        updates_topic: where updates go; None if they go nowhere.
    """

    def __init__(self, connection: KafkaConnection, updates_topic: str | None) -> None:
        self._connection = connection
        self._updates_topic = updates_topic
        self._client: Any = None
        self._seen: set[str] = set()

    def deliver(self, messages: Sequence[OutboxMessage]) -> tuple[int, RaygamError | None]:
        """Send messages, in order; return how many of the first are acknowledged, and what stood in the way."""
        sent: list[tuple[str, Any]] = []
        topic = ""
        failure: RaygamError | None = None
        try:
            for message in messages:
                topic = self._topic_of(message)
                sent.append((topic, self._send(topic, message)))
        except errors.KafkaError as error:
            failure = self._explained(error, topic)
        except RaygamError as error:
            failure = error
        deadline = time.monotonic() + _DELIVERY_SECONDS + 5
        first: tuple[int, str, errors.KafkaError] | None = None
        for at, (topic, future) in enumerate(sent):  # of all, so that the client has nothing in hand when it is closed
            try:  # not by `flush`, which gives up on a batch that the client has split (kafka-python 3.0.12)
                future.get(timeout=max(0.0, deadline - time.monotonic()))
            except errors.KafkaError as error:
                first = first or (at, topic, error)
        if first is not None:
            at, topic, refused = first
            return at, self._explained(refused, topic)
        return len(sent), failure

    def close(self) -> None:
        """Leave; what is not acknowledged is sent again by another."""
        if self._client is not None:
            let_go(self._client)

    def _send(self, topic: str, message: OutboxMessage) -> Any:
        if topic not in self._seen:
            self._look_at(topic)
        headers = [(name, text.encode("utf-8", "surrogatepass")) for name, text in message.headers]
        return self._client.send(topic, message.value, key=message.key, headers=headers)

    def _look_at(self, topic: str) -> None:
        """Make sure that the topic is there: the client would wait for it, and say that nobody answers."""
        with KafkaCluster(self._connection) as cluster:
            cluster.topic(topic)
        if self._client is None:
            self._client = make_client(
                self._connection, topic, max_request_bytes=_LARGEST, delivery_seconds=_DELIVERY_SECONDS
            )
        self._seen.add(topic)

    def _explained(self, error: errors.KafkaError, topic: str) -> RaygamError:
        return kafka_errors.explained(error, self._connection, topic)

    def _topic_of(self, message: OutboxMessage) -> str:
        if message.kind == MessageKind.DEAD_LETTER:
            return dict(message.headers)["source_name"] + DEAD
        if self._updates_topic is None:
            raise Misconfigured(
                "updates are still to be sent, and kafka_updates_topic is not set any more; set it until they are sent"
            )
        return self._updates_topic
