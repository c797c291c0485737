"""Deterministic ids, record keys and partitions.

A replay must name things as the first run did, so ids are hashes of what they
come from, never random (invariant 8).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from hashlib import blake2b

from .errors import Misconfigured
from .model import User

PARTITIONERS = ("murmur2", "crc32")
TOPIC_SOURCE = "kafka:"
"""How the id of a source begins that is a topic; the topic's id follows."""


def _digest(*parts: str) -> str:
    joined = b"".join(b"%d:%s" % (len(raw), raw) for raw in (part.encode() for part in parts))
    return blake2b(joined, digest_size=16).hexdigest()


def task_id(user: User, session_id: str, trigger: str, message_ids: Sequence[str]) -> str:
    """Id of a segment task: its owner, its cause and the events that it froze."""
    return _digest("task", user.tenant, user.user_id, session_id, trigger, *message_ids)


def episode_id(task: str, ordinal: int) -> str:
    """Id of the `ordinal`-th episode (from 0) of a task."""
    return _digest("episode", task, str(ordinal))


def topic_id(task: str, ordinal: int) -> str:
    """Id of the topic of a task's `ordinal`-th episode."""
    return _digest("topic", task, str(ordinal))


def letter_id(source: str, partition: int, offset: int) -> str:
    """Id of the message that tells of a dead letter: where the record lies."""
    return _digest("dead_letter", source, str(partition), str(offset))


def record_key(user: User) -> bytes:
    """Key of a user's records: `<bytes of tenant>:<tenant>:<user_id>` in UTF-8.

    The length in front keeps ("t1", "a:b") and ("t1:a", "b") apart.
    """
    tenant = user.tenant.encode()
    return b"%d:%s:%s" % (len(tenant), tenant, user.user_id.encode())


def partition_of(key: bytes, partitions: int, partitioner: str = "murmur2") -> int:
    """Partition of a record key, as Kafka's default producer or librdkafka computes it.

    Raises:
        Misconfigured: the partitioner is not one of `PARTITIONERS`.
    """
    if partitioner == "murmur2":
        return (murmur2(key) & 0x7FFFFFFF) % partitions
    if partitioner == "crc32":
        return zlib.crc32(key) % partitions
    raise Misconfigured(f"unknown partitioner {partitioner!r}; choose one of {', '.join(PARTITIONERS)}")


def murmur2(data: bytes) -> int:
    """MurmurHash2 as Kafka's Java client computes it: unsigned, 32 bits, seed 0x9747b28c."""
    length = len(data)
    mask = 0xFFFFFFFF
    multiplier = 0x5BD1E995
    value = (0x9747B28C ^ length) & mask
    whole = length & ~3
    for start in range(0, whole, 4):
        chunk = int.from_bytes(data[start : start + 4], "little")
        chunk = (chunk * multiplier) & mask
        chunk ^= chunk >> 24
        chunk = (chunk * multiplier) & mask
        value = ((value * multiplier) & mask) ^ chunk
    rest = length & 3
    if rest:
        value ^= int.from_bytes(data[whole:], "little")
        value = (value * multiplier) & mask
    value ^= value >> 13
    value = (value * multiplier) & mask
    return value ^ (value >> 15)
