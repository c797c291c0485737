"""What every store promises: fencing, leases, tasks, and calls of chat models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raygam.memory.chat import ModelCall
from raygam.memory.errors import Fenced, LeaseLost, RaygamError
from raygam.memory.model import User
from raygam.memory.ports import Reader, Store, Writer
from raygam.memory.writes import ModelUsage, TaskCalls, TaskFailure, WriteSet
from tests.contract.store_rows import ANNA, BEN, FACTS, Factory, closed, everything, leased, task, turn, turns


def test_a_later_opening_fences_an_earlier_one(store: Store) -> None:
    zombie = store.writer(0)
    heir = store.writer(0)
    other = store.writer(1)
    assert heir.epoch > zombie.epoch
    with pytest.raises(Fenced, match="partition 0"):
        zombie.commit(turns(turn(1)))
    with pytest.raises(Fenced):
        zombie.commit(WriteSet())
    heir.commit(turns(turn(1)))
    other.commit(turns(turn(1, BEN)))
    assert [event.seq for event in store.reader(0).events(ANNA)] == [1]


def test_an_epoch_rises_with_every_opening(factory: Factory) -> None:
    epochs = []
    for _ in range(3):
        store = factory.create_or_open(FACTS)
        epochs.append(store.writer(0).epoch)
        store.close()
    reading = factory.open_read_only()
    assert reading.reader(0).partition_info().epoch == epochs[-1]  # a read-only opening bumps nothing
    reading.close()
    assert epochs == sorted(set(epochs))


def test_a_result_needs_its_lease(writer: Writer, reader: Reader) -> None:
    writer.commit(turns(turn(1), turn(2), tasks=[task("task-1")]))
    result = WriteSet(finished=[("task-1", "t1")], closed=[closed("one", "task-1", 1, 2)])
    for _ in range(2):
        before = everything(reader)
        with pytest.raises(LeaseLost, match="task-1"):
            writer.commit(result)  # not leased yet; then, leased under another token
        assert everything(reader) == before
        writer.commit(WriteSet(leases=[leased(task("task-1"), "other")]))
    writer.commit(WriteSet(leases=[leased(task("task-1"), "t1")]))
    with pytest.raises(LeaseLost):
        writer.commit(WriteSet(failures=[TaskFailure("task-1", "other", "late", parks=True)]))
    writer.commit(result)
    with pytest.raises(LeaseLost):
        writer.commit(result)  # applies once
    with pytest.raises(LeaseLost):
        writer.commit(WriteSet(leases=[leased(task("task-1"))]))  # nothing is left to lease
    assert [episode.id for episode in reader.episodes(ANNA)] == ["one"]
    assert reader.tasks() == []


def test_a_lost_lease_takes_the_rest_of_its_write_along(writer: Writer, reader: Reader) -> None:
    writer.commit(turns(turn(1), tasks=[task("task-1"), task("task-2", BEN)]))
    writer.commit(WriteSet(leases=[leased(task("task-1"), "a"), leased(task("task-2", BEN), "b")]))
    before = everything(reader)
    with pytest.raises(LeaseLost):
        writer.commit(turns(turn(2), finished=[("task-1", "a"), ("task-2", "lost")]))
    assert everything(reader) == before


def test_one_leased_task_of_a_user(writer: Writer, reader: Reader) -> None:
    tasks = [task("first"), task("second", ordinal=1), task("bens", BEN)]
    writer.commit(WriteSet(tasks=tasks))
    with pytest.raises(RaygamError):
        writer.commit(WriteSet(leases=[leased(tasks[0], "a"), leased(tasks[1], "b")]))
    assert {row.status for row in reader.tasks()} == {"open"}
    writer.commit(WriteSet(leases=[leased(tasks[0], "a"), leased(tasks[2], "b")]))
    writer.commit(WriteSet(finished=[("first", "a")], leases=[leased(tasks[1], "c")]))
    assert {row.id: row.status for row in reader.tasks()} == {"second": "leased", "bens": "leased"}


def test_tasks_come_back_in_order_with_what_befell_them(writer: Writer, reader: Reader) -> None:
    late = task("a-late", at=9, archived_until_us=55, closes_tail=True, force=False, trigger="flush")
    tasks = [late, task("c", ordinal=1), task("b", seqs=(5, 4, 2)), task("bens", BEN, at=1)]
    writer.commit(WriteSet(tasks=tasks))
    assert writer.unfinished_tasks() == [tasks[3], tasks[2], tasks[1], late]
    writer.commit(WriteSet(leases=[leased(tasks[2], "x"), leased(tasks[3], "y")]))
    writer.commit(
        WriteSet(failures=[TaskFailure("b", "x", "timeout", parks=False), TaskFailure("bens", "y", "bad", parks=True)])
    )
    assert reader.tasks() == [
        replace(tasks[3], status="parked", attempts=1, error="bad"),
        replace(tasks[2], attempts=1, error="timeout"),
        tasks[1],
        late,
    ]
    info = reader.partition_info()
    assert (info.open_tasks, info.parked_tasks) == (3, 1)
    writer.commit(WriteSet(leases=[leased(tasks[3], "z")]))  # a parked one may be tried again
    assert reader.tasks()[0].attempts == 2


def test_an_attempt_that_does_not_count_is_none(writer: Writer, reader: Reader) -> None:
    made = task("task-1")
    writer.commit(WriteSet(tasks=[made], leases=[leased(made)]))
    writer.commit(WriteSet(failures=[TaskFailure("task-1", "t1", "busy", parks=False, counts=False)]))
    assert reader.tasks() == [replace(made, error="busy")]
    for token in ("t2", "t3"):
        writer.commit(WriteSet(leases=[leased(made, token)]))
        writer.commit(WriteSet(failures=[TaskFailure("task-1", token, "broke", parks=False)]))
    writer.commit(WriteSet(leases=[leased(made, "t4")]))
    writer.commit(WriteSet(failures=[TaskFailure("task-1", "t4", "busy", parks=False, counts=False)]))
    assert reader.tasks() == [replace(made, attempts=2, error="busy")]


def test_tasks_are_parked_and_opened_again(writer: Writer, reader: Reader) -> None:
    tasks = [task("fails", at=1), task("waits", BEN, at=2), task("held", User("t", "anna"), at=3)]
    writer.commit(WriteSet(tasks=tasks, leases=[leased(tasks[0], "a"), leased(tasks[2], "b")]))
    writer.commit(WriteSet(failures=[TaskFailure("fails", "a", "broke", parks=True)]))
    writer.commit(WriteSet(parked=[("waits", "later"), ("held", "not now")]))
    fails = replace(tasks[0], status="parked", attempts=1, error="broke")
    waits = replace(tasks[1], status="parked", error="later", parked_by_person=True)
    held = replace(tasks[2], status="parked", attempts=1, error="not now", parked_by_person=True)
    assert reader.tasks() == writer.unfinished_tasks() == [fails, waits, held]
    with pytest.raises(LeaseLost):  # it was in a worker's hands
        writer.commit(WriteSet(finished=[("held", "b")]))
    writer.commit(WriteSet(parked=[("fails", "by hand")]))
    assert reader.tasks()[0] == replace(fails, error="by hand", parked_by_person=True)
    writer.commit(WriteSet(reopened=["fails", "held"]))
    assert reader.tasks() == [replace(tasks[0], error="by hand"), waits, replace(tasks[2], error="not now")]
    before = everything(reader)
    for wrong in (WriteSet(reopened=["waits", "held"]), WriteSet(reopened=["none"]), WriteSet(parked=[("none", "")])):
        with pytest.raises(RaygamError, match="fault in raygam"):
            writer.commit(wrong)  # one of them is open; there is no such task
        assert everything(reader) == before
    writer.commit(WriteSet(leases=[leased(tasks[0], "c")]))
    writer.commit(WriteSet(finished=[("fails", "c")]))
    with pytest.raises(RaygamError, match="fault in raygam"):
        writer.commit(WriteSet(parked=[("fails", "too late")]))


def call(key: str, calls: int, answer: str | None = None, **changes: Any) -> ModelCall:
    return replace(ModelCall(key, "model", "segments/1", calls, 100 * calls, 10 * calls, answer), **changes)


def test_calls_add_up_and_answers_stay_until_their_task_is_applied(writer: Writer, reader: Reader) -> None:
    mine, bens = task("task-1"), task("task-2", BEN)
    writer.commit(turns(turn(1), turn(2), tasks=[mine, bens], leases=[leased(mine), leased(bens, "t2")]))
    writer.commit(WriteSet(calls=[TaskCalls("task-1", "t1", [call("a", 2), call("b", 1, "{b — 帆}", dropped=3)])]))
    writer.commit(
        WriteSet(
            calls=[
                TaskCalls("task-1", "t1", [call("a", 1, "{a}", dropped=1), call("b", 1)]),  # b: asked in vain
                TaskCalls("task-2", "t2", [call("a", 1, "{bens}", prompt="links/1"), call("c", 1, "")]),
            ]
        )
    )
    assert reader.answers(["task-2", "task-1", "none"]) == {
        "task-1": {"a": "{a}", "b": "{b — 帆}"},
        "task-2": {"a": "{bens}", "c": ""},
    }
    assert reader.answers([]) == {}
    used = [
        ModelUsage(ANNA, "model", "segments/1", 5, 500, 50, 4),
        ModelUsage(BEN, "model", "links/1", 1, 100, 10, 0),
        ModelUsage(BEN, "model", "segments/1", 1, 100, 10, 0),
    ]
    assert reader.model_usage() == used
    writer.commit(WriteSet(failures=[TaskFailure("task-1", "t1", "broke", parks=False)]))
    assert reader.answers(["task-1"]) == {"task-1": {"a": "{a}", "b": "{b — 帆}"}}  # who thinks it again pays once
    writer.commit(WriteSet(leases=[leased(mine, "t3")]))
    writer.commit(WriteSet(calls=[TaskCalls("task-1", "t3", [call("a", 0, "{a}", dropped=1)])]))  # it was known
    writer.commit(WriteSet(finished=[("task-1", "t3")], closed=[closed("one", "task-1", 1, 2)]))
    assert reader.answers(["task-1", "task-2"]) == {"task-2": {"a": "{bens}", "c": ""}}
    assert reader.model_usage() == used


def test_calls_need_their_lease(store: Store, writer: Writer, reader: Reader) -> None:
    made = task("task-1")
    writer.commit(WriteSet(tasks=[made], leases=[leased(made)]))
    before = everything(reader)
    for token, name in (("other", "task-1"), ("t1", "none")):
        with pytest.raises(LeaseLost, match=name):
            writer.commit(WriteSet(calls=[TaskCalls(name, token, [call("a", 1, "{}")])]))
        assert everything(reader) == before
    writer.commit(WriteSet(failures=[TaskFailure("task-1", "t1", "late", parks=True)]))
    before = everything(reader)
    with pytest.raises(LeaseLost):
        writer.commit(WriteSet(calls=[TaskCalls("task-1", "t1", [call("a", 1, "{}")])]))
    store.writer(0)
    for late in (WriteSet(calls=[TaskCalls("task-1", "t1", [call("a", 1)])]), WriteSet(reopened=["task-1"])):
        with pytest.raises(Fenced):
            writer.commit(late)
    assert everything(reader)[1:] == before[1:]


def test_calls_are_of_their_partition(store: Store, writer: Writer, reader: Reader) -> None:
    other, made = store.writer(1), task("task-9", User("default", "cleo"))
    other.commit(WriteSet(tasks=[made], leases=[leased(made)]))
    other.commit(WriteSet(calls=[TaskCalls("task-9", "t1", [call("a", 1, "{}")])]))
    assert (reader.model_usage(), reader.answers(["task-9"])) == ([], {})
    assert (len(store.reader(1).model_usage()), store.reader(1).answers(["task-9"])) == (1, {"task-9": {"a": "{}"}})


def test_a_task_is_made_once(writer: Writer, reader: Reader) -> None:
    writer.commit(WriteSet(tasks=[task("task-1")]))
    with pytest.raises(RaygamError, match=r"task\.id"):
        writer.commit(WriteSet(tasks=[task("task-1")]))
    assert len(reader.tasks()) == 1
