"""What `raygam run` does: progress, Ctrl-C, and the summary behind it."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from . import display, runtime
from .config import Settings
from .engine import Engine
from .interruption import Interruption
from .location import AnyState
from .run import RunReport, run_source
from .summary import totals, user_counts

_USERS_SHOWN = 20


class _Stopped(Exception):
    """Leaves the wait for the workers."""


def run(path: Path, state: AnyState, settings: Settings, *, quiet: bool = False) -> dict[str, Any]:
    """Stream a file into a state; return what was done and what is there now."""
    runtime.tune_collector()
    interruption = Interruption()
    started = time.monotonic()
    source = runtime.open_source(path)
    with interruption.watching():
        engine = runtime.open_engine(state, settings)
        try:
            report = _stream(engine, source, settings, interruption)
            drained = _drain(engine, interruption) if not report.interrupted else False
        finally:
            engine.close()
    document = asdict(report) | {
        "interrupted": not drained,
        "source": str(path),
        "state": str(state),
        "seconds": round(time.monotonic() - started, 3),
    }
    document |= state_totals(state)
    if not quiet:
        print_summary(document)
    return document


def _stream(engine: Engine, source: Any, settings: Settings, interruption: Interruption) -> RunReport:
    with progress_bar() as bar:
        task = bar.add_task("ingesting", total=source.size, detail="")

        def advance(report: RunReport) -> None:
            bar.update(
                task,
                completed=report.offset,
                total=report.size,
                detail=f"{report.accepted:,} turns, {engine.open_tasks():,} tasks open",
            )

        return run_source(
            engine,
            source,
            chunk_bytes=settings.chunk_for(engine.models.embedder.name),
            stop=lambda: interruption.asked,
            on_progress=advance,
        )


def _drain(engine: Engine, interruption: Interruption) -> bool:
    """Wait for the workers; False if a person stopped it."""
    with Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed} of {task.total} tasks"),
        TimeElapsedColumn(), console=display.errors, transient=True,
    ) as bar:  # fmt: skip
        total = engine.open_tasks()
        task = bar.add_task("consolidating", total=total)

        def advance(left: int) -> None:
            nonlocal total
            if interruption.asked:
                raise _Stopped
            total = max(total, left)
            bar.update(task, completed=total - left, total=total)

        try:
            engine.drain(advance)
        except _Stopped:
            return False
    return True


def progress_bar() -> Progress:
    """A bar over a source's bytes, on standard error."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[detail]}"),
        TimeElapsedColumn(),
        console=display.errors,
        transient=True,
    )


def state_totals(state: AnyState) -> dict[str, Any]:
    """What a state holds in all, and of its largest users."""
    store = runtime.open_store(state)
    try:
        readers = [store.reader(at) for at in range(store.facts.partitions)]
        try:
            rows = [(reader, row) for reader in readers for row in reader.users()]
            rows.sort(key=lambda item: (-item[1].events, item[1].user))
            return {
                "totals": totals(readers),
                "users": [user_counts(reader, row) for reader, row in rows[:_USERS_SHOWN]],
            }
        finally:
            for reader in readers:
                reader.close()
    finally:
        store.close()


def print_summary(document: dict[str, Any]) -> None:
    """Say what a run did and what is there now."""
    total = document["totals"]
    if document["users"]:
        shown = len(document["users"])
        title = "what was built" if shown == total["users"] else f"what was built: {shown} of {total['users']} users"
        display.output.print(display.users_table(display.shown(document["users"]), title))
    line = (
        f"{document['accepted']:,} new turns, {document['duplicates']:,} duplicates, "
        f"{document['dead_letters']:,} dead letters in {document['seconds']:.1f} s"
    )
    display.output.print(line, highlight=False)
    if document.get("incomplete_line") is not None:  # only files have one
        display.note(f"the last line (at byte {document['incomplete_line']}) is not complete; it is read once it is")
    if total["dead_letters"]:
        display.note(f"{total['dead_letters']:,} dead letters in all: raygam dead-letters --state {document['state']}")
    if total["parked_tasks"]:
        display.note(f"{total['parked_tasks']:,} tasks are parked; `raygam show USER` names the error")
    if document["interrupted"]:
        display.note("stopped before the end; the same command goes on from here")
