"""What the reading commands do. Each opens the state read-only and closes it again."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ..memory import identity
from ..memory.ports import Reader
from ..memory.writes import StateFacts
from . import runtime
from .config import Settings
from .location import AnyState, located
from .records import check_user
from .summary import totals, user_document

_PACKAGES = ("raygam", "numpy", "pyarrow", "msgspec", "SQLAlchemy", "alembic", "torch", "sentence-transformers")
_FAISS = ("faiss-cpu", "faiss-gpu")


def search(
    state: AnyState,
    settings: Settings,
    tenant: str,
    user: str,
    query: str,
    *,
    k: int = 10,
    mode: str = "gam",
    as_of: str | None = None,
) -> dict[str, Any]:
    """Answer a query as one document: memories, topics, context, and whether the user is known."""
    owner = check_user(tenant, user)
    reading = runtime.open_reading(state, settings)
    try:
        return reading.answer(owner, query, k=k, mode=mode, as_of=as_of)
    finally:
        reading.close()


def show(state: AnyState, tenant: str, user: str) -> dict[str, Any]:
    """Everything the graphs hold of one user."""
    owner = check_user(tenant, user)
    with opened(state) as (facts, readers):
        at = identity.partition_of(identity.record_key(owner), facts.partitions, facts.partitioner)
        return user_document(readers[at], owner)


def doctor(settings: Settings, state: AnyState | None, *, with_settings: bool) -> dict[str, Any]:
    """Versions, models at hand, devices, and what stands in for what."""
    from . import chat_runtime  # its client takes a while to load

    thinkers = chat_runtime.thinkers(settings)
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "machine": {"system": platform.system(), "architecture": platform.machine(), "cores": os.cpu_count()},
        "versions": {name: _version(name) for name in (*_PACKAGES, *_FAISS)},
        "models": {
            "embedder": runtime.embedder_at_hand(settings),
            "boundary detector": thinkers["boundaries"],
            "summarizer": thinkers["consolidation"],
            "relation scorer": thinkers["relations"],
            "re-ranker": "none yet",
            "chat model": chat_runtime.chat_at_hand(settings),
        },
        "devices": {"embedder": "cpu", "index": "cpu"},
        "environment": {
            name: os.environ.get(name, "") for name in ("OPENBLAS_CORETYPE", "OMP_NUM_THREADS", "HF_HUB_OFFLINE")
        },
    }
    if with_settings:
        found["settings"] = {name: str(value) for name, value in settings.model_dump().items()}
    if state is not None:
        with opened(state) as (facts, readers):
            kind = "database" if located(state).directory is None else "directory"
            found["state"] = {kind: str(state), **asdict(facts), **totals(readers)}
            found["asked_of_chat_models"] = asked(readers)
    return found


def asked(readers: Iterable[Reader]) -> dict[str, str]:
    """What all tasks asked of chat models, by model and prompt."""
    sums: dict[str, Counter[str]] = {}
    for usage in (usage for reader in readers for usage in reader.model_usage()):
        counts = {"calls": usage.calls, "into": usage.prompt_tokens, "out": usage.completion_tokens}
        sums.setdefault(f"{usage.model}, {usage.prompt}", Counter()).update(counts)
    return {
        name: f"{found['calls']:,} calls, {found['into']:,} tokens in, {found['out']:,} out"
        for name, found in sorted(sums.items())
    }


@contextmanager
def opened(state: AnyState) -> Iterator[tuple[StateFacts, list[Reader]]]:
    """A state for reading: what it was made with, and a reader of each partition."""
    store = runtime.open_store(state)
    try:
        facts = store.facts
        readers = [store.reader(at) for at in range(facts.partitions)]
        try:
            yield facts, readers
        finally:
            for reader in readers:
                reader.close()
    finally:
        store.close()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
