"""What SIGINT and SIGTERM do to a command that has something to leave whole."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from . import display

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SAME_SECONDS = 0.5
"""What `timeout` and others send twice, to the process and to its group, is one signal."""


class Interruption:
    """Set by the first SIGINT or SIGTERM; the second one ends the command at once.

    Args:
        what: what the first one begins, for the note.
        leave: ends the process at the second one; None raises `KeyboardInterrupt`.
    """

    def __init__(
        self, what: str = "stopping at the edge of this batch", leave: Callable[[], None] | None = None
    ) -> None:
        self.asked = False
        self._asked_at = 0.0
        self._what = what
        self._leave = leave

    def watch(self) -> dict[int, Any]:
        """Catch the signals from now on; return what caught them before."""
        return {number: signal.signal(number, self._handle) for number in _SIGNALS}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Catch the signals inside the block."""
        before = self.watch()
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.asked:
            if now - self._asked_at < _SAME_SECONDS:
                return
            if self._leave is not None:
                self._leave()
            raise KeyboardInterrupt
        self.asked, self._asked_at = True, now
        display.note(f"{self._what}; once more to stop at once")
