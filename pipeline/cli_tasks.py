"""The commands about the slow path's tasks: `raygam tasks list | retry | park`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ..memory.errors import Misconfigured, Rejected, StateLocked
from ..memory.model import DEFAULT_TENANT
from ..memory.ports import Reader
from ..memory.writes import TaskChange, TaskRow, TaskStatus, WriteSet
from . import cli_engine, cli_read, display, runtime
from .cli_state import State
from .location import AnyState
from .whereabouts import this_process

tasks = typer.Typer(
    help="List tasks of the slow path that are not done, try parked ones again, put some aside.", no_args_is_help=True
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
OfUser = Annotated[str | None, typer.Option("--user", help="Only tasks of this user.")]
OfTenant = Annotated[
    str | None, typer.Option("--tenant", help="Only tasks of this tenant; with --user, whose it is (default: default).")
]
Address = Annotated[
    str | None,
    typer.Option("--address", help="The Ray cluster of an engine that runs, `auto` to find it; default: none runs."),
]
OfPartition = Annotated[int | None, typer.Option("--partition", min=0, help="Only tasks of this partition.")]


_Change = Callable[[int, TaskChange], list[str]]
"""Changes tasks of a partition; returns the ids of those that stand so now."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which tasks are meant; what is None excludes none."""

    user: str | None = None
    tenant: str | None = None
    partition: int | None = None
    status: str | None = None

    def has(self, partition: int, task: TaskRow) -> bool:
        """Whether a task is one of them."""
        tenant = self.tenant if self.tenant is not None or self.user is None else DEFAULT_TENANT
        return (
            self.user in (None, task.user.user_id)
            and tenant in (None, task.user.tenant)
            and self.partition in (None, partition)
            and self.status in (None, task.status)
        )


@tasks.command("list")
def list_tasks(
    state: State,
    user: OfUser = None,
    tenant: OfTenant = None,
    partition: OfPartition = None,
    status: Annotated[str | None, typer.Option("--status", help="open, leased or parked.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Show at most this many.")] = 100,
    as_json: Json = False,
) -> None:
    """List tasks that are not done: whose, why they were made, how they stand, and what was in their way."""
    found = listed(state, Wanted(user, tenant, partition, status), limit)
    if as_json:
        display.print_json(found)
        return
    display.output.print(_table(display.shown(found["tasks"]), found["total"]))
    if found["total"] > len(found["tasks"]):
        display.note(f"showing {len(found['tasks'])} of {found['total']}; use --limit for more")


@tasks.command()
def retry(
    state: State,
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Parked tasks.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All parked tasks, or those that the options choose.")] = False,
    user: OfUser = None,
    tenant: OfTenant = None,
    partition: OfPartition = None,
    address: Address = None,
    as_json: Json = False,
) -> None:
    """Open parked tasks again, as if they had never been tried. The engine works on them that runs, or the next one."""
    wanted = Wanted(user, tenant, partition)
    if bool(ids) == every or (ids and wanted != Wanted()):
        raise typer.BadParameter(
            "name tasks by their ids, or give --all, with --user, --tenant, --partition if need be"
        )
    found = retried(state, ids or [], wanted, address)
    if as_json:
        display.print_json(found)
    else:
        display.output.print(f"{len(found['retried']):,} tasks are open again", highlight=False)


@tasks.command()
def park(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Tasks that are not done.")],
    state: State,
    reason: Annotated[str, typer.Option("--reason", help="Why, for whoever lists them.")] = "put aside by a person",
    address: Address = None,
    as_json: Json = False,
) -> None:
    """Put tasks aside until they are retried, whatever engine runs meanwhile; later tasks of their users wait.

    Their turns stay searchable.
    """
    found = parked(state, ids, reason, address)
    if as_json:
        display.print_json(found)
    else:
        display.output.print(f"{len(found['parked']):,} tasks are parked", highlight=False)


def listed(state: AnyState, wanted: Wanted, limit: int) -> dict[str, Any]:
    """Unfinished tasks, by partition and position; reads beside whoever writes.

    Raises:
        Misconfigured: there is no state, or no such status.
    """
    statuses = [str(status) for status in TaskStatus if status is not TaskStatus.DONE]
    if wanted.status is not None and wanted.status not in statuses:
        raise Misconfigured(f"no task is {wanted.status!r}; a task that is not done is {', '.join(statuses)}")
    with cli_read.opened(state) as (_, readers):
        found = [_document(at, task) for at, task in _unfinished(readers) if wanted.has(at, task)]
    return {"total": len(found), "tasks": found[:limit]}


def retried(state: AnyState, ids: Sequence[str], wanted: Wanted, address: str | None = None) -> dict[str, Any]:
    """Open parked tasks again: the named ones, or without any all that are wanted.

    Args:
        state: where they are.
        ids: of the tasks, or how they begin.
        wanted: which, if none is named.
        address: of the Ray cluster whose engine has the state; None where no engine does.

    Raises:
        StateLocked: an engine has the state, and no address says where it is.
        Rejected: no task has this id, several have, or it is not parked.
        Misconfigured: there is no state.
    """

    def choose(unfinished: list[tuple[int, TaskRow]]) -> list[tuple[int, TaskRow]]:
        if not ids:
            return [(at, task) for at, task in unfinished if wanted.has(at, task) and task.status == TaskStatus.PARKED]
        chosen = _named(unfinished, ids)
        for _, task in chosen:
            if task.status != TaskStatus.PARKED:
                raise Rejected(f"task {task.id} is {task.status}, not parked; `raygam tasks list` shows which are")
        return chosen

    done = _changed(state, choose, None, address)
    return {"retried": done, "state": str(state)}


