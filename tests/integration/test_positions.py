"""A source position never goes back: what was applied is skipped, end records too."""

from __future__ import annotations

from pathlib import Path

from raygam.adapters.sqlite_store import SqliteStore
from raygam.adapters.stub_embedder import StubEmbedder
from raygam.memory.model import User
from raygam.memory.writes import SourcePosition, StateFacts
from raygam.pipeline.batches import TurnBatch, to_record_batch
from raygam.pipeline.records import EndOfSession, Turn
from raygam.pipeline.shard import Shard, ShardSettings

USER = User("t", "u")
EMBEDDER = StubEmbedder(8)


def batch(offset: int, *records: Turn | EndOfSession) -> TurnBatch:
    rows = list(enumerate(records, start=offset))
    position = SourcePosition(offset + len(rows), "a")
    return TurnBatch(0, "a", position, to_record_batch(rows), EMBEDDER.embed(["x"] * len(rows)))


def turn(name: str) -> Turn:
    return Turn(name, USER, "s", "Ana", "user", name, 0, 0)


def test_a_replayed_end_record_ends_nothing(tmp_path: Path) -> None:
    store = SqliteStore.create_or_open(tmp_path / "state", StateFacts(1, "murmur2", EMBEDDER.name, 8, 1))
    try:
        shard = Shard(store.writer(0), ShardSettings(), lambda: 0)
        first = batch(0, turn("m1"), EndOfSession(USER, "other", 0), turn("m2"))
        shard.ingest(first)
        before = store.reader(0).version(USER)
        assert shard.ingest(first).accepted == 0
        assert store.reader(0).version(USER) == before
        assert shard.positions()["a"].next_offset == 3
        shard.ingest(batch(0, turn("m1")))
        assert shard.positions()["a"].next_offset == 3, "a lower position never replaces a higher one"
    finally:
        store.close()
