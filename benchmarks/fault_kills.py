"""The faults of a fault run, one after another at random times, and how long each one cost."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass

import psutil

from benchmarks.fault_probes import Positions, Probes
from benchmarks.kafka_broker import KafkaBroker
from benchmarks.postgres_server import PostgresServer
from raygam.actors.cluster import Cluster
from raygam.actors.progress import Progress
from raygam.memory.errors import RaygamError, Retryable
from raygam.pipeline import runtime

DECK = ("shard", "worker", "embedder", "supervisor", "broker", "stopped", "zombie", "move")
"""Dealt in random order, again and again, so that every kind comes.

shard, worker, embedder, supervisor: SIGKILL. broker, database: SIGKILL, and started again after a pause. stopped: a shard
gets SIGSTOP until it is replaced. zombie: a shard gets SIGSTOP, its partitions are opened by somebody else, and it wakes.
move: a partition moves to another shard.
"""
AWAY = ("broker", "database")
LIMIT_SECONDS = 60.0
_SETTLE_SECONDS = 90.0


def dealt(chance: random.Random, *, database: bool) -> Iterator[str]:
    """Kinds of faults without end; among as many as there are cards every kind comes."""
    first = ["database"] if database else []  # what a run over a database is for comes also in a short one
    yield from first
    deck = [*DECK]
    while True:
        chance.shuffle(deck)
        yield from deck
        deck = [*DECK, *first]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault that has begun.

    Attributes:
        kind: one of `DECK`, or "database".
        place: whom it struck.
        concerned: the partitions that it stops.
        mend: what ends it, where it does not end by itself; blocks.
        over: whether what was struck is replaced.
    """

    kind: str
    place: str
    concerned: frozenset[int]
    mend: Callable[[], None]
    over: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Recovery:
    """What one fault cost.

    Attributes:
        kind: the fault's.
        place: whom it struck.
        seconds: per partition, from the fault until a turn that was sent after it is found; None if it never was.
        replaced_seconds: until what was struck was replaced; None if it never was.
        gap_seconds: the longest time without progress of a partition that was not concerned; None if all were.
        away_seconds: of a broker or a database, until it was there again: the pause, and its own start.
    """

    kind: str
    place: str
    seconds: dict[int, float | None]
    replaced_seconds: float | None
    gap_seconds: float | None
    away_seconds: float | None = None

    def __str__(self) -> str:
        known = [one for one in self.seconds.values() if one is not None]
        waits = [f"partition {at} does NOT answer" for at, one in self.seconds.items() if one is None]
        if self.replaced_seconds is None:
            waits.append("NOT replaced")
        told = waits or [f"all found after {max(known):.2f} s"]
        if self.away_seconds is not None:
            told.append(f"back itself after {self.away_seconds:.2f} s")
        if self.gap_seconds is not None:
            told.append(f"longest gap of the others {self.gap_seconds:.2f} s")
        return f"{self.kind} ({self.place}): {', '.join(told)}"


