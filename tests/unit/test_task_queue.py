"""First in first out per user, one lease at a time; leases end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raygam.memory.errors import LeaseLost
from raygam.memory.model import User
from raygam.memory.writes import LeasedTask, TaskRow, TaskStatus
from raygam.pipeline.task_queue import AllBut, TaskQueue


def task(name: str, user: str = "u", position: int = 1, ordinal: int = 0) -> TaskRow:
    return TaskRow(name, User("t", user), "s", "flush", True, False, (1,), position, ordinal, None)


def lease(queue: TaskQueue, until_us: int = 100) -> LeasedTask:
    (chosen,) = queue.claimable(1)
    leased = LeasedTask(replace(chosen, status=TaskStatus.LEASED, attempts=1), f"token-{chosen.id}", until_us)
    queue.lease(leased)
    return leased


def test_a_users_tasks_come_one_by_one_in_order() -> None:
    queue = TaskQueue([task("b", position=2), task("a2", ordinal=1), task("a1")])
    taken = []
    while queue.claimable(9):
        assert len(queue.claimable(9)) == 1
        leased = lease(queue)
        assert queue.claimable(9) == []
        taken.append(leased.task.id)
        queue.finish(leased.task)
    assert taken == ["a1", "a2", "b"]


def test_users_do_not_wait_for_each_other() -> None:
    queue = TaskQueue([task("a", "u"), task("b", "v")])
    assert [chosen.id for chosen in queue.claimable(9)] == ["a", "b"]
    assert len(queue.claimable(1)) == 1


def test_an_expired_lease_is_lost_and_its_task_comes_again() -> None:
    queue = TaskQueue([task("a")])
    leased = lease(queue, until_us=100)
    assert queue.held("a", leased.token, 99).id == "a"
    with pytest.raises(LeaseLost):
        queue.held("a", leased.token, 100)
    assert (queue.expired(99), queue.expired(100)) == ([], [leased])
    queue.give_back(leased.task, "too slow", parks=False)
    assert [chosen.id for chosen in queue.claimable(1)] == ["a"]
    with pytest.raises(LeaseLost):
        queue.held("a", leased.token, 0)
    assert queue.expired(100) == []


def test_another_token_is_refused() -> None:
    queue = TaskQueue([task("a")])
    lease(queue)
    with pytest.raises(LeaseLost):
        queue.held("a", "token-b", 0)


def test_a_parked_task_holds_its_user_back_and_nobody_else() -> None:
    queue = TaskQueue([task("a", "u"), task("a2", "u", position=2), task("b", "v")])
    leased = lease(queue)
    queue.give_back(leased.task, "broke", parks=True)
    assert [chosen.id for chosen in queue.claimable(9)] == ["b"]
    assert queue.blocked_by_parking() == 2
    assert queue.counts() == (2, 1)


def test_leases_of_an_earlier_epoch_count_as_open() -> None:
    queue = TaskQueue([replace(task("a"), status=TaskStatus.LEASED, attempts=3)])
    (chosen,) = queue.claimable(1)
    assert (chosen.status, chosen.attempts) == (TaskStatus.OPEN, 3)


def test_leases_that_the_ledger_knows_too_outlive_a_failed_commit() -> None:
    before = TaskQueue([task("a", "u"), task("b", "v"), task("c", "w"), task("d", "x")])
    kept, given_back, finished, _ = (lease(before) for _ in range(4))
    ledger = [kept.task, replace(given_back.task, status=TaskStatus.OPEN), replace(task("d", "x"), attempts=7)]
    queue = TaskQueue(ledger, before)
    assert queue.held("a", kept.token, 50) == kept.task
    for lost in (given_back, finished):
        with pytest.raises(LeaseLost):
            queue.held(lost.task.id, lost.token, 50)
    assert [chosen.id for chosen in queue.claimable(9)] == ["b", "d"]


def test_all_but_some_tenants() -> None:
    queue = TaskQueue([replace(task(tenant, "u"), user=User(tenant, "u")) for tenant in ("t", "quiet")])
    assert [chosen.id for chosen in queue.claimable(9, AllBut(frozenset({"quiet"})))] == ["quiet"]


def test_barred_tenants_are_passed_over_and_keep_their_places() -> None:
    tasks = [replace(task(name), user=User(tenant, name)) for tenant, name in ("xa", "yb", "xc", "zd")]
    queue = TaskQueue(tasks)
    assert [chosen.id for chosen in queue.claimable(1, frozenset("x"))] == ["b"]
    assert [chosen.id for chosen in queue.claimable(9, frozenset("xy"))] == ["d"]
    assert queue.claimable(9, frozenset("xyz")) == []
    assert [chosen.id for chosen in queue.claimable(3)] == ["a", "b", "c"]


def test_users_take_turns() -> None:
    queue = TaskQueue([task(f"{user}{at}", user, position=at) for user in "ab" for at in (1, 2)])
    taken = []
    for _ in range(3):
        leased = lease(queue)
        taken.append(leased.task.id)
        queue.give_back(replace(leased.task, attempts=0), "nobody could do it", parks=False)
    assert taken == ["a1", "b1", "a1"]
    assert [chosen.attempts for chosen in queue.claimable(2)] == [0, 0]


def test_whom_the_next_opening_tries_again() -> None:
    failed, held = (replace(task(name, name), status=TaskStatus.PARKED, attempts=5) for name in "ab")
    held = replace(held, parked_by_person=True)
    queue = TaskQueue([failed, held, task("c", "c")])
    assert queue.parked_by_failure() == [failed]
    assert [chosen.id for chosen in queue.claimable(9)] == ["c"]


def test_a_person_parks_a_task_that_a_worker_has_and_opens_it_again() -> None:
    queue = TaskQueue([task("a", "u"), task("a2", "u", position=2), task("b", "v")])
    leased = lease(queue)
    assert [found.id for found in queue.named(("a2", "a", "none"))] == ["a", "a2"]
    queue.park(leased.task, "looked into")
    with pytest.raises(LeaseLost):
        queue.held("a", leased.token, 0)
    assert (queue.leased_count(), queue.holders(), queue.blocked_by_parking()) == (0, set(), 2)
    assert [chosen.id for chosen in queue.claimable(9)] == ["b"]
    (parked,) = queue.named(("a",))
    queue.reopen(parked)
    assert {chosen.id: chosen.attempts for chosen in queue.claimable(9)} == {"b": 0, "a": 0}
    assert queue.blocked_by_parking() == 0
