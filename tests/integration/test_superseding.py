"""Event time decides what is past, whatever the order of arrival."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raygam import Memory

NEW = {"message_id": "m2", "session_id": "s1", "text": "I now work at Vela.", "timestamp": "2025-06-01T10:00:00Z"}
OLD = {"message_id": "m1", "session_id": "s0", "text": "I work at Orbis.", "timestamp": "2025-01-05T10:00:00Z"}


@pytest.mark.usefixtures("minilm_weights")
@pytest.mark.parametrize("order", [(NEW, OLD), (OLD, NEW)], ids=["late", "in order"])
def test_the_older_fact_is_the_past_one(tmp_path: Path, order: tuple[dict[str, Any], ...]) -> None:
    """Case late-message-does-not-supersede."""
    with Memory(tmp_path / "state") as memory:
        for turn in order:
            memory.add([turn | {"user_id": "u1", "speaker": "Ana", "role": "user"}])
            memory.flush()
        shown = memory.show("u1")
        found = memory.search("u1", "Where does Ana work?").memories
        assert [one.event.message_id for one in found] == ["m2", "m1"]
        past = {topic["summary"] for topic in shown["topics"] if topic["superseded_by"]}
        assert [relation["type"] for relation in shown["relations"]] == ["contradict"]
        assert past == {"Ana: I work at Orbis."}
        assert [one.superseded for one in found] == [False, True]
