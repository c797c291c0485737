"""That something has changed, for those who wait for it."""

from __future__ import annotations

import threading


class Changes:
    """Counts changes. Thread-safe; who looks at `count` before it looks at the rest misses none."""

    def __init__(self) -> None:
        self._told = threading.Condition()
        self._count = 0

    @property
    def count(self) -> int:
        """Changes so far."""
        return self._count

    def tell(self) -> None:
        """Something has changed."""
        with self._told:
            self._count += 1
            self._told.notify_all()

    def wait(self, seen: int, seconds: float) -> None:
        """Return once there are more changes than `seen`, or after `seconds`."""
        with self._told:
            if self._count == seen:
                self._told.wait(timeout=seconds)
