"""One model, many callers: texts that wait are embedded together, in the order of who must not wait.

Queries come first, then turns, then what the slow path asks for. Long requests are cut into slices,
those of the slow path into smaller ones, so that a query or a turn waits for one pass at most.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from ..memory.errors import Retryable
from ..memory.ports import Embedder, Vectors
from .metrics import Metrics, NoMetrics

SLICE = 256
"""Texts of one pass at most; a model cuts further by its own batch size."""
BEHIND_SLICE = 8
"""The same for the slow path, whose texts are longer, and for which turns shall not wait."""
_SHORT = 8
_QUERIES, _TURNS, _BEHIND = range(3)


@dataclass(order=True, slots=True)
class _Piece:
    rank: tuple[int, int]
    texts: list[str] = field(compare=False)
    done: Future[Vectors] = field(compare=False)


class BatchingEmbedder:
    """An `Embedder` whose callers share passes. Thread-safe; one thread computes.

    Args:
        embedder: the model.
        slice_texts: texts of one pass at most.
        name: in metrics and the thread's name.
        metrics: where figures go.
        count_tokens: counts as the model's tokenizer does, while the model computes.
    """

    def __init__(
        self,
        embedder: Embedder,
        *,
        slice_texts: int = SLICE,
        name: str = "embedder",
        metrics: Metrics | None = None,
        count_tokens: Callable[[str], int] | None = None,
    ) -> None:
        if count_tokens is not None:
            self.count_tokens = count_tokens
        self._embedder = embedder
        self._slice = slice_texts
        self._replica = name
        self._metrics: Metrics = metrics or NoMetrics()
        self._waiting: list[_Piece] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self.passes = 0
        self._thread = threading.Thread(target=self._run, name=f"raygam-{name}", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        """The model's name."""
        return self._embedder.name

    @property
    def dimension(self) -> int:
        """The vectors' length."""
        return self._embedder.dimension

    def embed(self, texts: Sequence[str], *, behind: bool = False) -> Vectors:
        """Return unit vectors `(len(texts), dimension)`; waits for its turn.

        Args:
            texts: what to embed.
            behind: the slow path asks: whoever else asks comes first.

        Raises:
            Retryable: it was closed.
        """
        pieces = []
        rank = _BEHIND if behind else _TURNS if len(texts) > _SHORT else _QUERIES
        size = min(self._slice, BEHIND_SLICE) if behind else self._slice
        with self._changed:
            if self._closed:
                raise Retryable("the embedder replica is closed; ask another")
            for start in range(0, len(texts), size):
                part = list(texts[start : start + size])
                piece = _Piece((rank, next(self._numbers)), part, Future())
                heapq.heappush(self._waiting, piece)
                pieces.append(piece)
            self._changed.notify_all()
        found = [piece.done.result() for piece in pieces]
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if found else np.zeros((0, self.dimension), dtype=np.float32)

    def close(self) -> None:
        """End after the present pass; who waits gets `Retryable`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    for piece in self._waiting:
                        piece.done.set_exception(Retryable("the embedder replica was closed; ask another"))
                    return
                taken = [heapq.heappop(self._waiting)]
                count = len(taken[0].texts)
                alone = taken[0].rank[0] == _BEHIND  # a pass of the slow path stays short
                while self._waiting and not alone and count + len(self._waiting[0].texts) <= self._slice:
                    if self._waiting[0].rank[0] == _BEHIND:
                        break
                    taken.append(heapq.heappop(self._waiting))
                    count += len(taken[-1].texts)
            started = time.perf_counter()
            try:
                vectors = self._embedder.embed([text for piece in taken for text in piece.texts])
            except Exception as error:  # noqa: BLE001 - each caller gets it
                for piece in taken:
                    piece.done.set_exception(error)
                continue
            self.passes += 1
            self._metrics.observe("raygam_embed_texts", count, replica=self._replica)
            self._metrics.observe("raygam_embed_seconds", time.perf_counter() - started, replica=self._replica)
            start = 0
            for piece in taken:
                piece.done.set_result(vectors[start : start + len(piece.texts)])
                start += len(piece.texts)


class Behind:
    """A batching embedder as the slow path uses it: whoever else asks comes first. Thread-safe."""

    def __init__(self, embedder: BatchingEmbedder) -> None:
        self._embedder = embedder

    @property
    def name(self) -> str:
        """The model's name."""
        return self._embedder.name

    @property
    def dimension(self) -> int:
        """The vectors' length."""
        return self._embedder.dimension

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return unit vectors `(len(texts), dimension)`; waits until nobody else does."""
        return self._embedder.embed(texts, behind=True)