class Faults:
    """Strikes an engine, its broker and its database. Used by the thread that started the broker.

    Args:
        cluster: the engine.
        broker: its broker.
        database: its database; None if its state is a directory.
        chance: chooses whom, when and for how long.
        hold: holds off what a broker's death would spoil in the producers.
        max_lag: no fault begins while the engine is more records behind, else the next would measure this one's rest.
    """

    def __init__(
        self,
        cluster: Cluster,
        broker: KafkaBroker,
        database: PostgresServer | None,
        chance: random.Random,
        hold: Callable[[], AbstractContextManager[None]],
        max_lag: float,
    ) -> None:
        self._cluster = cluster
        self._broker = broker
        self._database = database
        self._chance = chance
        self._hold = hold
        self._max_lag = max_lag

    def settled(self, stopped: Callable[[], bool]) -> Progress | None:
        """Wait until every actor is there, every partition has a shard and the lag is small; None if that does not come.

        Raises:
            RaygamError: the engine has ended.
        """
        spec = self._cluster.spec
        count = spec.shards + spec.workers + spec.embedders
        deadline = time.monotonic() + _SETTLE_SECONDS
        while time.monotonic() < deadline and not stopped():
            with suppress(Retryable):
                progress: Progress = self._cluster.ask("progress", seconds=5)
                whole = progress.ready and len(progress.pids) == count and all(map(_lives, progress.pids.values()))
                if whole and progress.job is not None and progress.lag <= self._max_lag:
                    return progress
            time.sleep(0.05)
        return None

    def strike(self, kind: str, before: Progress) -> Fault:
        """Begin a fault of this kind.

        Args:
            kind: one of `DECK`, or "database".
            before: the progress of the settled engine.
        """
        if kind == "broker":
            self._broker.kill()
            pause = self._chance.uniform(0, 3)
            return Fault(
                kind, f"started again after {pause:.1f} s", _all(before), lambda: self._restart_broker(pause), _always
            )
        if kind == "database":
            assert self._database is not None
            self._database.kill()
            pause = self._chance.uniform(0, 3)
            return Fault(
                kind, f"started again after {pause:.1f} s", _all(before), lambda: self._restart_database(pause), _always
            )
        if kind == "supervisor":
            pid = self._cluster.ask("process").pid
            os.kill(pid, signal.SIGKILL)
            return Fault(kind, kind, frozenset(), _nothing, lambda: self._cluster.ask("process", seconds=5).pid != pid)
        if kind == "move":
            return self._move(before)
        return self._strike_actor(kind, before)

    def recovery(self, kind: str, before: Progress, probes: Probes, positions: Positions) -> Recovery:
        """Strike, and wait until all partitions take turns again and what was struck is replaced."""
        with self._hold() if kind == "broker" else nullcontext():
            began = time.monotonic()
            fault = self.strike(kind, before)
            sent = probes.send()
            fault.mend()
        away = time.monotonic() - began if kind in AWAY else None
        deadline = time.monotonic() + LIMIT_SECONDS
        seconds = probes.found(sent, began, deadline)
        others = set(range(before.partitions)) - fault.concerned
        gap = positions.longest_gap(others, began, time.monotonic())
        return Recovery(kind, fault.place, seconds, self._replaced(fault, began, deadline), gap, away)

    def _replaced(self, fault: Fault, began: float, deadline: float) -> float | None:
        while time.monotonic() < deadline:
            with suppress(Retryable):
                if fault.over():
                    return time.monotonic() - began
            time.sleep(0.05)
        return None

    def _strike_actor(self, kind: str, before: Progress) -> Fault:
        actor = "shard" if kind in ("stopped", "zombie") else kind
        place = self._chance.choice(sorted(name for name in before.pids if name.startswith(f"{actor}-")))
        pid = before.pids[place]
        mine = frozenset(at for at, owner in before.owned.items() if owner == place)
        os.kill(pid, signal.SIGKILL if kind == actor else signal.SIGSTOP)
        if kind == "zombie":
            return Fault(kind, place, mine, lambda: self._fence_and_wake(pid, sorted(mine)), _always)

        def over() -> bool:
            progress: Progress = self._cluster.ask("progress", seconds=5)
            return progress.pids.get(place, pid) != pid

        return Fault(kind, place, _all(before) if actor == "embedder" else mine, _nothing, over)

    def _fence_and_wake(self, pid: int, partitions: list[int]) -> None:
        """Open partitions of a stopped shard as another shard would, and let it go on.

        Inside a transaction it holds a lock, and the opening waits until it is awake.
        """
        spec = self._cluster.spec
        fenced = self._chance.sample(partitions, self._chance.randint(1, len(partitions))) if partitions else []

        def fence() -> None:
            with suppress(Retryable):  # a store that does not answer in time has fenced nobody
                store = runtime.join_store(spec.state, spec.facts, spec.lock_name)
                try:
                    for partition in fenced:
                        store.writer(partition, "fault run").close()
                finally:
                    store.close()

        opening = threading.Thread(target=fence)
        opening.start()
        opening.join(self._chance.uniform(0.2, 0.6 * spec.settings.ray_stuck_seconds))
        with suppress(ProcessLookupError):  # it was taken for stuck, and replaced
            os.kill(pid, signal.SIGCONT)
        opening.join()

    def _move(self, before: Progress) -> Fault:
        partition = self._chance.randrange(before.partitions)
        owner = int(before.owned[partition].rpartition("-")[2])
        target = self._chance.choice([at for at in range(self._cluster.spec.shards) if at != owner] or [owner])

        def move() -> None:
            self._cluster.move(partition, target)

        return Fault("move", f"partition {partition} to shard-{target}", frozenset({partition}), move, _always)

    def _restart_broker(self, pause: float) -> None:
        time.sleep(pause)
        self._broker.start()

    def _restart_database(self, pause: float) -> None:
        assert self._database is not None
        time.sleep(pause)
        self._database.start()

    def kill_while_draining(self) -> None:
        """SIGKILL of a shard or a worker at any moment; the engine may be over by then."""
        with suppress(RaygamError, ProcessLookupError):
            pids = self._cluster.ask("progress", seconds=5).pids
            os.kill(pids[self._chance.choice(sorted(pids))], signal.SIGKILL)


def _lives(pid: int) -> bool:
    """Whether there is such a process, that has not ended."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _all(before: Progress) -> frozenset[int]:
    return frozenset(range(before.partitions))


def _nothing() -> None:
    return None


def _always() -> bool:
    return True
