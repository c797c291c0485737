"""When each partition answers again: a fresh turn sent and searched, and positions looked at all the time."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from benchmarks.fault_dialogue import Dialogue, Record
from benchmarks.fault_producers import Sender
from benchmarks.fault_verdict import Deviation, Told, found_by_search
from raygam.actors.cluster import Cluster
from raygam.actors.driving import partition_readers
from raygam.memory.errors import Retryable
from raygam.memory.model import User

_CALL_SECONDS = 0.5
_LOOK_SECONDS = 0.1


def search(cluster: Cluster, partition: int, user: User, text: str, seconds: float) -> dict[str, Any]:
    """Ask the engine for a user's memories, as an endpoint does.

    Raises:
        Retryable: nobody answers for the partition in time.
    """

    def ask(shard: Any) -> Any:
        return shard.search.remote(partition, user, text, None, {"k": 10, "mode": "flat"})

    found: dict[str, Any] = cluster.routes.call(partition, ask, seconds)
    return found


class Probes:
    """Sends a turn of a new user to every partition, and waits until it is found.

    Args:
        cluster: the engine.
        dialogue: makes the turns.
        address: a broker.
        topic: the topic.
        told: where the turns are noted, as everybody else's.
    """

    def __init__(self, cluster: Cluster, dialogue: Dialogue, address: str, topic: str, told: Told) -> None:
        self._cluster = cluster
        self._dialogue = dialogue
        self._sender = Sender(address, topic, told)
        self._threads = ThreadPoolExecutor(dialogue.partitions, thread_name_prefix="probe")
        self._abandoned = threading.Event()
        self.mixed: list[Deviation] = []

    def send(self) -> list[Record]:
        """Queue one turn a partition."""
        sent = [self._dialogue.probe(at) for at in range(self._dialogue.partitions)]
        for record in sent:
            self._sender.send(record)
        return sent

    def found(self, sent: Iterable[Record], since: float, deadline: float) -> dict[int, float | None]:
        """Wait until the turns are found.

        Args:
            sent: what `send` returned.
            since: when the fault began, on `time.monotonic`'s clock.
            deadline: when to give up.

        Returns:
            Per partition the seconds from `since` until it was found, None if it was not.
        """
        waiting = {record.partition: self._threads.submit(self._wait, record, deadline) for record in sent}
        moments = {partition: future.result() for partition, future in waiting.items()}
        return {partition: None if moment is None else moment - since for partition, moment in moments.items()}

    def close(self, *, wait: bool = True) -> None:
        """Send and search no more; first wait for what is under way, if that is wanted."""
        self._abandoned.set()
        self._threads.shutdown(wait=wait)
        self._sender.close(wait=wait)

    def _wait(self, record: Record, deadline: float) -> float | None:
        assert record.user is not None
        while time.monotonic() < deadline and not self._abandoned.is_set():
            with suppress(Retryable):
                answer = search(self._cluster, record.partition, record.user, record.text, _CALL_SECONDS)
                if answer["memories"]:
                    moment = time.monotonic()
                    self.mixed += found_by_search(record.user, record.message_id, answer)
                    return moment
            time.sleep(0.02)
        return None


class Positions:
    """Looks at how far each partition is, beside the engine, in a thread of its own.

    Args:
        cluster: the engine.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._moves: dict[int, list[float]] = {at: [] for at in range(cluster.spec.facts.partitions)}
        self._stopping = threading.Event()
        self._state = cluster.spec.state
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def longest_gap(self, partitions: Iterable[int], start: float, end: float) -> float | None:
        """The longest time that one of the partitions took nothing, within a stretch; None without partitions."""
        gaps = []
        for at in partitions:
            inside = [start, *(one for one in self._moves[at].copy() if start <= one <= end), end]
            gaps.append(max(later - earlier for earlier, later in itertools.pairwise(inside)))
        return max(gaps, default=None)

    def close(self) -> None:
        """Look no more."""
        self._stopping.set()
        self._thread.join()

    def _look(self) -> None:
        seen: dict[int, int] = {}
        with partition_readers(self._state) as readers:
            while not self._stopping.wait(_LOOK_SECONDS):
                for at, reader in enumerate(readers):
                    with suppress(Retryable):  # a database that was killed
                        position = reader.position()
                        if seen.get(at) != position:
                            seen[at] = position
                            self._moves[at].append(time.monotonic())
