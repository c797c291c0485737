"""The embedder replicas, for an event loop: texts that wait go together in the next call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..memory.errors import Retryable
from ..memory.ports import Vectors
from . import async_calls, calls
from .async_routes import AsyncRoutes

_SLICE = 256
"""Texts of one call: a replica's pass."""
_SHORT = 8
"""So few texts share a call with others; more have calls of their own."""
_CALLS_AT_ONCE = 2
"""Calls of short requests under way at one time: one computes, one is on its way."""


@dataclass(slots=True)
class _Waiting:
    texts: list[str]
    deadline: float
    found: asyncio.Future[Vectors]


class AsyncEmbedder:
    """Spreads texts over all replicas, whichever live. For one event loop.

    Args:
        dimension: of the vectors.
        routes: finds the replicas.
    """

    def __init__(self, dimension: int, routes: AsyncRoutes) -> None:
        self.dimension = dimension
        self._routes = routes
        self._known: Sequence[Any] = ()
        self._next = 0
        self._waiting: list[_Waiting] = []
        self._under_way: set[asyncio.Task[None]] = set()

    async def embed(self, texts: Sequence[str], seconds: float) -> Vectors:
        """Return unit vectors `(len(texts), dimension)`; a dead replica's texts go to another.

        Raises:
            Unreachable: no replica answered in time.
        """
        if not texts:
            return np.zeros((0, self.dimension), dtype=np.float32)
        deadline = time.monotonic() + seconds
        if len(texts) <= _SHORT:
            return await self._together(list(texts), deadline)
        parts = [list(texts[start : start + _SLICE]) for start in range(0, len(texts), _SLICE)]
        found = await asyncio.gather(*(self._call(part, deadline) for part in parts))
        return found[0] if len(found) == 1 else np.concatenate(found)

    async def _together(self, texts: list[str], deadline: float) -> Vectors:
        waiting = _Waiting(texts, deadline, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._send()
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), 0.0)):
                return await waiting.found
        except TimeoutError:
            raise calls.Unreachable("embedding: no answer in time") from None

    def _send(self) -> None:
        """Start calls for what waits, while there is room for calls."""
        while self._waiting and len(self._under_way) < _CALLS_AT_ONCE * max(len(self._known), 1):
            taken, count = 0, 0
            for waiting in self._waiting:
                count += len(waiting.texts)
                if count > _SLICE:
                    break
                taken += 1
            group, self._waiting = self._waiting[:taken], self._waiting[taken:]
            group = [waiting for waiting in group if not waiting.found.done()]  # nobody waits for the others
            if group:
                task = asyncio.create_task(self._call_for(group))
                self._under_way.add(task)
                task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._send()

    async def _call_for(self, group: list[_Waiting]) -> None:
        try:
            vectors = await self._call(
                [text for waiting in group for text in waiting.texts], max(waiting.deadline for waiting in group)
            )
        except Exception as error:  # noqa: BLE001 - each that waits gets it
            for waiting in group:
                if not waiting.found.done():
                    waiting.found.set_exception(error)
            return
        start = 0
        for waiting in group:
            if not waiting.found.done():
                waiting.found.set_result(vectors[start : start + len(waiting.texts)])
            start += len(waiting.texts)

    async def _call(self, texts: list[str], deadline: float) -> Vectors:
        pause = 0.02
        while True:
            left = deadline - time.monotonic()
            handle = await self._pick(left)
            if handle is not None:
                # One that is stopped answers nothing: another has half of the time left.
                patience = left / 2 if len(self._known) > 1 else left
                try:
                    found: Vectors = await async_calls.result(handle.embed.remote(texts), patience, "embedding")
                    return found
                except Retryable:
                    pass  # dead, closed or stuck: texts may be embedded twice, nothing else happens
            if time.monotonic() + pause >= deadline:
                raise calls.Unreachable("embedding: no replica answered in time")
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.5)
            self._known = ()

    async def _pick(self, seconds: float) -> Any:
        if not self._known:
            try:
                self._known = await self._routes.embedders(seconds)
            except Retryable:
                return None
        self._next += 1
        return self._known[self._next % len(self._known)] if self._known else None
