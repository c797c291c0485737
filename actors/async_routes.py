"""`Routes` for an event loop: who has which partition, and calls that follow it while it moves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from ..memory.errors import NotOwner
from . import async_calls, calls
from .routes import Routes

_CALLS_AT_ONCE = 24
"""Calls of one caller under way at one shard. A shard serves 64 at a time, its supervisor's among them."""


class AsyncRoutes:
    """Finds the shard of a partition, and asks again when it was wrong. For one event loop.

    Args:
        routes: what it asks, in another thread.
        calls_at_once: calls under way at one shard; further ones wait here, where their deadline counts.
    """

    def __init__(self, routes: Routes, *, calls_at_once: int = _CALLS_AT_ONCE) -> None:
        self._routes = routes
        self._calls_at_once = calls_at_once
        self._shards: dict[int, Any] = {}
        self._room: WeakKeyDictionary[Any, asyncio.Semaphore] = WeakKeyDictionary()
        self._refreshing: asyncio.Task[None] | None = None

    async def call(self, partition: int, ask: Callable[[Any], Any], seconds: float) -> Any:
        """Call a partition's shard; find it again while it moves, up to `seconds`.

        What is called must bear repeating: a call that failed may have been done.

        Raises:
            NotOwner, Unreachable: nobody answered for the partition in time.
        """
        deadline = time.monotonic() + seconds
        what = f"the shard of partition {partition}"
        pause = 0.02
        while True:
            try:
                handle = await self.shard(partition, deadline - time.monotonic())
                return await self._ask(handle, ask, deadline, what)
            except (NotOwner, calls.Unreachable):
                self._shards.pop(partition, None)
                if time.monotonic() + pause >= deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.5)
            await self.refresh(deadline - time.monotonic())

    async def shard(self, partition: int, seconds: float) -> Any:
        """The handle of the shard that has a partition.

        Raises:
            NotOwner: nobody has it, as far as is known.
            Unreachable: nobody said so in time.
        """
        handle = self._shards.get(partition)
        if handle is None:
            handle = await async_calls.aside(
                lambda: self._routes.shard(partition), seconds, f"finding the shard of partition {partition}"
            )
            self._shards[partition] = handle
        return handle

    async def embedders(self, seconds: float) -> list[Any]:
        """The handles of the embedder replicas that live now.

        Raises:
            Unreachable: nobody said so in time.
        """
        return await async_calls.aside(self._routes.embedders, seconds, "finding the embedder")

    async def refresh(self, seconds: float) -> None:
        """Ask the supervisor who has what; all who ask meanwhile share its answer, or go on without it."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(asyncio.to_thread(self._routes.refresh))
        await asyncio.wait({self._refreshing}, timeout=max(seconds, 0.0))

    def forget(self) -> None:
        """Find every shard anew."""
        self._shards.clear()

    async def _ask(self, handle: Any, ask: Callable[[Any], Any], deadline: float, what: str) -> Any:
        room = self._room.get(handle)
        if room is None:
            room = self._room[handle] = asyncio.Semaphore(self._calls_at_once)
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), 0.0)):
                await room.acquire()
        except TimeoutError:
            raise calls.Unreachable(f"{what}: {self._calls_at_once} calls were before this one until its end") from None
        try:
            return await async_calls.result(ask(handle), deadline - time.monotonic(), what)
        finally:
            room.release()
