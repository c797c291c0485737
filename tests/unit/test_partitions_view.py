"""What `raygam partitions` compares with, and how it shows it on a narrow terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from raygam.memory.errors import Misconfigured
from raygam.pipeline import cli_partitions
from raygam.pipeline.config import read_settings


def row(at: int, *sources: tuple[str, str], **more: Any) -> dict[str, Any]:
    numbers = dict.fromkeys(("users", "events", "open_tasks", "parked_tasks", "dead_letters", "unsent_messages"), 0)
    positions = {source: {"name": name, "next_offset": 1000 + at} for source, name in sources}
    return {"partition": at, "epoch": 3, "opened_by": "process 7", "positions": positions, **numbers, **more}


def test_the_topic_is_the_one_that_the_state_has_read() -> None:
    read = [row(0, ("kafka:abc", "orders"), ("file:1", "/tmp/a.jsonl")), row(1)]
    assert cli_partitions._topic_of(read, read_settings()) == "orders"
    assert cli_partitions._topic_of(read, read_settings(kafka_topic="named")) == "named"
    assert cli_partitions._topic_of([row(0)], read_settings()) == read_settings().kafka_topic
    with pytest.raises(Misconfigured, match="orders, returns; name one with --topic"):
        cli_partitions._topic_of([*read, row(2, ("kafka:def", "returns"))], read_settings())


def test_it_fits_a_terminal_of_eighty_columns() -> None:
    topic = {"end": 5_000_000, "lag": 4_000_000}
    rows = [row(at, ("kafka:abc", "[b]orders"), events=123_456, dead_letters=at, kafka=topic) for at in range(3)]
    document = {
        "partitions": [*rows, row(3, opened_by="process 8")],
        "partitioner": "murmur2",
        "topic": {"name": "orders"},
    }
    written = io.StringIO()
    Console(width=80, file=written).print(cli_partitions.partitions_view(document))
    shown = written.getvalue()
    assert "4 partitions, placed by murmur2, beside topic orders" in shown
    for expected in (
        "123,456",
        "4,000,000",
        "[b]order",
        "dead",
        "last opened by process 7: partitions 0 to 2",
    ):
        assert expected in shown
    for absent in ("unsent", "parked"):
        assert absent not in shown
    assert "last opened by process 8: partition 3" in shown
