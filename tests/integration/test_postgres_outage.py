"""The database is gone for a while under an engine of one process: every call says so, and then goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.postgres_server import GivenServer, PostgresServer
from raygam import Memory, Retryable
from raygam.pipeline.library import AddResult


def turn(number: int) -> dict[str, Any]:
    spoken = {"user_id": f"u{number % 5}", "session_id": "s1", "speaker": "Ana", "role": "user"}
    return spoken | {
        "message_id": f"m{number}",
        "text": f"fact number{number}",
        "timestamp": 1_700_000_000_000 + number * 1000,
    }


def repeated(call: Callable[[], AddResult]) -> AddResult:
    """What a caller does who was told to try again: each partition finds its connection lost once."""
    for _ in range(2):
        with contextlib.suppress(Retryable):
            return call()
    return call()


def test_a_server_that_is_killed_under_the_library(postgres_server: GivenServer, postgres_url: str) -> None:
    """Workers have tasks in hand, and queries are open, when it goes."""
    if not isinstance(postgres_server, PostgresServer):
        pytest.skip("the server is somebody else's, and is not killed")
    with Memory(postgres_url, embedder="stub", partitions=2, workers=2, max_buffer_tokens=20) as memory:
        assert memory.add([turn(number) for number in range(200)]).accepted == 200
        assert memory.search("u1", "number1").memories
        postgres_server.kill()
        try:
            for asked in (lambda: memory.add([turn(200)]), lambda: memory.search("u1", "number1"), memory.flush):
                with pytest.raises(Retryable, match=r"connection to .* was lost|cannot reach PostgreSQL"):
                    asked()
        finally:
            postgres_server.start()
        added = repeated(lambda: memory.add([turn(number) for number in range(190, 210)]))
        assert added.accepted + added.duplicates == 20
        memory.flush()
        for user in range(5):
            shown = memory.show(f"u{user}")
            names = sorted(name for episode in shown["episodes"] for name in episode["events"])
            assert names == sorted(f"m{number}" for number in range(user, 210, 5))
            assert (shown["tasks"], shown["buffers"]) == ([], [])
        assert memory.search("u3", "number208").memories[0].event.message_id == "m208"
