"""What a Kafka client's errors mean to a person, and whether waiting helps."""

from __future__ import annotations

from kafka import errors

from ..memory.errors import Misconfigured, RaygamError, Refused, Rejected, Retryable
from .kafka_connection import KafkaConnection
from .kafka_probe import check_addresses, check_connection


def explained(error: errors.KafkaError, connection: KafkaConnection, topic: str) -> RaygamError:
    """The error of ours that stands for one of the client's.

    Args:
        error: what the client raised.
        connection: whom it talked to.
        topic: what it talked about.
    """
    if isinstance(error, errors.TopicAuthorizationFailedError):
        return no_right(connection, topic, "read or write")
    if isinstance(error, errors.AuthorizationError):
        return Refused(
            f"{who(connection)} has no right to do this in the Kafka cluster at {connection.brokers} "
            f"({type(error).__name__}); grant it with kafka-acls, or use another user"
        )
    if isinstance(error, errors.SaslAuthenticationFailedError | errors.UnsupportedSaslMechanismError):
        return Refused(
            f"Kafka at {connection.brokers} refuses the user {connection.user!r} or the password; "
            "check kafka_user, kafka_password and kafka_mechanism"
        )
    if isinstance(error, errors.UnknownTopicOrPartitionError | errors.UnknownTopicIdError):
        return no_topic(connection, topic)
    if isinstance(error, errors.UnsupportedCodecError):
        return Misconfigured(
            f"records of topic {topic} are compressed in a way that cannot be read here ({error}). "
            "Install what is missing: pip install 'kafka-python[crc32c,lz4,zstd,snappy]'"
        )
    if isinstance(error, errors.CorruptRecordError):
        return Misconfigured(
            f"a stored batch of topic {topic} is damaged and was not read ({error}). Read it from another replica or "
            "a backup; every reader of the topic meets it"
        )
    if isinstance(error, errors.LogTruncationError):
        return Misconfigured(
            f"topic {topic} has lost records that were read before: a broker that had not all of them became leader "
            f"({error}). What was read is kept; stream into a new state, or let the producers send the rest again"
        )
    if isinstance(error, errors.MessageSizeTooLargeError | errors.RecordListTooLargeError):
        return Rejected(
            f"a record is larger than topic {topic} takes; shorten it, or raise the topic's max.message.bytes"
        )
    if isinstance(error, errors.UnsupportedVersionError):
        return Misconfigured(f"the Kafka cluster at {connection.brokers} is too old ({error}); it must be 2.8 or newer")
    if "ClusterAuthorizationFailed" in str(error):  # the answer to an idempotent producer that may write to no topic
        return no_right(connection, topic, "write")
    if isinstance(error, errors.RetriableError) or getattr(error, "retriable", False):
        return unreachable(connection, error)
    return RaygamError(f"Kafka at {connection.brokers}, topic {topic}: {type(error).__name__}: {error}")


def unreachable(connection: KafkaConnection, error: Exception) -> RaygamError:
    """Say why a cluster does not answer: what a connection by hand finds, else that it is slow."""
    try:
        advertised = check_connection(connection)
    except (Refused, Retryable) as found:
        return found
    try:
        check_addresses(connection, advertised)
    except (Refused, Retryable) as found:
        names = ", ".join(f"{host}:{port}" for host, port in advertised)
        kind = Refused if isinstance(found, Refused) else Retryable
        return kind(
            f"Kafka answers at {connection.brokers} and tells its clients to go on at {names} (the brokers' "
            f"advertised.listeners), where they are not reached from here: {found}"
        )
    return Retryable(
        f"Kafka at {connection.brokers} takes connections but does not answer in time ({type(error).__name__}); "
        "a broker may be starting, or a partition without a leader"
    )


def no_topic(connection: KafkaConnection, topic: str) -> Refused:
    """The topic is missing."""
    return Refused(
        f"there is no topic {topic} at {connection.brokers}; make it with "
        f"`raygam topics create {topic} --partitions N`, or check its name (kafka_topic)"
    )


def no_right(connection: KafkaConnection, topic: str, to_do: str) -> Refused:
    """The user may not use the topic."""
    return Refused(
        f"{who(connection)} has no right to {to_do} topic {topic} at {connection.brokers}, or it does not exist. Grant "
        f"it: kafka-acls --add --allow-principal {principal(connection)} --topic {topic} "
        "--operation Read --operation Describe (--operation Write for producers)"
    )


def who(connection: KafkaConnection) -> str:
    """The user as a message names it."""
    return f"the Kafka user {connection.user!r}" if connection.sasl else "a client without a user"


def principal(connection: KafkaConnection) -> str:
    """The user as the broker's rules name it."""
    if connection.sasl:
        return f"User:{connection.user}"
    return "User:<subject of the client certificate>" if connection.certificate_file else "User:ANONYMOUS"
