"""The `ChatModel` of workers on Ray: one that spreads requests over all replicas."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from ..memory.chat import ChatAnswer, ChatRequest
from ..memory.errors import ModelAway, RaygamError
from ..memory.ports import ChatModel
from . import calls

_OLD_SECONDS = 2.0
"""What is known of replicas is asked for anew after it: one that came back gets its share."""

_MAY_DIE = 2
"""Replicas that one request may take with it before it is looked at again."""

_GRACE_SECONDS = 1.0
"""A replica keeps the time itself; who waits a little longer hears what was wrong."""


class RemoteChat:
    """Each request goes to the replica with the fewest calls of this process under way. Thread-safe.

    Args:
        name: the model's name, as recorded with what it says.
        context_tokens: of a request and its answer together.
        count_tokens: counts as the model's tokenizer does, in this process.
        replicas: asks anew which replicas answer now; their handles by name.
    """

    def __init__(
        self,
        name: str,
        context_tokens: int,
        count_tokens: Callable[[str], int],
        replicas: Callable[[], Mapping[str, Any]],
    ) -> None:
        self.name = name
        self.context_tokens = context_tokens
        self.count_tokens = count_tokens
        self._replicas = replicas
        self._known: Mapping[str, Any] = {}
        self._under_way: Counter[str] = Counter()
        self._last_used: dict[str, int] = {}
        self._uses = 0
        self._refreshed = float("-inf")
        self._lock = threading.Lock()
        self._closing: concurrent.futures.Future[None] = concurrent.futures.Future()

    def complete(self, request: ChatRequest, seconds: float) -> ChatAnswer:
        """Call the model once; errors as the port says.

        A replica that dies, ends or stands still is passed over, and the request is given to another: it may be
        computed twice, nothing else happens. One at which two have died is given to no third: it may be its fault.

        Raises:
            ModelAway: no replica is ready, or none answered within `seconds`.
        """
        deadline = time.monotonic() + seconds
        tried: set[str] = set()
        trouble: RaygamError | None = None
        died = 0
        while not self._closing.done() and died < _MAY_DIE:
            taken = self._take(tried)
            if taken is None:
                break
            name, handle = taken
            try:
                return self._answer(name, handle, request, deadline)
            except (calls.Unreachable, ModelAway) as error:
                trouble = error
                died += isinstance(error, calls.Dead) or (isinstance(error, ModelAway) and error.at_work)
                tried.add(name)
                if time.monotonic() >= deadline:
                    break
            finally:
                self._give_back(name)
        if self._closing.done():
            raise ModelAway(f"the model {self.name} was let go of by its caller") from trouble
        if trouble is None:
            raise ModelAway(
                f"no replica of the model {self.name} is ready; `raygam engine show` says how they are, and their logs "
                "are in Ray's session folder"
            )
        raise ModelAway(f"no replica of the model {self.name} gave an answer: {trouble}", at_work=died > 0) from trouble

    def close(self) -> None:
        """End; calls under way raise `ModelAway` at once."""
        with self._lock:
            if not self._closing.done():
                self._closing.set_result(None)

    def _answer(self, name: str, handle: Any, request: ChatRequest, deadline: float) -> ChatAnswer:
        left = max(deadline - time.monotonic(), 0.0)
        reference = handle.complete.remote(request, left)
        future: concurrent.futures.Future[ChatAnswer] = reference.future()
        waiting: list[concurrent.futures.Future[Any]] = [future, self._closing]
        concurrent.futures.wait(waiting, left + _GRACE_SECONDS, concurrent.futures.FIRST_COMPLETED)
        if not future.done():
            calls.give_up(reference)
            raise calls.Unreachable(f"{name}: no answer in time")
        try:
            return future.result()
        except Exception as error:
            raise calls.translated(error, name) from error

    def _take(self, tried: set[str]) -> tuple[str, Any] | None:
        """Choose a replica that was not tried yet and count a call of it; None if there is none."""
        with self._lock:
            old = time.monotonic() - self._refreshed > _OLD_SECONDS
            if old:  # one thread asks, the others go on with what is known
                self._refreshed = time.monotonic()
        if old:
            self._refresh()
        taken = self._choose(tried)
        if taken is None and not old:
            self._refresh()
            taken = self._choose(tried)
        return taken

    def _choose(self, tried: set[str]) -> tuple[str, Any] | None:
        with self._lock:
            free = [name for name in self._known if name not in tried]
            if not free:
                return None
            name = min(free, key=lambda one: (self._under_way[one], self._last_used.get(one, 0)))
            self._uses += 1
            self._under_way[name] += 1
            self._last_used[name] = self._uses
            return name, self._known[name]

    def _give_back(self, name: str) -> None:
        with self._lock:
            self._under_way[name] -= 1
            if not self._under_way[name]:
                del self._under_way[name]

    def _refresh(self) -> None:
        known = dict(self._replicas())
        with self._lock:
            self._known, self._refreshed = known, time.monotonic()
            self._last_used = {name: used for name, used in self._last_used.items() if name in known}


def _is_a_chat_model(remote: RemoteChat) -> ChatModel:
    return remote
