"""Queries, beside the writer: views, vectors and answers of recently asked users.

Reads never wait for a writer; each has the store's snapshot of the moment. What is
held in memory is a copy of rows, refreshed before every answer.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from ..memory import identity
from ..memory.errors import Rejected, Stale
from ..memory.linearise import Budget, linearise
from ..memory.model import User
from ..memory.ports import Embedder, Reader, Store, VectorIndex, Vectors
from ..memory.presentation import as_document
from ..memory.retrieval import MODES, RetrievalResult, retrieve
from ..memory.text import count_tokens
from ..memory.times import parse_timestamp
from ..memory.view import MemoryView
from .projector import Projector
from .summary import user_document


class Reading:
    """Answers queries from a store. Thread-safe; one answer at a time is computed.

    Args:
        store: the opened store; closed with the reading.
        embedder: embeds the queries; the one that the state was made with.
        index: holds the vectors of recently asked users.
        max_users: users whose graphs are held in memory.
        context_tokens: default budget of a linearised context.
    """

    def __init__(
        self, store: Store, embedder: Embedder, index: VectorIndex, *, max_users: int, context_tokens: int
    ) -> None:
        self._store = store
        self._embedder = embedder
        self._index = index
        self._max_users = max_users
        self._context_tokens = context_tokens
        self._lock = threading.Lock()
        self._views: OrderedDict[User, MemoryView] = OrderedDict()
        self._readers: list[Reader] = [store.reader(at) for at in range(store.facts.partitions)]
        self._projectors = [Projector(index, reader) for reader in self._readers]

    def search(
        self,
        user: User,
        query: str,
        *,
        k: int = 10,
        mode: str = "gam",
        min_position: int | None = None,
        as_of: str | None = None,
        vector: Vectors | None = None,
    ) -> RetrievalResult:
        """Return the user's memories for a query, best first.

        Args:
            user: the owner.
            query: what is asked.
            k: memories wanted.
            mode: one of `MODES`.
            min_position: see at least this position of the user's partition.
            as_of: ISO 8601; only what was said by then is seen.
            vector: the query's embedding `(dimension,)` where the caller has it already.

        Raises:
            Rejected: mode, `k`, the query or `as_of` is wrong.
            Stale: `min_position` is not reached.
        """
        if mode not in MODES:
            raise Rejected(f"mode is {mode!r}; it is one of {', '.join(MODES)}")
        if k < 1:
            raise Rejected(f"k is {k}; ask for at least one memory")
        if not query.strip():
            raise Rejected("the query is blank; ask something")
        as_of_us = parse_timestamp(as_of)[0] if as_of is not None else None
        if vector is None:
            vector = self._embedder.embed([query])[0]  # before the lock: others read meanwhile
        partition = self._partition(user)
        with self._lock:
            view = self._view(user)
            with self._readers[partition].snapshot():  # graphs and vectors of one moment: topics may be replaced
                view.refresh(self._readers[partition])
                self._check_position(partition, user, view, min_position)
                self._projectors[partition].catch_up(user)
            result = retrieve(view, query, vector, self._index, k=k, mode=mode, as_of_us=as_of_us)
            self._forget()
        return result

    def answer(self, user: User, query: str, **options: Any) -> dict[str, Any]:
        """Search, as one JSON-able document with the context for a prompt."""
        result = self.search(user, query, **options)
        head = {"tenant": user.tenant, "user_id": user.user_id, "query": query, "known_user": self.knows(user)}
        return head | as_document(result, self.context(result))

    def knows(self, user: User) -> bool:
        """Whether anything is stored of the user."""
        return self._readers[self._partition(user)].version(user) is not None

    @property
    def budget(self) -> Budget:
        """What a linearised context may have by default, counted by the embedder's tokenizer."""
        return Budget(self._context_tokens, getattr(self._embedder, "count_tokens", count_tokens))

    def context(self, result: RetrievalResult, max_tokens: int | None = None) -> str:
        """Return the memories as text for a prompt, within a budget of the embedder's tokens."""
        budget = self.budget
        return linearise(result.memories, budget.max_tokens if max_tokens is None else max_tokens, budget.count)

    def show(self, user: User) -> dict[str, Any]:
        """Everything the graphs hold of one user.

        Raises:
            Rejected: the user was never seen.
        """
        return user_document(self._readers[self._partition(user)], user)

    def close(self) -> None:
        """Close the readers and the store."""
        for reader in self._readers:
            reader.close()
        self._store.close()

    def _partition(self, user: User) -> int:
        facts = self._store.facts
        return identity.partition_of(identity.record_key(user), facts.partitions, facts.partitioner)

    def _view(self, user: User) -> MemoryView:
        view = self._views.get(user)
        if view is None:
            view = self._views[user] = MemoryView(user)
        self._views.move_to_end(user)
        return view

    def _check_position(self, partition: int, user: User, view: MemoryView, wanted: int | None) -> None:
        if wanted is None:
            return
        seen = view.version[0] if view.version else 0
        if seen >= wanted:
            return
        reached = self._readers[partition].position()
        if reached < wanted:
            raise Stale(
                f"partition {partition} is read up to position {reached}, position {wanted} was asked for; "
                "ask again in a moment",
                reached,
            )

    def _forget(self) -> None:
        while len(self._views) > self._max_users:
            user, _ = self._views.popitem(last=False)
            self._index.evict(user)
