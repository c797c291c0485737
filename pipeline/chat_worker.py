"""The slow path with a chat model: many tasks in flight at a time, each in a thread that waits for answers.

It stands where the rules' worker stands: whoever drives it calls `work` for every partition and
rests when there was nothing to do. A task that the model's absence stopped is released, not failed.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ..memory.chat import ModelCall
from ..memory.errors import BadAnswer, LeaseLost, RaygamError, Refused, Retryable, TooLong
from ..memory.ports import Reader
from ..memory.writes import LeasedTask
from .asking import Asker
from .chat_config import SHARE_OF_LEASE
from .task_queue import AllBut
from .thinking import Matter, Minds, think
from .worker import TaskSource, TopicMemory, WorkDone

log = logging.getLogger("raygam.worker")
_BY_RULES = 2
"""Tasks at a time of tenants whose memory rules make: they wait for no model, nor behind those that do."""


class ChatWorker:
    """Works on the tasks of any partition, up to `concurrency` at a time.

    `work` and `rest` are for one thread; `close` for any.

    Args:
        minds: what it thinks with; closed with it.
        concurrency: tasks in flight at most.
        lease_seconds: of the shards.
        known_topics: topics remembered between their users' tasks.
    """

    def __init__(self, minds: Minds, *, concurrency: int, lease_seconds: float, known_topics: int = 16384) -> None:
        self._minds = minds
        self._concurrency = concurrency
        self._lease_seconds = lease_seconds
        self._topics = TopicMemory(known_topics)
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="raygam-thinking")
        self._rules_pool = ThreadPoolExecutor(_BY_RULES, thread_name_prefix="raygam-rules")
        self._changed = threading.Condition()
        self._in_flight = 0
        self._by_rules = 0
        self._done = WorkDone()
        self._stopping = False

    def in_hand(self) -> list[int]:
        """No partition: what could not be done is given back at once."""
        return []

    def obstacle(self) -> str:
        """What stands in the way of all tasks, empty if nothing does."""
        return "; ".join(filter(None, (asker.obstacle() for asker in self._minds.distinct)))

    def asker(self, port: str) -> Asker | None:
        """Who asks the chat model of a port; closed with this."""
        return self._minds.askers.get(port)

    def setbacks(self) -> int:
        """How often in a row the models were asked again for nothing."""
        return sum(asker.setbacks for asker in self._minds.distinct)

    def work(self, shard: TaskSource, reader: Reader) -> WorkDone:
        """Claim tasks for the threads that are free, and return; say what was done since the last call.

        Raises:
            Retryable: the store is away.
        """
        leased = self._claim(shard)
        if leased:
            try:
                matters = self._read(leased, reader)
            except BaseException:
                for lease in leased:
                    self._release(shard, lease, "its turns could not be read")
                raise
            with self._changed:
                by_rules = sum(map(self._is_off, leased))
                self._by_rules += by_rules
                self._in_flight += len(matters) - by_rules
            for matter in matters:
                pool = self._rules_pool if self._is_off(matter.lease) else self._pool
                pool.submit(self._think, matter, shard, reader)
        with self._changed:
            done, self._done = self._done, WorkDone()
        return WorkDone(done.applied, done.failed, done.lost, len(leased))

    def rest(self, seconds: float) -> None:
        """Wait while tasks are in flight, the model is away or tenants wait for tokens, but not longer than this."""
        deadline = time.monotonic() + seconds
        if self.obstacle():
            for asker in self._minds.distinct:
                asker.wait_until_open(max(deadline - time.monotonic(), 0.0))
        spent = any(asker.exhausted() for asker in self._minds.distinct)
        with self._changed:
            before = self._in_flight + self._by_rules
            if before or spent:  # tasks of tenants without tokens are ready, and not to be had
                left = max(deadline - time.monotonic(), 0.0)
                self._changed.wait_for(
                    lambda: self._stopping or self._in_flight + self._by_rules < before, timeout=left
                )

    def close(self) -> None:
        """Break off the calls under way; their tasks go back to the shards. Twice is once."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for asker in self._minds.distinct:
            asker.close()
        self._pool.shutdown()
        self._rules_pool.shutdown()

    def _claim(self, shard: TaskSource) -> list[LeasedTask]:
        """What the chat model can be asked about, and what rules think about, whether it is there or not."""
        off = self._minds.off_tenants
        with self._changed:
            free = 0 if self._stopping else self._concurrency - self._in_flight
            room = 0 if self._stopping or not off else _BY_RULES - self._by_rules
        leased = shard.claim(room, AllBut(off)) if room > 0 else []
        return [*leased, *self._claim_for_model(shard, free)]

    def _claim_for_model(self, shard: TaskSource, free: int) -> list[LeasedTask]:
        if self.obstacle():  # one task may find out whether the model is back
            free = min(free, *(asker.room() for asker in self._minds.distinct))
        if free <= 0:
            return []
        barred = frozenset[str]().union(*(asker.barred() for asker in self._minds.distinct))
        return shard.claim(free, barred | self._minds.off_tenants)

    def _is_off(self, lease: LeasedTask) -> bool:
        return lease.task.user.tenant in self._minds.off_tenants

    def _read(self, leased: Sequence[LeasedTask], reader: Reader) -> list[Matter]:
        with reader.snapshot():
            turns = reader.turns([(lease.task.user, lease.task.seqs) for lease in leased])
            topics = self._topics.known([lease.task.user for lease in leased], reader)
            answers = reader.answers([lease.task.id for lease in leased])
        return [
            Matter(lease, events, vectors, topics[lease.task.user], answers.get(lease.task.id, {}))
            for lease, (events, vectors) in zip(leased, turns, strict=True)
        ]

    def _think(self, matter: Matter, shard: TaskSource, reader: Reader) -> None:
        """One task from its turns to its shard: the whole of a pool's thread."""
        task, token = matter.lease.task, matter.lease.token
        done = WorkDone(failed=1)
        try:
            done = self._handed_in(matter, shard, reader)
        except LeaseLost:
            done = WorkDone(lost=1)
        except (Retryable, Refused) as error:  # nobody's fault: it waits
            self._release(shard, matter.lease, str(error))
        except Exception as error:  # noqa: BLE001 - the top of the thread: recorded with the task
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = "" if isinstance(error, RaygamError) else f" ({where.name}, line {where.lineno})"
            parks = isinstance(error, (BadAnswer, TooLong))  # the same again would come of it
            self._fail(shard, matter.lease, f"{type(error).__name__}: {error}{place}", parks)
        finally:
            with self._changed:
                if self._is_off(matter.lease):
                    self._by_rules -= 1
                else:
                    self._in_flight -= 1
                held = self._done
                self._done = WorkDone(held.applied + done.applied, held.failed + done.failed, held.lost + done.lost)
                self._changed.notify_all()
            log.debug("thought about a task", extra={"task": task.id, "token": token})

    def _handed_in(self, matter: Matter, shard: TaskSource, reader: Reader) -> WorkDone:
        task, token = matter.lease.task, matter.lease.token

        def record(call: ModelCall) -> None:
            shard.remember(task.id, token, [call])

        deadline = time.monotonic() + self._lease_seconds * SHARE_OF_LEASE
        proposal = think(self._minds, matter, reader.episode_turns, record, deadline)
        outcome = shard.submit([proposal])[0]
        return WorkDone(applied=1) if outcome is None else WorkDone(lost=1)

    def _release(self, shard: TaskSource, lease: LeasedTask, reason: str) -> None:
        self._hand_back(lease, lambda: shard.release(lease.task.id, lease.token, reason))

    def _fail(self, shard: TaskSource, lease: LeasedTask, error: str, parks: bool) -> None:
        log.warning("a task failed", extra={"task": lease.task.id, "user": str(lease.task.user), "error": error})
        self._hand_back(lease, lambda: shard.fail(lease.task.id, lease.token, error, parks=parks))

    @staticmethod
    def _hand_back(lease: LeasedTask, hand: Callable[[], None]) -> None:
        """A task that cannot be given back now comes back by itself, when its lease has run out or its shard has moved."""
        try:
            hand()
        except RaygamError as error:
            log.warning("a task could not be given back", extra={"task": lease.task.id, "error": str(error)})
