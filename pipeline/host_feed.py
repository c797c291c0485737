"""Reading a source for some partitions of a host: what a file and a topic have in common.

A feed is a thread that reads, over every obstacle that may pass, until it is stopped or has
come to the end. Batches are applied one by one: between two of them, at a batch's edge, a
partition may leave.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..memory.errors import Fenced, Misconfigured, NotOwner, RaygamError, Refused, Retryable
from .backoff import pause_after
from .batches import TurnBatch
from .feed import Ahead
from .jobs import FeedStatus, Job

if TYPE_CHECKING:
    from .host import ShardHost

log = logging.getLogger("raygam.feed")


class Feed(threading.Thread, ABC):
    """Reads one job's source for some partitions of a host."""

    def __init__(self, host: ShardHost, job: Job, partitions: Sequence[int]) -> None:
        super().__init__(name=f"raygam-feed-{min(partitions)}", daemon=True)
        self.job = job
        self._host = host
        self._stop_asked = threading.Event()
        self._ahead: Ahead[Any] | None = None
        self._edge = threading.Lock()  # held from one batch's edge to the next
        self._status_lock = threading.Lock()
        self._status = FeedStatus(job, tuple(partitions))

    @property
    def partitions(self) -> tuple[int, ...]:
        """For whom it reads, or has read."""
        return self._status.partitions

    def status(self) -> FeedStatus:
        """How far it is."""
        return self._status

    def take(self, partitions: Sequence[int]) -> bool:
        """Read for these partitions too; False if it cannot, and another feed must."""
        return False

    def stop(self) -> None:
        """Ask it to end at a batch's edge; it does not wait for a model first."""
        self._stop_asked.set()
        if (ahead := self._ahead) is not None:
            ahead.close()

    def leave(self, partition: int) -> None:
        """Read for the partition no more; returns at a batch's edge."""
        with self._edge:
            self.forget(partition)

    def forget(self, partition: int) -> None:
        """The partition is gone: what comes for it is passed over."""
        with self._status_lock:
            self._forget(partition)
            rest = tuple(at for at in self._status.partitions if at != partition)
            self._status = replace(self._status, partitions=rest)

    def run(self) -> None:
        """Read to the end, over every obstacle that may pass."""
        failures = 0
        while not self._stop_asked.is_set():
            before = self._status.offset
            try:
                self._read_to_the_end()
                break
            except (Retryable, Refused) as error:  # whoever gave the job was served by the same settings
                failures = 1 if self._status.offset > before else failures + 1
                self._note(obstacle=str(error))
                log.warning("reading waits", extra={"partitions": list(self.partitions), "error": str(error)})
                self._stop_asked.wait(pause_after(failures))
            except RaygamError as error:
                self._note(failure=str(error), misconfigured=isinstance(error, Misconfigured))
                log.error("reading ended", extra={"partitions": list(self.partitions), "error": str(error)})
                break
            except Exception as error:  # the top of the feed's thread: whoever asks for the status is told
                self._note(failure=f"{type(error).__name__}: {error}")
                log.exception("reading ended", extra={"partitions": list(self.partitions)})
                break
        self._note(ended=True, paused="")

    @abstractmethod
    def _read_to_the_end(self) -> None:
        """Read on from where the partitions stand; return at the end, or when it was asked to stop.

        Raises:
            Retryable: it is called again.
        """

    @abstractmethod
    def _forget(self, partition: int) -> None:
        """Take the partition out of what is held of it; under `_status_lock`."""

    def _ingest(self, batch: TurnBatch) -> bool:
        """Apply a batch and count it; False if the partition is gone."""
        try:
            receipt = self._host.ingest(batch)
        except NotOwner:
            self.forget(batch.partition)
            return False
        status = self._status
        self._note(
            accepted=status.accepted + receipt.accepted,
            duplicates=status.duplicates + receipt.duplicates,
            dead_letters=status.dead_letters + receipt.dead_letters,
        )
        return True

    def _flush(self, partition: int) -> None:
        """The partition has all of the source: flush it."""
        try:
            self._host.flush(partition)
        except (NotOwner, Fenced):
            self.forget(partition)

    def _note(self, **changes: object) -> None:
        with self._status_lock:
            beats = self._status.beats + 1
            self._status = replace(self._status, beats=beats, **changes)  # type: ignore[arg-type]
