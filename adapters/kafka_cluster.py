"""What a Kafka cluster says of its topics, and making one."""

from __future__ import annotations

import base64
import uuid
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from kafka import KafkaAdminClient, TopicPartition, errors
from kafka.admin import OffsetSpec

from ..memory import identity
from ..memory.errors import Misconfigured, RaygamError
from . import kafka_errors
from .kafka_connection import KafkaConnection
from .kafka_probe import check_connection

_UNKNOWN_TOPIC, _INVALID_NAME, _NOT_AUTHORIZED = 3, 17, 29


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as the cluster describes it.

    Attributes:
        name: its name.
        topic_id: what tells it from another topic that had or will have its name, as Kafka's tools print it.
        partitions: how many.
        replicas: copies of each partition.
        readable: whether we may read it.
        leaderless: partitions that nobody serves at the moment.
    """

    name: str
    topic_id: str
    partitions: int
    replicas: int
    readable: bool
    leaderless: tuple[int, ...] = ()

    @property
    def source_id(self) -> str:
        """The topic as a source of turns."""
        return identity.TOPIC_SOURCE + self.topic_id


@dataclass(frozen=True, slots=True)
class LogRange:
    """A partition's log: the first offset that it holds, and the one that the next record gets."""

    beginning: int
    end: int


class KafkaCluster:
    """A session with a cluster for questions about topics. One thread at a time.

    Args:
        connection: where and as whom.
        timeout_seconds: how long a question may take.

    Raises:
        Misconfigured: the cluster refuses these settings; the message names the one to change.
        Retryable: no broker answers.
    """

    def __init__(self, connection: KafkaConnection, timeout_seconds: float = 10.0) -> None:
        self.connection = connection
        self._timeout_ms = int(timeout_seconds * 1000)
        check_connection(connection, min(timeout_seconds, 3.0))
        try:
            self._client = KafkaAdminClient(
                **connection.client_options(),
                bootstrap_timeout_ms=self._timeout_ms,
                request_timeout_ms=self._timeout_ms,
            )
        except errors.KafkaError as error:
            raise kafka_errors.explained(error, connection, "") from None

    def topic(self, name: str) -> TopicFacts:
        """Describe a topic.

        Raises:
            Misconfigured: there is none of this name, or no right to see it.
            Retryable: no broker answers.
        """
        described = self._described(name)
        code = described["error_code"]
        if code == _UNKNOWN_TOPIC:
            raise kafka_errors.no_topic(self.connection, name)
        if code == _NOT_AUTHORIZED:
            raise kafka_errors.no_right(self.connection, name, "read")
        if code == _INVALID_NAME:
            raise Misconfigured(f"{name!r} is no topic's name; it has letters, digits, '.', '_' and '-' (kafka_topic)")
        if code:
            raise self._explained(errors.for_code(code)(), name)
        if not described["topic_id"]:
            raise Misconfigured(
                f"the Kafka cluster at {self.connection.brokers} gives topics no id; it must be 2.8 or newer"
            )
        operations = described.get("authorized_operations")
        partitions = described["partitions"]
        return TopicFacts(
            name,
            topic_id_text(uuid.UUID(str(described["topic_id"]))),
            len(partitions),
            max((len(item["replica_nodes"]) for item in partitions), default=0),
            operations is None or "READ" in operations or "ALL" in operations,
            tuple(sorted(item["partition_index"] for item in partitions if item["leader_id"] < 0)),
        )

    def ranges(self, facts: TopicFacts) -> list[LogRange]:
        """What each partition's log holds, by partition.

        Raises:
            Misconfigured: no right to see it.
            Retryable: a partition's broker does not answer.
        """
        partitions = [TopicPartition(facts.name, at) for at in range(facts.partitions)]
        try:
            first = self._client.list_partition_offsets(
                dict.fromkeys(partitions, OffsetSpec.EARLIEST), timeout_ms=self._timeout_ms
            )
            last = self._client.list_partition_offsets(
                dict.fromkeys(partitions, OffsetSpec.LATEST), timeout_ms=self._timeout_ms
            )
        except errors.KafkaError as error:
            raise self._explained(error, facts.name) from None
        return [LogRange(first[at].offset, last[at].offset) for at in partitions]

    def create(self, name: str, partitions: int, replicas: int | None = None) -> TopicFacts:
        """Make a topic; return once every partition has a leader.

        Args:
            name: its name.
            partitions: how many; users are spread over them by their keys, so their number stays.
            replicas: copies of each partition; None for the cluster's default.

        Raises:
            Misconfigured: there is one of this name, the name is no topic's, or no right to make it.
            Retryable: no broker answers.
        """
        wanted = {"num_partitions": partitions, "replication_factor": -1 if replicas is None else replicas}
        try:
            answer = self._client.create_topics({name: wanted}, timeout_ms=self._timeout_ms, raise_errors=False)
            made = answer["topics"][0]
            if made["error_code"]:
                raise self._not_made(name, errors.for_code(made["error_code"]), made["error_message"] or "")
            self._client.wait_for_topics([name], timeout_ms=self._timeout_ms)
        except errors.KafkaError as error:
            raise self._explained(error, name) from None
        return self.topic(name)

    def create_missing(self, name: str, partitions: int, replicas: int | None = None) -> TopicFacts:
        """The topic of this name, whatever it is like; one that is made if there is none."""
        if self._described(name)["error_code"] == _UNKNOWN_TOPIC:
            return self.create(name, partitions, replicas)
        return self.topic(name)

    def _not_made(self, name: str, kind: type[errors.KafkaError], said: str) -> RaygamError:
        if kind is errors.TopicAlreadyExistsError:
            return Misconfigured(f"there is a topic {name} already; `raygam topics show {name}` says what it has")
        if issubclass(kind, errors.AuthorizationError):
            return Misconfigured(
                f"{kafka_errors.who(self.connection)} has no right to make topic {name}; grant it: kafka-acls --add "
                f"--allow-principal {kafka_errors.principal(self.connection)} --topic {name} --operation Create"
            )
        if issubclass(kind, errors.RetriableError):
            return self._explained(kind(said), name)
        return Misconfigured(f"the cluster does not make topic {name!r}: {said.rstrip('.') or kind.__name__}")

    def close(self) -> None:
        """End the session."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _described(self, name: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self._client.describe_topics([name])[0]
        except errors.KafkaError as error:
            raise self._explained(error, name) from None
        return found

    def _explained(self, error: errors.KafkaError, topic: str) -> RaygamError:
        return kafka_errors.explained(error, self.connection, topic)


def topic_id_text(topic_id: uuid.UUID) -> str:
    """A topic's id as Kafka's tools print it."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
