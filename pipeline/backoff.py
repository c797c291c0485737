"""How long a loop waits before it tries again what failed for the moment."""

from __future__ import annotations

PAUSES = (0.1, 0.5, 1.0, 2.0)
"""Seconds, after the first failure in a row, the second, …; the last stays. What comes back is met two seconds later at most."""


def pause_after(failures: int) -> float:
    """Seconds to wait after so many failures in a row, of which there is at least one."""
    return PAUSES[min(failures, len(PAUSES)) - 1]
