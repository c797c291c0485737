"""Who has which partition: what callers of shards hold, and ask for again when it was wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..memory.chat import ModelCall
from ..memory.errors import LeaseLost, NotOwner, Retryable
from ..memory.proposal import Proposal
from ..memory.writes import LeasedTask
from . import calls

Result = TypeVar("Result")
_ASK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class RouteTable:
    """The supervisor's word: full names of actors.

    Attributes:
        shards: by partition.
        embedders: that live.
        chats: replicas of the chat model that answer.
    """

    shards: dict[int, str] = field(default_factory=dict)
    embedders: tuple[str, ...] = ()
    chats: tuple[str, ...] = ()


class Routes:
    """A cached `RouteTable`. Thread-safe.

    Args:
        supervisor: the supervisor's full name.
    """

    def __init__(self, supervisor: str) -> None:
        self._supervisor = supervisor
        self._table = RouteTable()
        self._handles: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._asked = 0.0

    def refresh(self) -> None:
        """Ask the supervisor, if nobody did just now; on failure what is known stays."""
        with self._lock:
            if time.monotonic() - self._asked < 0.05:
                return
            try:
                table = calls.result(calls.find(self._supervisor).routes.remote(), _ASK_SECONDS, "asking for routes")
            except Retryable:
                return
            finally:
                self._asked = time.monotonic()
            self._table = table
            names = {*table.shards.values(), *table.embedders, *table.chats}
            self._handles = {name: handle for name, handle in self._handles.items() if name in names}

    def shard(self, partition: int) -> Any:
        """The handle of the shard that has a partition.

        Raises:
            NotOwner: nobody has it, as far as is known.
        """
        name = self._table.shards.get(partition)
        if name is None:
            self.refresh()
            name = self._table.shards.get(partition)
        if name is None:
            raise NotOwner(f"nobody has partition {partition} at the moment; it is being moved or opened")
        try:
            return self._handle(name)
        except calls.Dead:
            raise NotOwner(f"the shard of partition {partition} has ended; another will open it") from None

    def shards(self) -> dict[str, Any]:
        """The handles of all shards, by full name."""
        self.refresh()
        return self._living(sorted(set(self._table.shards.values())))

    def embedders(self) -> list[Any]:
        """The handles of the embedder replicas."""
        self.refresh()
        return list(self._living(self._table.embedders).values())

    def chats(self) -> dict[str, Any]:
        """The handles of the chat model's replicas that answer, by full name."""
        self.refresh()
        return self._living(self._table.chats)

    def call(self, partition: int, ask: Callable[[Any], Any], seconds: float) -> Any:
        """Call a partition's shard; find it again while it moves, up to `seconds`.

        What is called must bear repeating: a call that failed may have been done.

        Raises:
            NotOwner, Unreachable: nobody answered for the partition in time.
        """
        deadline = time.monotonic() + seconds
        pause = 0.02
        while True:
            left = deadline - time.monotonic()
            try:
                return calls.result(ask(self.shard(partition)), max(left, 0.1), f"the shard of partition {partition}")
            except (NotOwner, calls.Unreachable):
                if time.monotonic() + pause >= deadline:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 0.5)
            self.refresh()

    def _living(self, names: Sequence[str]) -> dict[str, Any]:
        found = {}
        for name in names:
            try:
                found[name] = self._handle(name)
            except calls.Dead:
                continue
        return found

    def _handle(self, name: str) -> Any:
        handle = self._handles.get(name)
        if handle is None:
            handle = self._handles[name] = calls.find(name)
        return handle


class RemotePartition:
    """A partition in a shard actor, as workers see it (`TaskSource`)."""

    def __init__(self, handle: Any, partition: int, holder: str) -> None:
        self._handle = handle
        self.partition = partition
        self._holder = holder

    def claim(self, limit: int, barred: Container[str] = ()) -> list[LeasedTask]:
        """Lease tasks."""
        found: list[LeasedTask] = calls.result(
            self._handle.claim.remote(self.partition, limit, self._holder, barred), 60, "claim"
        )
        return found

    def submit(self, proposals: Sequence[Proposal]) -> list[LeaseLost | None]:
        """Apply proposals. Never repeated: a call that failed may have been done, and the task tells."""
        done: list[LeaseLost | None] = calls.result(
            self._handle.submit.remote(self.partition, list(proposals)), 120, "submit"
        )
        return done

    def fail(self, task_id: str, token: str, error: str, *, parks: bool = False) -> None:
        """Give a task back."""
        calls.result(self._handle.fail.remote(self.partition, task_id, token, error, parks), 60, "fail")

    def release(self, task_id: str, token: str, reason: str) -> None:
        """Give a task back that nobody could do now."""
        calls.result(self._handle.release.remote(self.partition, task_id, token, reason), 60, "release")

    def remember(self, task_id: str, token: str, asked: Sequence[ModelCall]) -> None:
        """Record calls of a chat model. Never repeated: a call that failed may have been done."""
        calls.result(self._handle.remember.remote(self.partition, task_id, token, list(asked)), 60, "remember")
