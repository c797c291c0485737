"""The statements about tasks: who has them, what became of them, what chat models were asked for them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Integer, Text, bindparam, func, literal_column, select, update

from .dialect import Dialect
from .schema import model_call, owner, task

_OPEN: ColumnElement[str] = literal_column("'open'")
_DONE: ColumnElement[str] = literal_column("'done'")
_LEASED: ColumnElement[str] = literal_column("'leased'")
_PARKED: ColumnElement[str] = literal_column("'parked'")
_NULL: ColumnElement[Any] = literal_column("NULL")
_NONE: ColumnElement[int] = literal_column("0", Integer)
_ONE: ColumnElement[int] = literal_column("1", Integer)
_WHOLE = BigInteger()


class TaskStatements:
    """A part of `Statements`."""

    def __init__(self, dialect: Dialect) -> None:
        self._leases(dialect)
        self._parking(dialect)
        self._model_calls(dialect)

    def _leases(self, dialect: Dialect) -> None:
        """What workers are given, and what became of it."""
        self.INSERT_TASK = dialect.insert(task)
        held = (task.c.id == bindparam("task_id"), task.c.token == bindparam("held_token"), task.c.status == _LEASED)
        self.HELD_TASK = dialect.one(select(task.c.owner).where(*held), "task_id", "held_token")
        done = (task.c.id == bindparam("task_id"), task.c.status == _DONE)
        self.DONE_TASK = dialect.one(select(task.c.owner).where(*done), "task_id")
        self.FINISH_TASK = dialect.one(
            update(task).values(status=_DONE, error=_NULL, token=_NULL, lease_until_us=_NULL).where(*held),
            *("task_id", "held_token"),
        )
        self.GIVE_BACK_TASK = dialect.one(
            update(task)
            .values(
                status=bindparam("next_status"),
                attempts=task.c.attempts - bindparam("uncounted", type_=Integer()),
                error=bindparam("why"),
                token=_NULL,
                lease_until_us=_NULL,
            )
            .where(*held),
            *("next_status", "uncounted", "why", "task_id", "held_token"),
        )
        self.LEASE_TASK = dialect.one(
            update(task)
            .values(
                status=_LEASED,
                attempts=task.c.attempts + _ONE,
                token=bindparam("new_token"),
                lease_until_us=bindparam("until_us"),
            )
            .where(task.c.id == bindparam("task_id"), task.c.status != _DONE),
            *("new_token", "until_us", "task_id"),
        )
        unfinished = select(
            owner.c.tenant,
            owner.c.user_id,
            task.c.id,
            task.c.session_id,
            task.c.trigger,
            task.c.closes_tail,
            task.c.force,
            task.c.seqs,
            task.c.position_seq,
            task.c.ordinal,
            task.c.archived_until_us,
            task.c.status,
            task.c.attempts,
            task.c.error,
            task.c.parked_by_person,
        )
        self.UNFINISHED_TASKS = dialect.one(
            unfinished.join(owner, owner.c.owner == task.c.owner)
            .where(task.c.status != _DONE, *dialect.is_here(task.c.owner))
            .order_by(task.c.position_seq, task.c.ordinal),
            *dialect.owners_here,
        )

    def _parking(self, dialect: Dialect) -> None:
        """Tasks put aside, and taken up again from their first attempt."""
        self.REOPEN_TASK_MANY = dialect.many(
            lambda given: (
                update(task)
                .values(status=_OPEN, attempts=_NONE, parked_by_person=_NONE)
                .where(task.c.id == given("task_id"), task.c.status == _PARKED)
            ),
            task_id=Text(),
        )
        self.PARK_TASK_MANY = dialect.many(
            lambda given: (
                update(task)
                .values(status=_PARKED, error=given("why"), token=_NULL, lease_until_us=_NULL, parked_by_person=_ONE)
                .where(task.c.id == given("task_id"), task.c.status != _DONE)
            ),
            why=Text(),
            task_id=Text(),
        )

    def _model_calls(self, dialect: Dialect) -> None:
        """Calls add up; of answers the last one taken stays, until its task is applied."""
        counted = tuple(column.name for column in model_call.columns if column.name != "answer")
        self.INSERT_MODEL_CALL = dialect.insert_new(model_call, counted, (model_call.c.task_id, model_call.c.key))
        self.ADD_TO_MODEL_CALL_MANY = dialect.many(
            lambda given: (
                update(model_call)
                .values(
                    calls=model_call.c.calls + given("more_calls"),
                    prompt_tokens=model_call.c.prompt_tokens + given("more_prompt"),
                    completion_tokens=model_call.c.completion_tokens + given("more_completion"),
                    dropped=func.coalesce(given("now_dropped"), model_call.c.dropped),
                    answer=func.coalesce(given("taken"), model_call.c.answer),
                )
                .where(model_call.c.task_id == given("of_task"), model_call.c.key == given("of_key"))
            ),
            more_calls=_WHOLE,
            more_prompt=_WHOLE,
            more_completion=_WHOLE,
            now_dropped=_WHOLE,
            taken=Text(),
            of_task=Text(),
            of_key=Text(),
        )
        applied = dialect.listed("applied")
        self.FORGET_ANSWERS = dialect.one(
            update(model_call)
            .values(answer=_NULL)
            .where(model_call.c.task_id.in_(select(applied.text).scalar_subquery()), model_call.c.answer.is_not(_NULL)),
            "applied",
        )
