"""What every store promises: who opens it, with what, and what a kill leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from raygam.memory.errors import Misconfigured, StateLocked
from raygam.memory.ports import Store, Writer
from raygam.memory.writes import SourcePosition
from tests.contract.store_rows import ANNA, FACTS, Factory, turn, turns


def test_a_state_made_with_other_facts_is_refused_and_left_alone(factory: Factory) -> None:
    store = factory.create_or_open(FACTS)
    store.writer(0).commit(turns(turn(1)))
    store.close()
    others: dict[str, Any] = {
        "partitions": 3,
        "partitioner": "crc32",
        "embedder": "other-model",
        "dimension": 5,
        "template": 2,
    }
    for name, value in others.items():
        with pytest.raises(Misconfigured) as refused:
            factory.create_or_open(replace(FACTS, **{name: value}))
        message = str(refused.value)
        assert name in message
        assert repr(getattr(FACTS, name)) in message
        assert repr(value) in message
        assert "make a new state" in message
    store = factory.create_or_open(FACTS)
    assert store.facts == FACTS
    assert len(store.reader(0).events(ANNA)) == 1
    store.close()


def test_reading_only(factory: Factory, store: Store) -> None:
    store.writer(0).commit(turns(turn(1)))
    reading = factory.open_read_only()  # beside the writer
    assert reading.facts == FACTS
    assert len(reading.reader(0).events(ANNA)) == 1
    assert reading.reader(1).events(ANNA) == []  # a partition that nobody has written to
    assert reading.reader(1).partition_info().epoch == 0
    with pytest.raises(Misconfigured, match="reading only"):
        reading.writer(0)
    for partition in (-1, 2):
        with pytest.raises(Misconfigured, match="partitions are 0 to 1"):
            reading.reader(partition)
    reading.close()


def test_one_engine_writes(factory: Factory, store: Store) -> None:
    with pytest.raises(StateLocked, match=f"pid {os.getpid()}"):
        factory.create_or_open(FACTS)


def test_a_closed_reader_says_so(store: Store, writer: Writer) -> None:
    reader = store.reader(0)
    reader.close()
    reader.close()
    with pytest.raises(Misconfigured, match="closed"):
        reader.events(ANNA)


_KILLED = """
import os, signal, sys
import numpy as np
from raygam.memory.model import Event, User
from raygam.memory.writes import DeadLetter, SourcePosition, StateFacts, WriteSet

FACTS = StateFacts({facts})
{code}
writer = store.writer(0)

def write(seq, **more):
    anna = User("default", "anna")
    event = Event(anna, seq, f"m{{seq}}", "s", "Anna", "user", "text", 1000 * seq)
    return WriteSet(events=[event], vectors=np.ones((1, 4), np.float32), positions={{"a": SourcePosition(seq)}}, **more)

class Killing(list):
    def __iter__(self):
        os.kill(os.getpid(), signal.SIGKILL)  # in the middle of the transaction
        return super().__iter__()

writer.commit(write(1))
writer.commit(write(2, dead_letters=Killing([DeadLetter("a", 1, "blank", "", b"")])))
"""


def test_a_kill_in_the_middle_of_a_transaction_leaves_the_one_before(factory: Factory) -> None:
    facts = ", ".join(repr(getattr(FACTS, name)) for name in FACTS.__dataclass_fields__)
    source = _KILLED.format(facts=facts, code=factory.code)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    reading = factory.open_read_only()  # before any writer has tidied up
    reader = reading.reader(0)
    assert [event.message_id for event in reader.events(ANNA)] == ["m1"]
    store = factory.create_or_open(FACTS)  # the lock went with the process
    writer = store.writer(0)
    assert writer.positions() == {"a": SourcePosition(1)}
    assert writer.counters()["seq"] == 2
    writer.commit(turns(turn(2)))
    assert [event.seq for event in reader.events(ANNA)] == [1, 2]
    assert reader.entries(ANNA).refs == ["1", "2"]
    assert list(reader.dead_letters()) == []
    reading.close()
    store.close()
