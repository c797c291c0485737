"""Embedder replicas, and the `Embedder` that spreads texts over them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..memory.errors import Retryable
from ..memory.ports import Embedder, Vectors
from ..pipeline.batching import BatchingEmbedder
from . import calls, logs
from .process import Process, this_process

_SLICE = 512
"""Texts of one call: enough to hide its cost, few enough to spread and to repeat."""
_CALL_SECONDS = 120.0
_GIVE_UP_SECONDS = 60.0


class EmbedderActor:
    """One replica of the model: one thread, passes shared by all callers."""

    def __init__(self, make: Callable[..., BatchingEmbedder], name: str, *arguments: Any) -> None:
        logs.configure(name)
        self._made: BatchingEmbedder | None = None
        self._lock = threading.Lock()
        self._make: Callable[[], BatchingEmbedder] = lambda: make(name, *arguments)

    def process(self) -> Process:
        """The process, to kill it when it does not answer."""
        return this_process()

    def report(self) -> int:
        """Passes so far."""
        return self._model.passes

    def embed(self, texts: list[str], behind: bool = False) -> Vectors:
        """Return unit vectors `(len(texts), dimension)`; the slow path waits behind everybody else."""
        return self._model.embed(texts, behind=behind)

    def close(self) -> None:
        """End after the present pass; callers go to another replica."""
        self._model.close()

    @property
    def _model(self) -> BatchingEmbedder:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made


class RemoteEmbedder:
    """An `Embedder` over all replicas, whichever live. Thread-safe.

    Args:
        name: the model's name, as recorded with the state.
        dimension: of its vectors.
        replicas: returns the handles of the replicas that live now; asked again when a call fails.
        count_tokens: counts as the model's tokenizer does, without the model.
        behind: the slow path's: whoever else asks comes first.
    """

    def __init__(
        self,
        name: str,
        dimension: int,
        replicas: Callable[[], Sequence[Any]],
        count_tokens: Callable[[str], int] | None = None,
        *,
        behind: bool = False,
    ) -> None:
        self.name = name
        self._behind = behind
        self.dimension = dimension
        self._replicas = replicas
        self._known: Sequence[Any] = ()
        self._next = 0
        self._lock = threading.Lock()
        if count_tokens is not None:
            self.count_tokens = count_tokens

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return unit vectors `(len(texts), dimension)`; a dead replica's texts go to another.

        Raises:
            Retryable: no replica answers.
        """
        if not texts:
            return np.zeros((0, self.dimension), dtype=np.float32)
        parts = [list(texts[start : start + _SLICE]) for start in range(0, len(texts), _SLICE)]
        asked = [(part, self._ask(part)) for part in parts]
        found = [self._answer(part, reference) for part, reference in asked]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _ask(self, texts: list[str]) -> Any:
        handle = self._pick()
        return None if handle is None else handle.embed.remote(texts, self._behind)

    def _answer(self, texts: list[str], reference: Any) -> Vectors:
        deadline = time.monotonic() + _GIVE_UP_SECONDS
        pause = 0.05
        while True:
            if reference is not None:
                try:
                    return calls.result(reference, _CALL_SECONDS, "embedding")  # type: ignore[no-any-return]
                except Retryable:
                    pass  # dead, closed or stuck: texts may be embedded twice, nothing else happens
            if time.monotonic() >= deadline:
                raise Retryable(
                    f"no embedder replica has answered for {_GIVE_UP_SECONDS:g} s; see the supervisor's log"
                )
            time.sleep(pause)
            pause = min(2 * pause, 1.0)
            self._refresh()
            reference = self._ask(texts)

    def _pick(self) -> Any:
        if not self._known:
            self._refresh()
        with self._lock:
            self._next += 1
            return self._known[self._next % len(self._known)] if self._known else None

    def _refresh(self) -> None:
        try:
            self._known = self._replicas()
        except Retryable:
            self._known = ()


def _is_an_embedder(remote: RemoteEmbedder) -> Embedder:
    return remote
