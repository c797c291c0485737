"""The composition root of what talks to Kafka: chooses its adapters and reads its settings."""

from __future__ import annotations

from ..adapters.kafka_cluster import KafkaCluster
from ..adapters.kafka_connection import KafkaConnection
from ..adapters.kafka_messages import DEAD, MessageProducer
from ..adapters.kafka_producer import TopicProducer
from ..adapters.kafka_source import KafkaReader
from ..memory.errors import Misconfigured
from .config import Settings
from .kafka_config import KafkaFields

__all__ = ["DEAD", "connection", "open_cluster", "open_messages", "open_producer", "open_reader"]


def connection(settings: KafkaFields) -> KafkaConnection:
    """Where Kafka is, and as whom.

    Raises:
        Misconfigured: no broker is named, or the settings contradict each other.
    """
    if settings.kafka_brokers is None:
        raise Misconfigured("no Kafka broker is named; give --kafka host:port, or set kafka_brokers")
    return KafkaConnection(
        brokers=settings.kafka_brokers,
        security=settings.kafka_security,
        mechanism=settings.kafka_mechanism,
        user=settings.kafka_user,
        password=settings.kafka_secret(),
        ca_file=settings.kafka_ca_file,
        certificate_file=settings.kafka_certificate_file,
        key_file=settings.kafka_key_file,
        key_password=settings.kafka_key_password,
        check_hostname=settings.kafka_check_hostname,
    )


def open_cluster(settings: KafkaFields) -> KafkaCluster:
    """A session for questions about topics; the caller closes it."""
    return KafkaCluster(connection(settings))


def open_reader(settings: KafkaFields, partitions: int | None) -> KafkaReader:
    """A reader of the topic, which must have so many partitions; the caller closes it."""
    return KafkaReader(
        connection(settings),
        settings.kafka_topic,
        partitions=partitions,
        skip_lost=settings.kafka_skip_lost,
        accept=settings.kafka_accept_topic,
    )


def open_producer(settings: Settings) -> TopicProducer:
    """A producer for the topic; the caller closes it."""
    return TopicProducer(
        connection(settings), settings.kafka_topic, max_record_bytes=settings.record_limits.max_record_bytes
    )


def open_messages(settings: KafkaFields, updates_topic: str | None) -> MessageProducer:
    """Where messages of the outbox go; the caller closes it."""
    return MessageProducer(connection(settings), updates_topic)
