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
    BadAnswer,
    Fenced,
    LeaseLost,
    Misconfigured,
    ModelAway,
    RaygamError,
    Rejected,
    Retryable,
    Stale,
    StateLocked,
)
from .memory.model import User

if TYPE_CHECKING:
    from .pipeline.answering import Answer
    from .pipeline.library import AddResult, Memory

__all__ = [
    "AddResult",
    "Answer",
    "BadAnswer",
    "Fenced",
    "LeaseLost",
    "Memory",
    "Misconfigured",
    "ModelAway",
    "RaygamError",
    "Rejected",
    "Retryable",
    "Stale",
    "StateLocked",
    "User",
]


def __getattr__(name: str) -> Any:
    """Load the engine when it is first asked for: the domain alone imports in no time."""
    if name in ("AddResult", "Answer", "Memory"):
        from .pipeline import library

        return getattr(library, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
