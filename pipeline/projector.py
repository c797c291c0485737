"""Carries the vector log over to the index: search sees what is committed, always."""

from __future__ import annotations

from ..memory.model import User
from ..memory.ports import VectorIndex, VectorLogReader


class Projector:
    """Keeps one partition's part of an index behind its vector log by nothing, when asked.

    The index is disposable (invariant 9): a user's block that is missing is built from
    the log, one that is behind catches up from its `applied_seq`.
    """

    def __init__(self, index: VectorIndex, log: VectorLogReader) -> None:
        self._index = index
        self._log = log

    def catch_up(self, user: User) -> None:
        """Bring the user's block up to the log's end."""
        applied = self._index.applied_seq(user)
        entries = self._log.entries(user, applied or 0)
        if applied is None or len(entries.seqs):
            self._index.apply(user, entries)
