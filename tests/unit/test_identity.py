"""Ids and partitions: the same everywhere, and never shared by two owners."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygam.memory.errors import Misconfigured
from raygam.memory.identity import murmur2, partition_of, record_key, task_id
from raygam.memory.model import User


@pytest.mark.parametrize(
    ("key", "expected"),
    # The vectors of Kafka's own UtilsTest.testMurmur2.
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0xFFFFFFFF


def test_crc32_is_librdkafkas() -> None:
    assert partition_of(b"123456789", 1000, "crc32") == 0xCBF43926 % 1000


def test_an_unknown_partitioner_is_refused() -> None:
    with pytest.raises(Misconfigured, match="murmur2, crc32"):
        partition_of(b"x", 8, "random")


@given(st.text(max_size=8), st.text(max_size=8), st.text(max_size=8), st.text(max_size=8))
def test_two_users_never_share_a_key(tenant: str, user: str, other_tenant: str, other_user: str) -> None:
    same = (tenant, user) == (other_tenant, other_user)
    assert (record_key(User(tenant, user)) == record_key(User(other_tenant, other_user))) == same


def test_task_ids_name_every_part() -> None:
    base = task_id(User("t", "u"), "s", "flush", ["m1", "m2"])
    assert base == task_id(User("t", "u"), "s", "flush", ["m1", "m2"])
    others = {
        task_id(User("tu", ""), "s", "flush", ["m1", "m2"]),
        task_id(User("t", "u"), "sf", "lush", ["m1", "m2"]),
        task_id(User("t", "u"), "s", "flush", ["m1m2"]),
        task_id(User("t", "u"), "s", "flush", ["m1"]),
    }
    assert base not in others
    assert len(others) == 4
