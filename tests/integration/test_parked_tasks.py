"""Tasks that wait for a person: what the next opening does with them, and what `raygam tasks` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raygam import Memory, Misconfigured, Rejected, Retryable, StateLocked
from raygam.adapters.sqlite_writer import SqliteWriter
from raygam.memory.chat import ModelCall
from raygam.memory.errors import LeaseLost
from raygam.memory.writes import LeasedTask
from raygam.pipeline.cli_tasks import Wanted, listed, parked, retried
from raygam.pipeline.runtime import open_made
from raygam.pipeline.shard import Shard, ShardSettings

SETTINGS: dict[str, Any] = {"embedder": "stub", "workers": 0, "partitions": 2}
EVERY = Wanted()


def said(user: str, tenant: str = "default") -> dict[str, Any]:
    base = {"tenant": tenant, "session_id": "s", "speaker": "Ana", "role": "user", "text": "a fact", "timestamp": 1000}
    return base | {"user_id": user, "message_id": "m"}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A closed state with an open task each of ana, bo, cy and another tenant's ana."""
    made = tmp_path / "state"
    with Memory(made, **SETTINGS) as memory:
        memory.add([said(user) for user in ("ana", "bo", "cy")] + [said("ana", "other")])
        memory._engine.flush()
    return made


def claim(memory: Memory, user: str, tenant: str = "default") -> tuple[Any, LeasedTask]:
    """The shard and lease of a user's task; tasks of others go back."""
    found = None
    for shard in memory._engine.shards:
        for lease in shard.claim(9):
            if lease.task.user == (tenant, user):
                found = shard, lease
            else:
                shard.release(lease.task.id, lease.token, "not this one")
    assert found, f"{user} has no task to claim"
    return found


def fail(memory: Memory, user: str, tenant: str = "default") -> str:
    shard, lease = claim(memory, user, tenant)
    shard.fail(lease.task.id, lease.token, "the answer fits no schema", parks=True)
    return lease.task.id


def left(state: Path, **wanted: Any) -> list[tuple[str, str, str, bool, int]]:
    found = listed(state, Wanted(**wanted), 100)["tasks"]
    return sorted(
        (task["user_id"], task["tenant"], task["status"], task["parked_by_person"], task["attempts"]) for task in found
    )


def test_a_failed_task_is_tried_again_by_the_next_opening_and_one_that_a_person_parked_is_not(state: Path) -> None:
    with Memory(state, **SETTINGS) as memory:
        failed = fail(memory, "ana")
        fail(memory, "bo")
        assert left(state, status="parked") == [
            ("ana", "default", "parked", False, 1),
            ("bo", "default", "parked", False, 1),
        ]
        with pytest.raises(StateLocked, match="where no engine runs: end it"):
            retried(state, [failed], EVERY)
        with pytest.raises(StateLocked, match="where no engine runs: end it"):
            parked(state, [failed], "no")
    assert parked(state, [failed[:12]], "looked into")["parked"] == [failed]
    with Memory(state, **SETTINGS) as memory:  # bo's begins anew, in the ledger too
        assert left(state, user="bo") == [("bo", "default", "open", False, 0)]
        (held,) = listed(state, Wanted(user="ana"), 9)["tasks"]
        assert (held["status"], held["parked_by_person"], held["reason"]) == ("parked", True, "looked into")
        memory._engine.drain()
        assert left(state) == [("ana", "default", "parked", True, 1)]
        memory.add([said("ana") | {"message_id": "later"}])  # stays searchable, and waits
        assert {hit.event.message_id for hit in memory.search("ana", "fact").memories} == {"m", "later"}
    assert retried(state, [failed], EVERY)["retried"] == [failed]
    assert left(state) == [("ana", "default", "open", False, 0)]
    with Memory(state, **SETTINGS) as memory:
        memory._engine.drain()
        assert [episode["events"] for episode in memory.show("ana")["episodes"]] == [["m"]]
    assert left(state) == []


def test_all_that_are_wanted_are_retried(state: Path) -> None:
    with Memory(state, **SETTINGS) as memory:
        for user, tenant in (("ana", "default"), ("ana", "other"), ("bo", "default")):
            fail(memory, user, tenant)
    assert len(retried(state, [], Wanted(user="ana"))["retried"]) == 1  # the default tenant's
    assert left(state, status="parked") == [("ana", "other", "parked", False, 1), ("bo", "default", "parked", False, 1)]
    assert len(retried(state, [], Wanted(tenant="other"))["retried"]) == 1
    (of_bo,) = listed(state, Wanted(user="bo"), 9)["tasks"]
    assert retried(state, [], Wanted(partition=1 - of_bo["partition"]))["retried"] == []
    assert retried(state, [], EVERY)["retried"] == [of_bo["id"]]
    assert left(state, status="open") == left(state)


