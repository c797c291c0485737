"""What the endpoint does, without HTTP: queries, turns and readiness, by the shards that own the users.

One object lives in each ingress replica, in its event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..actors import async_calls
from ..actors.async_embedder import AsyncEmbedder
from ..actors.async_routes import AsyncRoutes
from ..actors.routes import Routes
from ..actors.spec import ClusterSpec
from ..memory import identity
from ..memory.errors import Rejected, Retryable
from ..memory.model import User
from ..memory.retrieval import MODES
from ..memory.times import parse_timestamp
from ..memory.writes import StateFacts
from ..pipeline.batches import TurnBatch, texts_to_embed, to_record_batch
from ..pipeline.intake import with_vectors
from ..pipeline.records import RecordLimits
from ..pipeline.shard import API_SOURCE, Receipt
from .incoming import checked_records

_READY_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether everything that a request needs answers.

    Attributes:
        partitions: their number.
        missing: what does not answer, in words; empty if everything does.
    """

    partitions: int
    missing: tuple[str, ...]


class MemoryService:
    """The engine's users, as the endpoint sees them. For one event loop.

    Args:
        facts: what the state was made with; says how users map to partitions.
        routes: finds shards.
        embedder: embeds queries and turns.
        limits: sizes above which a turn, or a query, is refused.
    """

    def __init__(self, facts: StateFacts, routes: AsyncRoutes, embedder: AsyncEmbedder, limits: RecordLimits) -> None:
        self._facts = facts
        self._routes = routes
        self._embedder = embedder
        self._limits = limits

    async def search(self, user: User, query: str, options: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Answer a query from the shard that owns the user; the document is `Reading.answer`'s.

        Raises:
            Rejected: the query or an option is wrong.
            Stale: `min_position` is not reached.
            Retryable: nobody answered in time.
        """
        deadline = time.monotonic() + seconds
        self._check_query(query, options)
        vector = (await self._embedder.embed([query], seconds))[0]
        partition = self._partition_of(user)
        answer: dict[str, Any] = await self._routes.call(
            partition,
            lambda shard: shard.search.remote(partition, user, query, vector, options),
            deadline - time.monotonic(),
        )
        return answer

    async def add(self, user: User, turns: Sequence[Any], seconds: float) -> Receipt:
        """Store turns and end records of one user, in order; durable and searchable on return.

        All or nothing is accepted for storing. A repeat changes nothing: its turns are counted as duplicates.

        Raises:
            Rejected: turns break a rule; the message names each by its place.
            Retryable: nobody answered in time; the turns may be stored all the same.
        """
        deadline = time.monotonic() + seconds
        records = checked_records(user, turns, self._limits)
        partition = self._partition_of(user)
        plain = TurnBatch(partition, API_SOURCE, None, to_record_batch(list(enumerate(records))))
        texts = texts_to_embed(plain.records)
        vectors = await self._embedder.embed([text for text in texts if text], seconds)
        batch = with_vectors([plain], [texts], vectors)[0]
        receipt: Receipt = await self._routes.call(
            partition, lambda shard: shard.ingest.remote(batch), deadline - time.monotonic()
        )
        return receipt

    async def readiness(self) -> Readiness:
        """Ask for what every request needs: a shard for each partition, and an embedder."""
        self._routes.forget()
        await self._routes.refresh(_READY_SECONDS)
        found = await asyncio.gather(self._without_shard(), self._embedder_trouble())
        return Readiness(self._facts.partitions, tuple(line for lines in found for line in lines))

    async def _without_shard(self) -> list[str]:
        shards: dict[Any, list[int]] = {}
        missing = []
        for partition in range(self._facts.partitions):
            try:
                shards.setdefault(await self._routes.shard(partition, _READY_SECONDS), []).append(partition)
            except Retryable as error:
                missing.append(str(error))
        for partitions, answer in zip(
            shards.values(),
            await asyncio.gather(
                *(async_calls.result(shard.process.remote(), _READY_SECONDS, "a shard") for shard in shards),
                return_exceptions=True,
            ),
            strict=True,
        ):
            if isinstance(answer, BaseException):
                missing.append(f"partitions {', '.join(map(str, partitions))}: {answer}")
        return missing

    async def _embedder_trouble(self) -> list[str]:
        try:
            await self._embedder.embed(["ready"], _READY_SECONDS)
        except Retryable as error:
            return [str(error)]
        return []

    def _partition_of(self, user: User) -> int:
        return identity.partition_of(identity.record_key(user), self._facts.partitions, self._facts.partitioner)

    def _check_query(self, query: str, options: Mapping[str, Any]) -> None:
        """Refuse before anything is embedded what the shard would refuse."""
        if not query.strip():
            raise Rejected("the query is blank; ask something")
        try:
            size = len(query.encode())
        except UnicodeEncodeError:
            raise Rejected("the query holds a lone surrogate, which is no text; send UTF-8") from None
        if size > self._limits.max_text_bytes:
            raise Rejected(
                f"the query has {size} bytes, the limit is {self._limits.max_text_bytes} (setting max_text_bytes)"
            )
        mode = options.get("mode", MODES[0])
        if mode not in MODES:
            raise Rejected(f"mode is {mode!r:.64}; it is one of {', '.join(MODES)}")
        as_of = options.get("as_of")
        if as_of is not None:
            try:
                parse_timestamp(as_of)
            except Rejected as error:
                raise Rejected(f"as_of: {error}") from None


def make_service(spec: ClusterSpec) -> MemoryService:
    """Build the service in the process that uses it, over the engine's actors."""
    # What replicas have under way together stays below what a shard serves at a time.
    routes = AsyncRoutes(Routes(spec.supervisor), calls_at_once=max(4, 32 // spec.settings.serve_replicas))
    embedder = AsyncEmbedder(spec.facts.dimension, routes)
    return MemoryService(spec.facts, routes, embedder, spec.settings.record_limits)