def parked(state: AnyState, ids: Sequence[str], reason: str, address: str | None = None) -> dict[str, Any]:
    """Put tasks aside for a reason; one that failed and was parked stays so too from then on.

    Arguments and errors are those of `retried`.
    """
    done = _changed(state, lambda unfinished: _named(unfinished, ids), reason, address)
    return {"parked": done, "state": str(state)}


def _changed(
    state: AnyState,
    choose: Callable[[list[tuple[int, TaskRow]]], list[tuple[int, TaskRow]]],
    parks: str | None,
    address: str | None,
) -> list[str]:
    """Make the change to the chosen tasks, a transaction a partition; return the ids of those that it came to."""
    with _opened(state, address) as (readers, change):
        chosen = choose(list(_unfinished(readers)))
        done: list[str] = []
        for partition in sorted({at for at, _ in chosen}):
            ids = tuple(task.id for at, task in chosen if at == partition)
            done += change(partition, TaskChange(ids, parks))
        return [task.id for _, task in chosen if task.id in done]


@contextmanager
def _opened(state: AnyState, address: str | None) -> Iterator[tuple[list[Reader], _Change]]:
    """Readers of the partitions, and how their tasks are changed: by the engine that runs, or in the ledger itself."""
    if address is not None:
        with cli_engine.running(state, address) as engine, cli_read.opened(state) as (_, readers):
            yield readers, engine.change_tasks
        return
    try:
        store = runtime.open_made(state)
    except StateLocked as error:
        raise StateLocked(
            f"{error}. If it is an engine on Ray, say where (--address, `auto` finds it); else tasks are retried and parked "
            "where no engine runs: end it (Ctrl-C), do it, then start it again: it goes on from where it stood"
        ) from None

    def change(partition: int, change: TaskChange) -> list[str]:
        ids, why = change.ids, change.parks
        write = WriteSet(reopened=list(ids)) if why is None else WriteSet(parked=[(id_, why) for id_ in ids])
        store.writer(partition, this_process("raygam tasks")).commit(write)
        return list(ids)

    try:
        yield [store.reader(at) for at in range(store.facts.partitions)], change
    finally:
        store.close()


def _unfinished(readers: Sequence[Reader]) -> Iterator[tuple[int, TaskRow]]:
    return ((at, task) for at, reader in enumerate(readers) for task in reader.tasks())


def _named(unfinished: Sequence[tuple[int, TaskRow]], ids: Sequence[str]) -> list[tuple[int, TaskRow]]:
    """The tasks with these ids, or whose ids begin so."""
    chosen: dict[str, tuple[int, TaskRow]] = {}
    for name in ids:
        found = [(at, task) for at, task in unfinished if name and task.id.startswith(name)]
        if len(found) != 1:
            how = (
                "no task that is not done has an id that begins"
                if not found
                else f"{len(found)} tasks have ids that begin"
            )
            raise Rejected(f"{how} with {name!r}; `raygam tasks list` shows the ids")
        chosen[found[0][1].id] = found[0]
    return list(chosen.values())


def _document(partition: int, task: TaskRow) -> dict[str, Any]:
    return {
        "id": task.id,
        "partition": partition,
        "tenant": task.user.tenant,
        "user_id": task.user.user_id,
        "session_id": task.session_id,
        "trigger": str(task.trigger),
        "status": str(task.status),
        "parked_by_person": task.parked_by_person,
        "attempts": task.attempts,
        "turns": len(task.seqs),
        "position": task.position_seq,
        "reason": task.error,
    }


def _table(found: Sequence[dict[str, Any]], total: int) -> RenderableType:
    """One row a task, with as much of its id as tells it from others; below, each reason once."""
    table = Table(title=f"{total} tasks", title_justify="left")
    table.add_column("id", no_wrap=True)
    table.add_column("user", overflow="fold")
    for name in ("trigger", "status"):
        table.add_column(name)
    for name in ("attempts", "turns", "position"):
        table.add_column(name, justify="right", no_wrap=True)
    reasons: dict[str, list[str]] = {}
    for task in found:
        tenant = "" if task["tenant"] == DEFAULT_TENANT else f" (tenant {task['tenant']})"
        table.add_row(
            task["id"][:12],
            escape(task["user_id"] + tenant),
            task["trigger"],
            task["status"] + (" by a person" if task["parked_by_person"] else ""),
            *(f"{task[name]:,}" for name in ("attempts", "turns")),
            f"{task['partition']}:{task['position']}",
        )
        if task["reason"]:
            reasons.setdefault(task["reason"], []).append(task["id"][:12])
    return Group(table, *(Text(f"{_some(ids)}: {reason}") for reason, ids in reasons.items()))


def _some(ids: Sequence[str]) -> str:
    return f"{', '.join(ids[:3])}{f' and {len(ids) - 3} more' if len(ids) > 3 else ''}"