def test_wrong_names_change_nothing(state: Path) -> None:
    (first, *_) = found = listed(state, EVERY, 2)["tasks"]
    assert (len(found), listed(state, EVERY, 2)["total"]) == (2, 4)
    before = left(state)
    with pytest.raises(Rejected, match="no task that is not done has an id that begins with 'none'"):
        parked(state, [first["id"], "none"], "no")
    with pytest.raises(Rejected, match="with ''"):
        parked(state, [""], "no")
    with pytest.raises(Rejected, match=f"task {first['id']} is open, not parked"):
        retried(state, [first["id"]], EVERY)
    with pytest.raises(Misconfigured, match="open, leased, parked"):
        listed(state, Wanted(status="done"), 9)
    with pytest.raises(Misconfigured, match="no state at"):
        retried(state / "nowhere", [], EVERY)
    assert left(state) == before


def test_what_a_model_said_is_there_for_who_thinks_the_task_again(state: Path) -> None:
    with Memory(state, **SETTINGS) as memory:
        shard, lease = claim(memory, "ana")
        reader = memory._engine.readers[shard.partition]
        task, calls = lease.task.id, [ModelCall("key", "model", "segments/1", 2, 900, 80, "{}", 1)]
        shard.remember(task, lease.token, calls)
        shard.release(task, lease.token, "the model is away")
        with pytest.raises(LeaseLost, match="claim again"):
            shard.remember(task, lease.token, calls)
        with pytest.raises(LeaseLost, match="claim again"):
            shard.release(task, lease.token, "again")
        assert reader.answers([task]) == {task: {"key": "{}"}}
    with Memory(state, **SETTINGS) as memory:
        assert left(state, user="ana") == [("ana", "default", "open", False, 0), *left(state, user="ana")[1:]]
        assert memory._engine.readers[shard.partition].answers([task]) == {task: {"key": "{}"}}
        memory._engine.drain()
        reader = memory._engine.readers[shard.partition]
        assert reader.answers([task]) == {}
        assert [(used.user.user_id, used.calls, used.prompt_tokens) for used in reader.model_usage()] == [
            ("ana", 2, 900)
        ]


def test_a_released_task_has_all_its_attempts_left(state: Path) -> None:
    with Memory(state, **SETTINGS, max_attempts=2) as memory:
        for _ in range(3):
            shard, lease = claim(memory, "ana")
            shard.release(lease.task.id, lease.token, "the model is away")
        for attempts, status in ((1, "open"), (2, "parked")):
            shard, lease = claim(memory, "ana")
            shard.fail(lease.task.id, lease.token, "broke")
            assert left(state, user="ana") == [("ana", "default", status, False, attempts)]


def test_a_commit_that_fails_takes_no_lease_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Memory(tmp_path / "state", **SETTINGS | {"partitions": 1}) as memory:
        memory.add([said("ana"), said("bo")])
        memory._engine.flush()
        (shard,) = memory._engine.shards
        first, second = shard.claim(9)
        call = ModelCall("key", "model", "segments/1", 1, 10, 1, "{}")

        def fails(writer: object, write: object) -> None:
            monkeypatch.undo()
            raise Retryable("the disk is full")

        monkeypatch.setattr(SqliteWriter, "commit", fails)
        with pytest.raises(Retryable, match="disk is full"):
            shard.remember(first.task.id, first.token, [call])
        for lease in (second, first):
            shard.remember(lease.task.id, lease.token, [call])
            shard.release(lease.task.id, lease.token, "done with it")


def test_a_lease_that_ran_out_is_no_lease(state: Path) -> None:
    now = 0
    store = open_made(state)
    (at,) = {task["partition"] for task in listed(state, Wanted(user="ana", tenant="other"), 9)["tasks"]}
    shard = Shard(store.writer(at), ShardSettings(lease_seconds=60), lambda: now)
    (lease, *_) = shard.claim(9)
    held = (lease.task.id, lease.token)
    now = 59_999_999
    shard.remember(*held, [ModelCall("key", "model", "segments/1", 1, 10, 1, "{}")])
    now = 60_000_000
    with pytest.raises(LeaseLost, match=lease.task.id):
        shard.remember(*held, [])
    with pytest.raises(LeaseLost, match=lease.task.id):
        shard.release(*held, "away")
    assert store.reader(at).answers([lease.task.id]) == {lease.task.id: {"key": "{}"}}
    store.close()
