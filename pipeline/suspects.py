"""Requests at which a chat model broke down: told from a model that is away by how others fare meanwhile.

A request that makes its server fail looks, by itself, like a server that is away, and would be
repeated for ever. It is blamed once it has failed several times, with more calls of others answered
than not between each two of them. That may take several of its task's leases: a replica that a request has
killed takes minutes to be back.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass

from ..memory.chat import ChatRequest

_REMEMBERED = 4096
Record = tuple[int, int]
"""Calls answered and collapses, of all callers (`ChatGate.record`)."""


@dataclass(slots=True)
class Suspicion:
    """What is held against one request.

    Attributes:
        key: of the request.
        since: the record when it failed last, or began.
        times: how often it failed while others fared well.
    """

    key: bytes
    since: Record
    times: int = 0


class Suspects:
    """Suspicions of one model's requests. Thread-safe."""

    def __init__(self) -> None:
        self._held: OrderedDict[bytes, Suspicion] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, request: ChatRequest, record: Record) -> Suspicion:
        """What is held against a request that begins now."""
        key = hashlib.blake2b(
            repr((request.user, request.messages)).encode("utf-8", "replace"), digest_size=16
        ).digest()
        with self._lock:
            return self._held.get(key) or Suspicion(key, record)

    def clear(self, suspicion: Suspicion) -> None:
        """It was answered."""
        with self._lock:
            self._held.pop(suspicion.key, None)

    def blamed(self, suspicion: Suspicion, record: Record, times: int) -> bool:
        """The model broke down at it; whether it is blamed, which ends the suspicion.

        Args:
            suspicion: of the request.
            record: now, this failure in it.
            times: after so many it is blamed.
        """
        answered, collapses = (now - before for now, before in zip(record, suspicion.since, strict=True))
        with self._lock:
            suspicion.times += answered >= max(collapses, 1)
            suspicion.since = record
            if suspicion.times >= times:
                self._held.pop(suspicion.key, None)
                return True
            self._held[suspicion.key] = suspicion
            self._held.move_to_end(suspicion.key)
            if len(self._held) > _REMEMBERED:
                self._held.popitem(last=False)
            return False
