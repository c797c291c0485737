"""What the producers of `benchmarks.faults` say is of every kind, and is what it says to be."""

from __future__ import annotations

import random
from collections import Counter

from benchmarks.fault_dialogue import Dialogue
from raygam.memory.identity import partition_of, record_key
from raygam.memory.model import User
from raygam.pipeline.records import BadRecord, EndOfSession, RecordLimits, Turn, decode

PARTITIONS = 4


def test_records_are_of_every_kind_and_bad_ones_for_their_reason() -> None:
    dialogue, chance = Dialogue(40, PARTITIONS, "murmur2"), random.Random(3)
    kinds: Counter[str] = Counter()
    seen: set[tuple[User, str]] = set()
    for _ in range(8000):
        record = dialogue.next(chance)
        try:
            read = decode(record.value or b"", RecordLimits())
        except BadRecord as bad:
            assert bad.reason == record.reason
            kinds[bad.reason] += 1
            continue
        at_home = partition_of(record_key(read.user), PARTITIONS) == record.partition
        assert at_home == (record.reason != "wrong_partition")
        if isinstance(read, EndOfSession):
            kinds["end"] += 1
        elif not at_home:
            kinds["wrong_partition"] += 1
        else:
            assert isinstance(read, Turn)
            assert (record.user, record.message_id, record.text) == (read.user, read.message_id, read.text)
            kinds["again" if (read.user, read.message_id) in seen else "turn"] += 1
            seen.add((read.user, read.message_id))
    assert set(kinds) == {
        *("turn", "again", "end", "not_json", "missing_field", "bad_time", "invalid_text", "blank", "wrong_partition")
    }
    names = [
        {(user.user_id, message) for user, message in seen if user.tenant == tenant} for tenant in ("north", "south")
    ]
    assert len(names[0] & names[1]) > 1000, "the tenants share user ids and message ids"


def test_a_probe_is_a_user_of_its_own_in_the_partition_asked_for() -> None:
    dialogue = Dialogue(2, PARTITIONS, "crc32")
    probes = [dialogue.probe(at) for at in (0, 1, 2, 3, 3)]
    assert [record.partition for record in probes] == [0, 1, 2, 3, 3]
    assert len({record.user for record in probes}) == 5
    assert all(partition_of(record.key or b"", PARTITIONS, "crc32") == record.partition for record in probes)
