"""Sends what the outboxes of owned partitions hold, and has it deleted once it is acknowledged.

At least once: a process that ends between the two sends again, and so does one that has lost
the partition without knowing. Messages of one partition and kind keep their order, and each
has an id that is the same when it comes again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Protocol

from ..memory.errors import NotOwner, RaygamError, Rejected
from ..memory.writes import OutboxMessage
from .backoff import pause_after
from .metrics import Metrics

log = logging.getLogger("raygam.publisher")
_LOOK_SECONDS = 1.0
_GATHER_SECONDS = 0.02
_IDLE_SECONDS = 60.0
_TOGETHER = 500
_TOGETHER_BYTES = 8 * 1024 * 1024


class UnsentMessages(Protocol):
    """The outbox of one partition."""

    def unsent(self) -> dict[str, int]:
        """How many messages wait, by kind."""
        ...

    def messages(self, kind: str, limit: int, max_bytes: int) -> list[OutboxMessage]:
        """The first messages of a kind, in order."""
        ...

    def acknowledge(self, kind: str, number: int, count: int) -> None:
        """Delete the messages of a kind up to a number; they are `count`."""
        ...


class MessageSink(Protocol):
    """Where messages go. One thread uses it; after an error it is closed and made anew."""

    def deliver(self, messages: Sequence[OutboxMessage]) -> tuple[int, RaygamError | None]:
        """Send messages of one kind, in order, and wait until they are acknowledged.

        Returns:
            How many of the first are, and what stood in the way of the next one, if anything did.
        """
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Trouble:
    """What stands in the way of messages, and when they are tried again."""

    text: str
    failures: int
    again_at: float


class Publisher:
    """A thread that sends, from the first message on. Thread-safe.

    Args:
        name: the shard's name, in logs and metrics.
        partitions: says which partitions are owned at the moment.
        opened: gives an owned partition's outbox; raises `NotOwner` if it is another's by now.
        make_sink: makes the sink, once there is something to send; None where nothing is ever sent.
        metrics: where figures go.
    """

    def __init__(
        self,
        name: str,
        partitions: Callable[[], Iterable[int]],
        opened: Callable[[int], AbstractContextManager[UnsentMessages]],
        make_sink: Callable[[], MessageSink] | None,
        metrics: Metrics,
    ) -> None:
        self._name = name
        self._partitions = partitions
        self._opened = opened
        self._make_sink = make_sink
        self._metrics = metrics
        self._sink: MessageSink | None = None
        self._troubles: dict[tuple[str, int | None], _Trouble] = {}  # of a kind, or of a kind in a partition
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """There may be something to send; starts the thread."""
        if self._make_sink is None:
            return
        self._woken.set()
        with self._lock:
            if self._thread is None and not self._stopping.is_set():
                self._thread = threading.Thread(target=self._run, name=f"raygam-publisher-{self._name}", daemon=True)
                self._thread.start()

    def unsent(self) -> Counter[str]:
        """How many messages wait in the owned partitions, by kind."""
        waiting: Counter[str] = Counter()
        for partition in self._partitions() if self._make_sink is not None else ():
            with suppress(NotOwner), self._opened(partition) as outbox:
                waiting.update(outbox.unsent())
        return waiting

    def obstacles(self) -> tuple[str, ...]:
        """What stands in the way of messages at the moment."""
        with self._lock:
            return tuple(dict.fromkeys(trouble.text for trouble in self._troubles.values()))

    def close(self, seconds: float = 5.0) -> None:
        """Send what is left, if nothing stands in the way, for at most so long; the rest waits in the outboxes."""
        self._stopping.set()
        self._woken.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(seconds)

    def _run(self) -> None:
        idle_since = time.monotonic()
        while not self._stopping.is_set():
            self._woken.clear()
            if self._round():
                idle_since = time.monotonic()
                continue
            if time.monotonic() - idle_since > _IDLE_SECONDS:
                self._drop_sink()  # one that is not used would look for its brokers for as long as they are away
            self._woken.wait(self._pause())
            self._stopping.wait(_GATHER_SECONDS)  # commits come by the hundred, and messages go better together
        while not self._troubles and self._round():
            pass
        self._drop_sink()

    def _pause(self) -> float:
        now = time.monotonic()
        with self._lock:
            return max(0.01, min([_LOOK_SECONDS, *(trouble.again_at - now for trouble in self._troubles.values())]))

    def _round(self) -> bool:
        """Send some of each partition and kind; return whether anything was sent."""
        sent = False
        waiting: set[tuple[str, int | None]] = set()
        for partition in self._partitions():
            try:
                with self._opened(partition) as outbox:
                    kinds = outbox.unsent()
                for kind in kinds:
                    waiting |= {(kind, None), (kind, partition), ("any", partition)}
                    while self._may_try(kind, partition) and (count := self._send(partition, kind)):
                        sent = True
                        if count < _TOGETHER:
                            break
            except NotOwner:
                continue
            except Exception as error:  # noqa: BLE001 - the top of the publisher's thread: told, and tried again
                waiting.add(("any", partition))
                self._note("any", partition, _ours(error))
        with self._lock:  # a partition that is given up takes its troubles along
            self._troubles = {key: trouble for key, trouble in self._troubles.items() if key in waiting}
        return sent

    def _may_try(self, kind: str, partition: int) -> bool:
        now = time.monotonic()
        with self._lock:
            keys = ((kind, None), (kind, partition), ("any", partition))
            troubles = [self._troubles.get(key) for key in keys]
        return all(trouble is None or trouble.again_at <= now for trouble in troubles)

    def _send(self, partition: int, kind: str) -> int:
        """Send the first messages of a kind and have them deleted; return how many they were."""
        with self._lock:
            tried = (kind, None) in self._troubles or (kind, partition) in self._troubles
        limit = 1 if tried else _TOGETHER  # those behind one that cannot be delivered would be sent again and again
        with self._opened(partition) as outbox:
            messages = outbox.messages(kind, limit, _TOGETHER_BYTES)
        if not messages:
            return 0
        try:
            if self._sink is None:
                assert self._make_sink is not None
                self._sink = self._make_sink()
            delivered, error = self._sink.deliver(messages)
        except Exception as raised:  # noqa: BLE001 - the top of the publisher's thread: told, and tried again
            delivered, error = 0, _ours(raised)
        if delivered:
            with self._opened(partition) as outbox:
                outbox.acknowledge(kind, messages[delivered - 1].number, delivered)
            self._metrics.count("raygam_messages_sent_total", delivered, shard=self._name, kind=kind)
            with self._lock:
                for key in ((kind, None), (kind, partition), ("any", partition)):
                    self._troubles.pop(key, None)
        if error is not None:
            self._metrics.count("raygam_messages_failed_total", shard=self._name, kind=kind)
            self._drop_sink()
            self._note(kind, partition if isinstance(error, Rejected) else None, error)
        return delivered

    def _note(self, kind: str, partition: int | None, error: RaygamError) -> None:
        where = "" if partition is None else f" of partition {partition}"
        text = f"messages ({kind}{where}) wait: {error}"
        with self._lock:
            before = self._troubles.get((kind, partition))
            failures = before.failures + 1 if before else 1
            pause = pause_after(failures)
            self._troubles[kind, partition] = _Trouble(text, failures, time.monotonic() + pause)
        if before is None or before.text != text:  # it is tried again every few seconds, maybe for days
            cause = error.__cause__ or False
            log.warning("messages wait", exc_info=cause, extra={"kind": kind, "error": str(error)})

    def _drop_sink(self) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.close()


def _ours(error: Exception) -> RaygamError:
    if isinstance(error, RaygamError):
        return error
    made = RaygamError(f"{type(error).__name__}: {error}. This is a fault in raygam; please report it")
    made.__cause__ = error
    return made
