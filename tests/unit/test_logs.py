"""What an actor's log lines look like."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from raygam.actors.logs import JsonLines


def line(message: str, *arguments: object, **more: Any) -> dict[str, Any]:
    logger = logging.getLogger("raygam.shard")
    record = logger.makeRecord("raygam.shard", logging.WARNING, "host.py", 7, message, arguments, **more)
    text = JsonLines("shard-0:2").format(record)
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_line_says_who_when_and_what() -> None:
    found = line("partition %s opened", 3, exc_info=None, extra={"partition": 3, "epoch": 12, "task": "t1"})
    assert found.pop("time").endswith("+00:00")
    assert found == {
        **{"level": "warning", "logger": "raygam.shard", "actor": "shard-0:2", "message": "partition 3 opened"},
        **{"partition": 3, "epoch": 12, "task": "t1"},
    }


def test_a_trace_is_inside_its_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        found = line("reading ended", exc_info=sys.exc_info())
    assert found["error"].startswith("Traceback")
    assert found["error"].endswith("ValueError: two\nlines")


def test_what_json_does_not_know_is_written_as_text() -> None:
    assert line("x", exc_info=None, extra={"state": ValueError("odd")})["state"] == "odd"
