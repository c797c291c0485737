"""Exact vector search with FAISS: one block of rows per user and layer.

A query is compared with its own user's block and nothing else, so another user's rows
can neither leak nor move a score. The blocks are derived from the vector log and
disposable: whoever applies the log asks `applied_seq` how far a block has come.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import RLock

import faiss
import numpy as np
from numpy.typing import NDArray

from ..memory.errors import Misconfigured
from ..memory.model import Layer, User
from ..memory.writes import VectorEntries

Vectors = NDArray[np.float32]

_BLAS_THRESHOLD = 1536
_FIRST_ROWS = 64


class _Block:
    """Rows of one layer, growing by doubling; a removal moves the last row into the gap."""

    def __init__(self, dimension: int) -> None:
        self.rows: Vectors = np.empty((0, dimension), dtype=np.float32)
        self.refs: list[str] = []
        self.row_of: dict[str, int] = {}

    def put(self, ref: str, vector: Vectors) -> None:
        row = self.row_of.get(ref)
        if row is None:
            row = len(self.refs)
            if row == len(self.rows):
                grown = np.empty((max(_FIRST_ROWS, 2 * row), self.rows.shape[1]), dtype=np.float32)
                grown[:row] = self.rows
                self.rows = grown
            self.refs.append(ref)
            self.row_of[ref] = row
        self.rows[row] = vector

    def remove(self, ref: str) -> None:
        row = self.row_of.pop(ref, None)
        if row is None:
            return
        last = self.refs.pop()
        if row < len(self.refs):
            self.rows[row] = self.rows[len(self.refs)]
            self.refs[row] = last
            self.row_of[last] = row


class _UserBlocks:
    """A user's layers, and how much of the vector log they hold."""

    def __init__(self, dimension: int) -> None:
        self.applied_seq = 0
        self.layers = {layer: _Block(dimension) for layer in Layer}

    @property
    def bytes(self) -> int:
        return sum(block.rows.nbytes for block in self.layers.values())


class FaissFlatIndex:
    """`VectorIndex` over flat blocks in memory. Thread-safe.

    The least recently used users are dropped above `max_bytes`; the one in hand always
    stays. A dropped user's `applied_seq` is None, and its log is to be applied anew.
    """

    def __init__(self, dimension: int, max_bytes: int = 1 << 30) -> None:
        """Make an empty index.

        Args:
            dimension: of every vector.
            max_bytes: of all blocks together.
        """
        # FAISS multiplies through BLAS only above this many queries x dimensions (default 128,000).
        faiss.cvar.distance_compute_blas_threshold = _BLAS_THRESHOLD
        self._dimension = dimension
        self._max_bytes = max_bytes
        self._users: OrderedDict[User, _UserBlocks] = OrderedDict()
        self._bytes = 0
        self._lock = RLock()

    @property
    def resident_bytes(self) -> int:
        """Bytes of all blocks in memory."""
        return self._bytes

    def applied_seq(self, user: User) -> int | None:
        with self._lock:
            blocks = self._users.get(user)
            return None if blocks is None else blocks.applied_seq

    def apply(self, user: User, entries: VectorEntries) -> None:
        """Carry log entries, in order, into the user's block; those already held are skipped.

        Raises:
            Misconfigured: the vectors have another dimension than the index.
        """
        if len(entries.refs) and entries.vectors.shape[1] != self._dimension:
            raise Misconfigured(
                f"vectors of {user} have {entries.vectors.shape[1]} dimensions, the index has {self._dimension}; "
                "open the state with the embedder that it was made with"
            )
        with self._lock:
            blocks = self._users.get(user)
            if blocks is None:
                blocks = self._users[user] = _UserBlocks(self._dimension)
            before = blocks.bytes
            for at, seq in enumerate(entries.seqs.tolist()):
                if seq <= blocks.applied_seq:
                    continue
                block = blocks.layers[Layer(entries.layers[at])]
                if entries.removed[at]:
                    block.remove(entries.refs[at])
                else:
                    block.put(entries.refs[at], entries.vectors[at])
                blocks.applied_seq = seq
            self._bytes += blocks.bytes - before
            self._users.move_to_end(user)
            while self._bytes > self._max_bytes and len(self._users) > 1:
                _, dropped = self._users.popitem(last=False)
                self._bytes -= dropped.bytes

    def search(self, user: User, layer: Layer, query: Vectors, k: int) -> tuple[list[str], Vectors]:
        """Best `k` references, best first; fewer where the layer holds fewer."""
        with self._lock:
            block = self._block(user, layer)
            if block is None or not block.refs or k < 1:
                return [], np.empty(0, dtype=np.float32)
            count = len(block.refs)
            scores, rows = faiss.knn(
                np.ascontiguousarray(query, dtype=np.float32).reshape(1, -1),
                block.rows[:count],
                min(k, count),
                metric=faiss.METRIC_INNER_PRODUCT,
            )
            return [block.refs[row] for row in rows[0].tolist()], scores[0]

    def similarities(self, user: User, layer: Layer, query: Vectors, refs: Sequence[str]) -> Vectors:
        """Inner products with the named references, in their order; 0 for one that is not held."""
        with self._lock:
            found = np.zeros(len(refs), dtype=np.float32)
            block = self._block(user, layer)
            if block is None or not refs:
                return found
            rows = np.fromiter((block.row_of.get(ref, -1) for ref in refs), dtype=np.int64, count=len(refs))
            held = rows >= 0
            found[held] = block.rows[rows[held]] @ np.asarray(query, dtype=np.float32)
            return found

    def vectors(self, user: User, layer: Layer, refs: Sequence[str]) -> Vectors:
        """Copies of the stored vectors `(len(refs), dimension)`.

        Raises:
            KeyError: a reference is not held.
        """
        with self._lock:
            block = self._block(user, layer)
            rows = [] if block is None else [block.row_of[ref] for ref in refs]
            if block is None or not rows:
                if refs:
                    raise KeyError(refs[0])
                return np.empty((0, self._dimension), dtype=np.float32)
            return block.rows[rows]

    def evict(self, user: User) -> None:
        with self._lock:
            dropped = self._users.pop(user, None)
            if dropped is not None:
                self._bytes -= dropped.bytes

    def _block(self, user: User, layer: Layer) -> _Block | None:
        blocks = self._users.get(user)
        if blocks is None:
            return None
        self._users.move_to_end(user)
        return blocks.layers[layer]
