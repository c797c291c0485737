"""Calls to actors from an event loop: the loop is never blocked, and no wait is without an end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from ray.exceptions import RayError

from . import calls

Result = TypeVar("Result")


async def result(reference: Any, seconds: float, what: str) -> Any:
    """Wait for a call.

    Raises:
        Unreachable: the actor died, or did not answer in time; what it was told may be done.
        Exception: what the called method raised.
    """
    try:
        async with asyncio.timeout(max(seconds, 0.0)):
            return await reference
    except RayError as error:  # first: what a method raised may be a TimeoutError too
        raise calls.translated(error, what) from error
    except TimeoutError:
        raise calls.Unreachable(f"{what}: no answer in time") from None


async def aside(ask: Callable[[], Result], seconds: float, what: str) -> Result:
    """Run a function that blocks in another thread; it runs on there when nobody waits for it any more.

    Raises:
        Unreachable: it did not return in time.
        Exception: what it raised.
    """
    try:
        async with asyncio.timeout(max(seconds, 0.0)):
            return await asyncio.to_thread(ask)
    except TimeoutError:
        raise calls.Unreachable(f"{what}: no answer in time") from None
