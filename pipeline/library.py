"""`Memory`: the engine as a library."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..memory.errors import Rejected
from ..memory.model import DEFAULT_TENANT, User
from ..memory.retrieval import RetrievalResult
from . import runtime
from .answering import Answer, answer
from .asking import Asker
from .chat_config import PORTS
from .config import Settings, read_settings
from .engine import Engine
from .reading import Reading
from .records import BadRecord, EndOfSession, Turn, check_user, from_mapping


@dataclass(frozen=True, slots=True)
class AddResult:
    """What became of the turns given to `Memory.add`: durable and searchable.

    Attributes:
        accepted: new turns.
        duplicates: turns whose `message_id` the user had already.
        positions: per partition, the position that a search may ask to see (`min_position`).
    """

    accepted: int
    duplicates: int
    positions: Mapping[int, int]


class Memory:
    """A long-term memory in a directory or a PostgreSQL database. Thread-safe; one writer per state.

    Example:
        >>> with Memory("state") as memory:
        ...     memory.add([{"message_id": "m1", "user_id": "ana", "session_id": "s1", "speaker": "Ana",
        ...                  "role": "user", "text": "I moved to Porto.", "timestamp": "2025-03-04T09:00:00Z"}])
        ...     memory.search("ana", "Where does Ana live?").memories[0].event.text
        'I moved to Porto.'

    Args:
        state: a directory, or `"postgresql://USER@HOST:PORT/DATABASE"`; the state there is made if it is missing.
        settings: fields of `Settings` by name (`embedder="stub"`, `workers=0`, …).

    Raises:
        StateLocked: another engine writes to the state.
        Misconfigured: settings contradict the state or each other, or the database refuses.
        Retryable: the database does not answer. Calls raise it too while it is away, and go on when it is back.
    """

    def __init__(self, state: str | Path, **settings: Any) -> None:
        self._settings: Settings = read_settings(**settings)
        place = runtime.locate(state)
        self._asker: Asker | None = None
        self._asker_lock = threading.Lock()
        self._engine: Engine = runtime.open_engine(place, self._settings)
        try:
            self._reading: Reading = runtime.reading_of(
                runtime.open_store(place), self._engine.models.embedder, self._settings
            )
        except BaseException:
            self._engine.close()
            raise

    def add(self, turns: Iterable[Mapping[str, Any]]) -> AddResult:
        """Store turns (or end records), in order; they are durable and searchable on return.

        All or nothing is accepted for storing: one bad turn refuses the call.

        Raises:
            Rejected: turns break a rule; the message names each by its place in `turns`.
        """
        if isinstance(turns, Mapping):
            raise Rejected("nothing was stored; add takes a list of turns: add([turn])")
        records: list[Turn | EndOfSession] = []
        wrong: list[str] = []
        for at, turn in enumerate(turns):
            try:
                records.append(
                    from_mapping(dict(turn) if isinstance(turn, Mapping) else turn, self._settings.record_limits)
                )
            except BadRecord as bad:
                wrong.append(f"turn {at}: {bad}")
        if wrong:
            raise Rejected("nothing was stored; " + "; ".join(wrong[:20]) + ("; …" if len(wrong) > 20 else ""))
        receipts = self._engine.add(records)
        return AddResult(
            sum(receipt.accepted for receipt in receipts),
            sum(receipt.duplicates for receipt in receipts),
            {receipt.partition: receipt.position for receipt in receipts},
        )

    def flush(self, user: str | User | None = None, *, tenant: str = DEFAULT_TENANT) -> None:
        """Close all live buffers (of one user, or of everyone) and wait until they are consolidated."""
        self._engine.flush(None if user is None else [as_user(user, tenant)])
        self._engine.drain()

    def search(
        self,
        user: str | User,
        query: str,
        k: int = 10,
        mode: str = "gam",
        *,
        tenant: str = DEFAULT_TENANT,
        min_position: int | None = None,
        as_of: str | None = None,
    ) -> RetrievalResult:
        """Return the user's memories for a query, best first, each with its explanation.

        Args:
            user: the owner; a string is a user of `tenant`.
            query: what is asked.
            k: memories wanted.
            mode: "gam" or "flat".
            tenant: the tenant of a user given by its id.
            min_position: see at least this position of the user's partition (`AddResult.positions`).
            as_of: ISO 8601; only what was said by then is seen.

        Raises:
            Rejected: an argument is wrong.
            Stale: the position is not reached.
        """
        return self._reading.search(
            as_user(user, tenant), query, k=k, mode=mode, min_position=min_position, as_of=as_of
        )

    def answer(
        self,
        user: str | User,
        question: str,
        k: int = 10,
        mode: str = "gam",
        *,
        tenant: str = DEFAULT_TENANT,
        min_position: int | None = None,
        as_of: str | None = None,
        seconds: float | None = None,
    ) -> Answer:
        """Have a question answered by the chat model (`chat_url`, `chat_model`) from what a search for it finds.

        Args:
            user: the owner; a string is a user of `tenant`.
            question: what is asked.
            k: memories to answer from.
            mode: of the search.
            tenant: the tenant of a user given by its id.
            min_position: see at least this position of the user's partition (`AddResult.positions`).
            as_of: ISO 8601; only what was said by then is seen, and it is the answer's present.
            seconds: how long the model may take, repeats included; default: `chat_timeout_seconds`.

        Raises:
            Rejected: an argument is wrong, or too long for the model.
            Misconfigured: no chat model is named, it refuses these settings, or it is off for the tenant.
            ModelAway: the model does not answer in time; memories can be had by `search`.
            BadAnswer: none of its answers can be used.
            Stale: the position is not reached.
        """
        return answer(
            self._reading,
            self._answering(),
            as_user(user, tenant),
            question,
            seconds=self._settings.chat_timeout_seconds if seconds is None else seconds,
            k=k,
            mode=mode,
            min_position=min_position,
            as_of=as_of,
            off_tenants=self._settings.chat_off_tenants,
        )

    def show(self, user: str | User, *, tenant: str = DEFAULT_TENANT) -> dict[str, Any]:
        """Return the user's topics, relations, episodes with their cuts, and live buffers.

        Raises:
            Rejected: the user was never seen.
        """
        return self._reading.show(as_user(user, tenant))

    def context(self, result: RetrievalResult, max_tokens: int | None = None) -> str:
        """Return memories as text for a prompt, within a token budget (default: `context_tokens`)."""
        return self._reading.context(result, max_tokens)

    def close(self) -> None:
        """Stop the workers after their present task and release the state. Open tasks stay."""
        with self._asker_lock:
            if self._asker is not None:
                self._asker.close()
        self._reading.close()
        self._engine.close()

    def _answering(self) -> Asker:
        """Who asks the model that answers: its workers' callers, if they ask the same: the cap on calls is one."""
        from . import chat_runtime  # the client of an endpoint takes a while to load

        same = [port for port in PORTS if self._settings.model_for(port) == self._settings.chat_model]
        shared = next(filter(None, map(self._engine.asker, same)), None)
        if shared is not None:
            return shared
        with self._asker_lock:
            if self._asker is None:
                self._asker = chat_runtime.asker(chat_runtime.open_endpoint(self._settings), self._settings)
            return self._asker

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def as_user(user: str | User, tenant: str) -> User:
    """Return a checked `User`.

    Raises:
        Rejected: an id is empty or too long.
    """
    return check_user(user.tenant, user.user_id) if isinstance(user, User) else check_user(tenant, user)
