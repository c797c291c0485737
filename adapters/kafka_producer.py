"""Records into a topic: in order, acknowledged by every replica, none twice by a resend."""

from __future__ import annotations

from typing import Any

from kafka import KafkaProducer, codec, errors

from ..memory.errors import RaygamError
from . import kafka_errors
from .kafka_connection import KafkaConnection
from .kafka_probe import check_connection

_FORCED_SECONDS = 5.0
_DELIVERY_SECONDS = 120


class TopicProducer:
    """Sends records to partitions of one topic. Not thread-safe.

    A record is there once `flush` has returned; records of a partition keep their order.

    Args:
        connection: where and as whom.
        topic: the topic's name.
        max_record_bytes: larger ones are not sent.

    Raises:
        Misconfigured: the cluster refuses the settings.
        Retryable: no broker answers.
    """

    def __init__(self, connection: KafkaConnection, topic: str, *, max_record_bytes: int) -> None:
        self._connection = connection
        self._topic = topic
        self._failure: Exception | None = None
        self.acknowledged = 0
        self._client: Any = make_client(
            connection,
            topic,
            # What the client counts beside the value: key, headers and the batch's own fields.
            max_request_bytes=max_record_bytes + 64 * 1024,
            delivery_seconds=_DELIVERY_SECONDS,
        )

    def send(self, partition: int, key: bytes | None, value: bytes) -> None:
        """Queue a record; wait while the queue is full.

        Raises:
            RaygamError: this record, or an earlier one, cannot be delivered.
        """
        self._raise_failure()
        try:
            future = self._client.send(self._topic, value, key=key, partition=partition)
        except errors.KafkaError as error:
            raise self._explained(error) from None
        future.add_callback(self._note_delivery)
        future.add_errback(self._note_failure)

    def flush(self) -> None:
        """Return once everything that was queued is acknowledged.

        Raises:
            RaygamError: something cannot be delivered.
        """
        try:
            self._client.flush(_DELIVERY_SECONDS)
        except errors.KafkaError as error:
            raise self._explained(error) from None
        self._raise_failure()

    def close(self) -> None:
        """Leave, also while no broker answers; what is not flushed may be lost."""
        let_go(self._client)

    def _note_delivery(self, found: object) -> None:
        self.acknowledged += 1

    def _note_failure(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._explained(self._failure) from None

    def _explained(self, error: Exception) -> RaygamError:
        if isinstance(error, errors.KafkaError):
            return kafka_errors.explained(error, self._connection, self._topic)
        return RaygamError(f"records cannot be sent to topic {self._topic}: {type(error).__name__}: {error}")


def make_client(connection: KafkaConnection, topic: str, *, max_request_bytes: int, delivery_seconds: int) -> Any:
    """A client that sends in order, and counts what every replica has as acknowledged.

    Args:
        connection: where and as whom.
        topic: what errors are about.
        max_request_bytes: larger records are refused here.
        delivery_seconds: a record that is not acknowledged by then has failed.

    Raises:
        Misconfigured: the cluster refuses the settings.
        Retryable: no broker answers.
    """
    check_connection(connection)
    try:
        return KafkaProducer(
            **connection.client_options(),
            acks="all",
            enable_idempotence=True,
            compression_type="lz4" if codec.has_lz4() else "gzip",
            linger_ms=20,
            batch_size=64 * 1024,
            max_request_size=max_request_bytes,
            delivery_timeout_ms=delivery_seconds * 1000,
            request_timeout_ms=min(delivery_seconds * 500, 30_000),
            max_block_ms=min(delivery_seconds * 1000, 30_000),
            allow_auto_create_topics=False,
            bootstrap_timeout_ms=10_000,
        )
    except errors.KafkaError as error:
        raise kafka_errors.explained(error, connection, topic) from None


def let_go(client: Any) -> None:
    """Close a client, and give up what it has not delivered within a second.

    Its own `close` flushes first, whatever its timeout is, and raises where that does not succeed (kafka-python 3.0.12):
    the client then goes on sending in its thread, and complains again when it is collected.
    """
    try:
        client.close(timeout=1)
    except errors.KafkaError:
        client._sender.force_close()
        client._sender.join(timeout=_FORCED_SECONDS)
        client.close(timeout=0)
