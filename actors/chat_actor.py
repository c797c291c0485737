"""Replicas of a chat model on Ray: each holds an engine that computes all its callers' requests together."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ..memory.chat import ChatAnswer, ChatRequest
from ..memory.errors import ModelAway, RaygamError
from . import logs
from .process import Process, this_process

log = logging.getLogger("raygam.chat")
_REST_SECONDS = 20.0
"""A replica that failed is not replaced sooner: what it failed for, as a GPU that is still taken, may pass."""


class ChatEngine(Protocol):
    """What a replica holds: loads a model once, and answers many at a time."""

    @property
    def under_way(self) -> int: ...

    @property
    def failure(self) -> str: ...

    def start(self) -> None: ...

    def figures(self) -> Any: ...

    async def answer(self, request: ChatRequest, seconds: float) -> ChatAnswer: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ChatParts:
    """What a replica is made of: an engine that is not started, and how long its start may take."""

    engine: ChatEngine
    start_seconds: float


@dataclass(frozen=True, slots=True)
class ChatReport:
    """What a replica says of itself.

    Attributes:
        ready: it answers.
        failure: why it will not; empty as long as it may.
        over: it has failed, and is to be replaced.
        under_way: calls that have no answer yet.
        figures: what its engine has counted so far, None before it is ready.
    """

    ready: bool
    failure: str
    over: bool
    under_way: int
    figures: Any


class ChatActor:
    """One replica. It answers reports while it loads its model, which may take minutes."""

    def __init__(self, make: Callable[..., ChatParts], name: str, *arguments: Any) -> None:
        logs.configure(name)
        self._make: Callable[[], ChatParts] = lambda: make(name, *arguments)
        self._engine: ChatEngine | None = None
        self._failure = ""
        self._failed_at: float | None = None
        self._started = time.monotonic()
        self._start_seconds = float("inf")
        self._closed = False
        threading.Thread(target=self._start, name="raygam-loading", daemon=True).start()

    def process(self) -> Process:
        """The process, to kill it when it does not answer."""
        return this_process()

    def report(self) -> ChatReport:
        """How it goes."""
        engine, now = self._engine, time.monotonic()
        failure = self._failure or (engine.failure if engine is not None else "")
        if engine is None and not failure and now - self._started > self._start_seconds:
            failure = self._failure = (
                f"it did not load its model within {self._start_seconds:g} s (setting chat_start_seconds)"
            )
        if failure and self._failed_at is None:
            self._failed_at = now
            log.error("a replica failed", extra={"error": failure})
        return ChatReport(
            ready=engine is not None and not failure,
            failure=failure,
            over=self._failed_at is not None and (engine is not None or now - self._failed_at > _REST_SECONDS),
            under_way=engine.under_way if engine is not None else 0,
            figures=engine.figures() if engine is not None else None,
        )

    async def complete(self, request: ChatRequest, seconds: float) -> ChatAnswer:
        """Call the model once; errors as the port says. Whoever calls again does no harm."""
        if self._engine is None:
            raise ModelAway(f"the replica has no model: {self._failure or 'it is being loaded'}")
        return await self._engine.answer(request, seconds)

    def close(self) -> None:
        """End; calls under way raise `ModelAway`, and their callers go to another replica."""
        self._closed = True
        if self._engine is not None:
            self._engine.close()

    def _start(self) -> None:
        try:
            parts = self._make()
            engine, self._start_seconds = parts.engine, parts.start_seconds
            engine.start()
        except Exception as error:  # the top of the thread: told with the report, and tried by a successor
            log.log(logging.ERROR, "a model was not loaded", exc_info=not isinstance(error, RaygamError))
            self._failure = str(error) or type(error).__name__
            return
        if self._closed:
            engine.close()
            return
        log.info("a model was loaded", extra={"seconds": round(time.monotonic() - self._started, 1)})
        self._engine = engine
