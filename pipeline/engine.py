"""The engine in one process: shards, worker threads, and waiting for both.

Written once for the library and the command line; the adapters come from
`runtime.py`.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence

from ..memory.errors import ModelAway, RaygamError, Retryable
from ..memory.model import User
from ..memory.ports import Reader, Store
from ..memory.writes import SourcePosition
from . import backoff
from .asking import Asker
from .batches import TurnBatch
from .intake import Intake
from .records import EndOfSession, Turn
from .shard import API_SOURCE, Receipt, Shard, ShardSettings
from .whereabouts import this_process
from .worker import Models, SlowPath, Worker

_REST_SECONDS = 0.5
_WAITING = "the tasks over them wait, and whoever opens the state next goes on with them"


class Engine:
    """Owns every partition of a store for writing.

    Args:
        store: the opened store.
        models: what the workers think with.
        intake: turns records into batches.
        settings: the shards' settings.
        clock_us: the engine's clock, for leases.
        workers: threads of the slow path; with 0, `drain` works in the caller's thread.
        worker_group: tasks applied together.
        max_open_tasks: `apply` waits while more tasks are open (back-pressure).
        max_waiting_turns: and while more turns wait, in memory, for open tasks of their users.
        new_worker: makes each thread's worker; default: one that thinks with `models`, `worker_group` tasks at a time.
    """

    def __init__(
        self,
        store: Store,
        models: Models,
        intake: Intake,
        settings: ShardSettings,
        clock_us: Callable[[], int],
        *,
        workers: int = 1,
        worker_group: int = 32,
        max_open_tasks: int = 2000,
        max_waiting_turns: int = 100_000,
        new_worker: Callable[[], SlowPath] | None = None,
    ) -> None:
        self.intake = intake
        self.models = models
        self._store = store
        self._max_open_tasks = max_open_tasks
        self._max_waiting_turns = max_waiting_turns
        self._changed = threading.Condition()
        self._signals = 0
        self._stopping = False
        self._failure: Exception | None = None
        self._obstacle: Retryable | None = None  # what the workers keep running into
        self._setbacks: dict[SlowPath, int] = {}
        partitions = range(store.facts.partitions)
        self._shards = [Shard(store.writer(at, this_process()), settings, clock_us, self._signal) for at in partitions]
        self._readers: list[Reader] = [store.reader(at) for at in partitions]
        new_worker = new_worker or (lambda: Worker(models, worker_group))
        self._workers = [new_worker() for _ in range(workers or 1)]  # the first works in the caller's thread if none is
        self._inline_lock = threading.Lock()
        self._rounds = itertools.count()
        self._threads = [
            threading.Thread(target=self._work, args=(self._workers[at],), name=f"raygam-worker-{at}", daemon=True)
            for at in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def shards(self) -> Sequence[Shard]:
        """The shards, by partition."""
        return self._shards

    @property
    def readers(self) -> Sequence[Reader]:
        """Readers of the partitions, beside the shards."""
        return self._readers

    def add(self, records: Sequence[Turn | EndOfSession]) -> list[Receipt]:
        """Apply checked records that come by API; durable and searchable on return."""
        return self.apply(self.intake.checked_batches(API_SOURCE, records))

    def apply(self, ready: Iterable[TurnBatch]) -> list[Receipt]:
        """Give batches to their shards, one transaction each."""
        self._wait_for_workers()
        return [self._shards[batch.partition].ingest(batch) for batch in ready]

    def settle_position(self, source: str, position: SourcePosition) -> None:
        """Record in every partition that a source is taken up to `position`."""
        for shard in self._shards:
            stored = shard.positions().get(source)
            if stored is None or stored.next_offset < position.next_offset:
                shard.ingest(self.intake.empty_batch(shard.partition, source, position))

    def positions(self) -> list[dict[str, SourcePosition]]:
        """Every source's position, per partition."""
        return [shard.positions() for shard in self._shards]

    def flush(self, users: Sequence[User] | None = None) -> int:
        """Record a flush of these users, or of all; return how many had something live."""
        with self._changed:
            self._refuse_closed()
        if users is None:
            return sum(shard.flush() for shard in self._shards)
        owned: dict[int, list[User]] = {}
        for user in users:
            owned.setdefault(self.intake.partition_of(user), []).append(user)
        return sum(self._shards[partition].flush(theirs) for partition, theirs in owned.items())

    def open_tasks(self) -> int:
        """Tasks that workers will take; parked ones are not among them."""
        return sum(shard.task_counts()[0] for shard in self._shards)

    def asker(self, port: str) -> Asker | None:
        """Who asks the chat model of a port for its workers; None where rules serve it. Closed with this."""
        return self._workers[0].asker(port)

    def drain(self, on_progress: Callable[[int], None] = lambda left: None) -> None:
        """Wait until no task is left to work on.

        Raises:
            Retryable: the workers go on, but keep failing (a full disk, say).
            RaygamError: a worker met an error that it could not get over, or the engine is closed.
        """
        self._wait_until(lambda left: not left, on_progress)

    def close(self) -> None:
        """Stop the workers after their present group, and close the store. Tasks stay for the next opening."""
        with self._changed:
            if self._stopping:
                return
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        for worker in self._workers:
            worker.close()
        for reader in self._readers:
            reader.close()
        for shard in self._shards:
            shard.close()
        self._store.close()

    def _wait_for_workers(self) -> None:
        with self._changed:
            self._refuse_closed()
        tasks, turns = self._max_open_tasks, self._max_waiting_turns
        if self.open_tasks() > tasks or self._waiting_turns() > turns:
            # No task left means no turn behind one: whoever waits here is never waiting for a person.
            self._wait_until(
                lambda left: not left or (left <= tasks // 2 and self._waiting_turns() <= turns // 2), lambda left: None
            )

    def _waiting_turns(self) -> int:
        return sum(shard.waiting_turns() for shard in self._shards)

    def _wait_until(self, enough: Callable[[int], bool], on_progress: Callable[[int], None]) -> None:
        with self._changed:
            before = self._obstacle  # it may be gone by now: the workers try again, and say so
        while True:
            with self._changed:
                seen = self._signals
                if self._failure is not None:
                    raise self._failure
            left = self.open_tasks()
            on_progress(left)
            if enough(left):
                return
            with self._changed:
                self._refuse_closed()
                if self._obstacle is not None and self._obstacle is not before:
                    raise self._obstacle
            if self._threads:
                with self._changed:
                    if self._signals == seen and self._failure is None:
                        # The time-out is for leases that expire: nobody signals these.
                        self._changed.wait(timeout=1.0)
            else:
                with self._inline_lock:
                    if not self._work_round(self._workers[0]):
                        self._tell_obstacle(self._workers[0])
                        self._workers[0].rest(_REST_SECONDS)

    def _refuse_closed(self) -> None:
        if self._stopping:
            raise RaygamError("the engine was closed; what is stored stays, and the next opening goes on from there")

    def _signal(self) -> None:
        with self._changed:
            self._signals += 1
            self._changed.notify_all()

    def _work(self, worker: SlowPath) -> None:
        failures = 0
        while True:
            with self._changed:
                if self._stopping:
                    return
                seen = self._signals
            try:
                did = self._work_round(worker)
                failures = 0
                self._tell_obstacle(worker)
            except Retryable as error:
                failures += 1
                if failures > len(backoff.PAUSES):  # whoever waits is told; it may last
                    self._obstacle = error
                    self._signal()
                pause = backoff.pause_after(failures)
                with self._changed:
                    self._changed.wait_for(lambda: self._stopping, timeout=pause)
                continue
            except Exception as error:  # noqa: BLE001 - the top of the worker's thread: the caller is told
                with self._changed:
                    self._failure = error
                    self._changed.notify_all()
                return
            if not did:
                worker.rest(_REST_SECONDS)
                with self._changed:
                    if not self._stopping and self._signals == seen:
                        self._changed.wait(timeout=1.0)

    def _work_round(self, worker: SlowPath) -> bool:
        did = False
        count = len(self._shards)
        first = next(self._rounds)  # whoever has little room left does not always give it to the same partition
        for step in range(count):
            with self._changed:
                if self._stopping:
                    return did
            at = (first + step) % count
            did = bool(worker.work(self._shards[at], self._readers[at])) or did
        return did

    def _tell_obstacle(self, worker: SlowPath) -> None:
        """Let whoever waits know what the worker waits for, or that it waits no more."""
        found, setbacks = worker.obstacle(), worker.setbacks()
        if not found:
            self._obstacle = None
        elif self._obstacle is None or self._setbacks.get(worker) != setbacks:
            self._setbacks[worker] = setbacks
            self._obstacle = ModelAway(f"{found}. Turns are stored and searchable; {_WAITING}")
            self._signal()
