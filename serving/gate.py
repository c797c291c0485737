"""What every request passes first: its size, how many are under way, and the figures.

Plain ASGI: a body is read up to its limit here, before anything is parsed.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ..pipeline.metrics import Metrics
from .answers import Failure, failed

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_PROBES = ("/healthz", "/readyz")


class Gate:
    """Refuses bodies that are too large (413) and requests beyond what the replica takes on (503).

    Args:
        app: what comes behind.
        max_body_bytes: of one request.
        max_requests: under way at a time; probes are not counted.
        metrics: where figures go.
    """

    def __init__(self, app: App, max_body_bytes: int, max_requests: int, metrics: Metrics) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._max_requests = max_requests
        self._metrics = metrics
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._pass(scope, receive, sending)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.count("raygam_requests_total", route=route, status=str(status))
            self._metrics.observe("raygam_request_seconds", time.perf_counter() - started, route=route)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in _PROBES:
            await self._app(scope, receive, send)
            return
        if self._under_way >= self._max_requests:
            answer = failed(
                Failure(
                    503, "unavailable", f"{self._under_way} requests are under way here, which is the limit "
                    "(setting serve_max_requests); try again in a moment"
                )
            )  # fmt: skip
            await answer(scope, receive, send)
            return
        self._under_way += 1
        try:
            body = await self._body(scope, receive)
            if body is None:
                message = (
                    f"the body has more than {self._max_body_bytes} bytes (setting serve_max_body_bytes); "
                    "send fewer turns at a time"
                )
                await failed(Failure(413, "too_large", message))(scope, receive, send)
                return
            await self._app(scope, _replaying(body, receive), send)
        finally:
            self._under_way -= 1

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """The whole body; None if it is too large."""
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if declared.isdigit() and int(declared) > self._max_body_bytes:
            return None
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return b"".join(parts)  # the client is gone; what comes behind is told so by `receive`
            part = message.get("body", b"")
            size += len(part)
            if size > self._max_body_bytes:
                return None
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)


def _replaying(body: bytes, receive: Receive) -> Receive:
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
