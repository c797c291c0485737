"""Which process this is, in words for people."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime


def this_process(role: str = "") -> str:
    """`shard-0: process 4711 on host-a since 2026-03-04T09:00:00+00:00`; without a role, without its colon."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return f"{role + ': ' if role else ''}process {os.getpid()} on {socket.gethostname()} since {since}"
