"""An engine that runs, as an operator reaches it from another process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..memory.errors import Misconfigured
from ..memory.ports import ChatModel
from ..memory.writes import TaskChange
from ..pipeline.config import Settings
from ..pipeline.location import AnyState, located
from . import calls
from .cluster import connect, remote_chat
from .progress import Progress
from .routes import Routes
from .spec import NAMESPACE, engine_prefix


class RunningEngine:
    """Commands for a running engine; shares nothing with it, not even the state's lock.

    Args:
        supervisor: its supervisor.
        routes: to its shards.
    """

    def __init__(self, supervisor: Any, routes: Routes) -> None:
        self._supervisor = supervisor
        self._routes = routes

    def progress(self) -> Progress:
        """How the engine is."""
        found: Progress = calls.result(self._supervisor.progress.remote(), 30, "supervisor.progress")
        return found

    def settings(self) -> Settings:
        """What it was started with."""
        found: Settings = calls.result(self._supervisor.settings.remote(), 30, "supervisor.settings")
        return found

    def chat(self, settings: Settings) -> ChatModel | None:
        """The replicas of its chat model, whether they answer now or not; None if it has none.

        Args:
            settings: its own.

        Raises:
            Misconfigured: the model's tokenizer is not at hand on this machine.
        """
        return None if settings.vllm_model is None else remote_chat(settings, self._routes)

    def move(self, partition: int, shard: int) -> float:
        """Move a partition; returns the seconds that it answered nobody.

        Raises:
            Rejected: there is no such partition or shard.
        """
        seconds: float = calls.result(self._supervisor.move.remote(partition, shard), 120, "supervisor.move")
        return seconds

    def change_tasks(self, partition: int, change: TaskChange) -> list[str]:
        """Park tasks of a partition, or open parked ones again; return the ids of those that stand so now.

        Raises:
            Retryable: the partition's shard does not answer; it may be done.
        """
        ids: list[str] = self._routes.call(partition, lambda shard: shard.change_tasks.remote(partition, change), 60)
        return ids

    def stop(self) -> None:
        """End it at a batch's edge; what is acknowledged is durable, open tasks stay."""
        import ray

        calls.result(self._supervisor.close.remote(), 120, "supervisor.close")
        ray.kill(self._supervisor, no_restart=True)


@contextmanager
def attached(state: AnyState, address: str) -> Iterator[RunningEngine]:
    """Reach the engine over a state on a running Ray cluster.

    Raises:
        Misconfigured: there is no such cluster, or no such engine on it.
    """
    import ray

    connect(address)
    try:
        place = located(state).absolute()
        name = f"{engine_prefix(place)}supervisor"
        try:
            supervisor = ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:
            raise Misconfigured(
                f"no engine over {place} runs on the Ray cluster at {address}; `raygam run --ray` or "
                "`raygam serve` starts one"
            ) from None
        yield RunningEngine(supervisor, Routes(name))
    finally:
        ray.shutdown()
