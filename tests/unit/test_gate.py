"""What every request passes first: sizes and numbers, before anything is parsed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import pytest

from raygam.pipeline.metrics import NoMetrics
from raygam.serving.gate import Gate

Message = MutableMapping[str, Any]


class Counts(NoMetrics):
    """Remembers what was counted."""

    def __init__(self) -> None:
        self.counted: list[dict[str, str]] = []

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        if name == "raygam_requests_total":
            self.counted.append(labels)


async def echo(scope: Any, receive: Any, send: Any) -> None:
    message = await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": message["body"]})


async def ask(gate: Gate, parts: list[bytes], path: str = "/v1/x", declared: int | None = None) -> tuple[int, bytes]:
    left = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    left.append({"type": "http.request", "body": b"", "more_body": False})
    said: list[Message] = []

    async def receive() -> Message:
        return left.pop(0)

    async def send(message: Message) -> None:
        said.append(message)

    headers = [] if declared is None else [(b"content-length", str(declared).encode())]
    await gate({"type": "http", "path": path, "headers": headers, "method": "POST"}, receive, send)
    return said[0]["status"], b"".join(message.get("body", b"") for message in said)


@pytest.mark.parametrize(
    ("parts", "declared", "status"),
    [
        ([b"12345", b"67890"], None, 200),
        ([b"1234567890"], 10, 200),
        ([b"12345", b"678901"], None, 413),
        ([b"12345", b"678901"], 3, 413),
        ([], 11, 413),
    ],
)
def test_a_body_is_refused_above_its_limit_whatever_its_header_says(
    parts: list[bytes], declared: int | None, status: int
) -> None:
    metrics = Counts()
    answered, body = asyncio.run(ask(Gate(echo, 10, 1, metrics), parts, declared=declared))
    assert answered == status
    if status == 200:
        assert body == b"".join(parts)
    else:
        assert json.loads(body)["error"]["type"] == "too_large"
    assert metrics.counted == [{"route": "other", "status": str(status)}]


def test_requests_beyond_the_limit_are_refused_and_probes_are_not() -> None:
    async def story() -> None:
        going, may_end = asyncio.Event(), asyncio.Event()

        async def slow(scope: Any, receive: Any, send: Callable[[Message], Awaitable[None]]) -> None:
            if scope["path"] == "/v1/slow":
                going.set()
                await may_end.wait()
            await echo(scope, receive, send)

        gate = Gate(slow, 10, 1, NoMetrics())
        first = asyncio.create_task(ask(gate, [b"1"], "/v1/slow"))
        await going.wait()
        status, body = await ask(gate, [b"2"])
        assert status == 503
        assert json.loads(body)["error"]["type"] == "unavailable"
        assert (await ask(gate, [], "/healthz"))[0] == 200
        may_end.set()
        assert await first == (200, b"1")
        assert await ask(gate, [b"3"]) == (200, b"3")

    asyncio.run(story())
