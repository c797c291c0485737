"""raygam: a long-term memory for every user of a chat product or an agent fleet.

>>> from raygam import Memory
>>> with Memory("state") as memory:
...     memory.add(turns)
...     memory.flush()
...     memory.search("ana", "Where does Ana live?")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .memory.errors import (
    Fenced,
    LeaseLost,
    Misconfigured,
    RaygamError,
    Rejected,
    Retryable,
    Stale,
    StateLocked,
)
from .memory.model import User

if TYPE_CHECKING:
    from .pipeline.library import AddResult, Memory

__all__ = [
    "AddResult",
    "Fenced",
    "LeaseLost",
    "Memory",
    "Misconfigured",
    "RaygamError",
    "Rejected",
    "Retryable",
    "Stale",
    "StateLocked",
    "User",
]


def __getattr__(name: str) -> Any:
    """Load the engine when it is first asked for: the domain alone imports in no time."""
    if name in ("AddResult", "Memory"):
        from .pipeline import library

        return getattr(library, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
