"""Why reading waits."""

from __future__ import annotations

from pathlib import Path

from raygam.pipeline.capacity import obstruction
from raygam.pipeline.host_status import HostSettings


def test_room_is_asked_for_where_there_is_a_directory(tmp_path: Path) -> None:
    """Of a database's disk nothing is known here: its server says when it is full."""
    greedy = HostSettings(min_free_bytes=2**62)
    assert "min_free_bytes" in obstruction(greedy, tmp_path, 0, 0, paused=False)
    assert obstruction(greedy, None, 0, 0, paused=False) == ""
