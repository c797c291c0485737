"""Whether a host may read on: what it holds of tasks, memory and disk, against its limits."""

from __future__ import annotations

import os
from pathlib import Path

from .host_status import HostSettings


def free_bytes(path: Path) -> int:
    """Room that is left for this process on the path's disk."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def obstruction(
    settings: HostSettings,
    state_path: Path | None,
    open_tasks: int,
    waiting_turns: int,
    unsent: int = 0,
    *,
    paused: bool,
) -> str:
    """Say why reading waits; empty if it does not.

    Args:
        settings: the limits.
        state_path: where the state's disk is looked at; None for a database, which refuses by itself when it is full.
        open_tasks: tasks that workers will take.
        waiting_turns: turns in memory behind them.
        unsent: updates for other systems that are not sent yet.
        paused: it waits already: it goes on when half of a limit is free again, so that it does not stop
            and go with every task.
    """
    tasks, turns = settings.max_open_tasks, settings.max_waiting_turns
    part = 2 if paused else 1
    if open_tasks > tasks // part:
        return f"{open_tasks} tasks are open, of {tasks} at most (max_open_tasks)"
    if waiting_turns > turns // part:
        return f"{waiting_turns} turns wait for tasks, of {turns} at most (max_waiting_turns)"
    if unsent > settings.max_unsent_updates // part:
        most = settings.max_unsent_updates
        return f"{unsent} updates for other systems are not sent, of {most} at most (max_unsent_updates)"
    if state_path is not None and (free := free_bytes(state_path)) < settings.min_free_bytes:
        return f"the disk has {free} bytes left, fewer than {settings.min_free_bytes} (min_free_bytes)"
    return ""
