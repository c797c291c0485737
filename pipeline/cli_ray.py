"""The commands that use Ray, loaded only by them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..actors.cluster import Cluster
from ..actors.driving import run_file
from ..actors.progress import Progress
from . import cli_run, display, runtime
from .config import Settings


def run(
    path: Path,
    state: Path,
    settings: Settings,
    *,
    shards: int | None,
    workers: int | None,
    address: str | None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Stream a file into a state directory by shard actors; return what `cli_run.run` returns."""
    interruption = cli_run.Interruption()
    started = time.monotonic()
    runtime.open_source(path)  # a wrong path is told before Ray is started
    with interruption.watching():
        display.note("starting Ray" if address is None else f"joining Ray at {address}", style="dim")
        cluster = Cluster.open(state, settings, shards=shards, workers=workers, address=address)
        ready = time.monotonic()
        try:
            with _bar() as advance:
                report = run_file(cluster, path, stop=lambda: interruption.asked, on_progress=advance)
            replaced = cluster.ask("progress").replaced
        finally:
            cluster.close()
    document = asdict(report) | {
        "source": str(path),
        "state": str(state),
        "seconds": round(time.monotonic() - started, 3),
        "ray": {
            "shards": cluster.spec.shards,
            "workers": cluster.spec.workers,
            "embedders": cluster.spec.embedders,
            "starting_seconds": round(ready - started, 3),
            "replaced": replaced,
        },
    }
    document |= cli_run.state_totals(state)
    if not quiet:
        cli_run.print_summary(document)
    return document


@contextmanager
def _bar() -> Iterator[Callable[[Progress], None]]:
    """Show how far reading is, then consolidating."""
    bar = cli_run.progress_bar()
    task = bar.add_task("ingesting", total=None, detail="")

    def advance(progress: Progress) -> None:
        waiting = progress.paused or progress.obstacles
        detail = f"{progress.accepted:,} turns, {progress.open_tasks:,} tasks open"
        bar.update(
            task,
            description="consolidating" if progress.finished else "ingesting",
            completed=progress.offset,
            total=progress.size or None,
            detail=f"{detail}; waits: {waiting[0]}" if waiting else detail,
        )

    with bar:
        yield advance
