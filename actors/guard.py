"""Who watches the supervisor: every shard asks it now and then, and ends one that stands still.

Ray starts a supervisor again that has died, and does not notice one that was stopped. It goes on
from what the actors report, so that one ended without need costs a second of watching.
"""

from __future__ import annotations

import logging
import threading
import time

from . import calls
from .process import Process, kill

log = logging.getLogger("raygam.shard")
_TRIES = 3


class SupervisorGuard(threading.Thread):
    """Asks the supervisor for its process, again and again; a silence is asked about at once.

    Args:
        supervisor: its name.
        seconds: between two questions, and for each answer.
    """

    def __init__(self, supervisor: str, seconds: float) -> None:
        super().__init__(name="raygam-guard", daemon=True)
        self._supervisor = supervisor
        self._seconds = seconds
        self._known: Process | None = None

    def run(self) -> None:
        """Ask as long as the process lives."""
        silent = 0
        while True:
            if not silent:
                time.sleep(self._seconds)
            try:
                asked = calls.find(self._supervisor).process.remote()
                self._known = calls.result(asked, self._seconds, "asking the supervisor")
                silent = 0
            except calls.Dead:
                silent = 0  # Ray starts it again, or the engine has ended
            except calls.Unreachable:
                silent += 1
            if silent >= _TRIES and self._known is not None:
                log.warning("the supervisor does not answer and is ended", extra={"pid": self._known.pid})
                kill(self._known)
                silent, self._known = 0, None
