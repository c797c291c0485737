"""The key format that producers in other languages follow: the page's vectors, by every implementation at hand."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import NamedTuple

import pytest
from kafka.partitioner.default import murmur2 as murmur2_of_kafka_python

from raygam.memory.identity import murmur2, partition_of, record_key
from raygam.memory.model import User
from raygam.pipeline.routing import Routing

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "kafka.md").read_text(encoding="utf-8")


class Vector(NamedTuple):
    tenant: str
    user: str
    key: str
    murmur2: int
    murmur2_of_8: int
    murmur2_of_64: int
    crc32: int
    crc32_of_8: int
    crc32_of_64: int


def vectors() -> list[Vector]:
    lines = iter(PAGE.splitlines())
    for line in lines:
        if line.startswith("| tenant | user | key |"):
            next(lines)
            break
    found = []
    for line in lines:
        if not line.startswith("|"):
            break
        texts = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        tenant, user, key, *numbers = texts
        found.append(Vector(tenant, user, key, *map(int, numbers)))
    return found


def crc32_bit_by_bit(data: bytes) -> int:
    """As librdkafka's rd_crc32 defines it: polynomial 0x04c11db7 reflected, all ones before and after."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0xEDB88320 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def test_the_page_has_vectors_that_tell_mistakes_apart() -> None:
    assert len(vectors()) >= 7
    assert any(not vector.key.isascii() for vector in vectors())
    assert any(vector.murmur2 > 0x7FFFFFFF for vector in vectors())


@pytest.mark.parametrize("vector", vectors(), ids=lambda vector: vector.key)
def test_the_pages_vectors_hold(vector: Vector) -> None:
    key = record_key(User(vector.tenant, vector.user))
    assert key == vector.key.encode()
    assert murmur2(key) == murmur2_of_kafka_python(key) == vector.murmur2
    assert zlib.crc32(key) == crc32_bit_by_bit(key) == vector.crc32
    assert [partition_of(key, count, "murmur2") for count in (8, 64)] == [vector.murmur2_of_8, vector.murmur2_of_64]
    assert [partition_of(key, count, "crc32") for count in (8, 64)] == [vector.crc32_of_8, vector.crc32_of_64]
    assert Routing(64, "murmur2").of_user(User(vector.tenant, vector.user)) == (key, vector.murmur2_of_64)


@pytest.mark.parametrize("partitioner", ["murmur2", "crc32"])
def test_a_record_goes_with_the_owner_that_it_names(partitioner: str) -> None:
    routing = Routing(8, partitioner)
    assert routing.of_record(b'{"user_id": "ann", "text": 5}') == routing.of_user(User("default", "ann"))
    assert routing.of_record(b'{"tenant": "acme", "user_id": "ann"}') == routing.of_user(User("acme", "ann"))


@pytest.mark.parametrize("partitioner", ["murmur2", "crc32"])
def test_a_record_without_an_owner_goes_where_its_beginning_says(partitioner: str) -> None:
    routing = Routing(8, partitioner)
    for raw in (b"", b"no json", b'{"user_id": 7}', b"x" * 10_000):
        assert routing.of_record(raw) == (None, partition_of(raw[:4096], 8, partitioner))
