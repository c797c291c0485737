"""Logs of actors: one JSON object a line on standard error, which Ray keeps per process."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import msgspec

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """Time, level, logger, message, and what the call gave as `extra` (partition, epoch, task, …)."""

    def __init__(self, actor: str) -> None:
        super().__init__()
        self._actor = actor

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "actor": self._actor,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _PLAIN}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def configure(actor: str) -> None:
    """Send this process' `raygam` logs to standard error, one JSON object a line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(actor))
    root = logging.getLogger("raygam")
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    root.propagate = False
