"""The commands that use Ray, loaded only by them."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..actors.cluster import Cluster
from ..actors.driving import run_file, run_topic
from ..actors.progress import Progress
from . import cli_run, cli_stream, display, follow, runtime
from .cli import EXIT_INTERRUPTED
from .config import Settings
from .follow import StreamStatus
from .interruption import Interruption
from .location import AnyState


def run(
    path: Path,
    state: AnyState,
    settings: Settings,
    *,
    shards: int | None,
    workers: int | None,
    address: str | None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Stream a file into a state by shard actors; return what `cli_run.run` returns."""
    interruption = Interruption(leave=_leave if address is None else None)
    started = time.monotonic()
    runtime.open_source(path)  # a wrong path is told before Ray is started
    # Ray prints its warnings into standard output, which is for the result.
    with redirect_stdout(sys.stderr):
        with _starting("starting Ray") if address is None else interruption.watching():
            cluster = Cluster.open(state, settings, shards=shards, workers=workers, address=address)
        ready = time.monotonic()
        try:
            # Only now, or anew: Ray takes SIGTERM for itself when it starts.
            with interruption.watching(), _bar() as advance:
                report = run_file(cluster, path, stop=lambda: interruption.asked, on_progress=advance)
            replaced = cluster.ask("progress").replaced
        finally:
            cluster.close()
    document = asdict(report) | {
        "source": str(path),
        "state": str(state),
        "seconds": round(time.monotonic() - started, 3),
        "ray": _told(cluster, ready - started, replaced),
    }
    document |= cli_run.state_totals(state)
    if not quiet:
        cli_run.print_summary(document)
    return document


def follow_topic(
    state: AnyState,
    settings: Settings,
    *,
    to_the_end: bool,
    shards: int | None,
    workers: int | None,
    address: str | None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Follow the topic by shard actors; return what `cli_stream.run` returns."""
    interruption = Interruption(leave=_leave if address is None else None)
    started = time.monotonic()
    settings = follow.fitting(settings, made=runtime.recorded_facts(state) is not None)  # wrong settings, before Ray
    with redirect_stdout(sys.stderr):
        with _starting("starting Ray") if address is None else interruption.watching():
            cluster = Cluster.open(state, settings, shards=shards, workers=workers, address=address)
        ready = time.monotonic()
        try:
            with interruption.watching(), cli_stream.stream_display(settings.kafka_topic) as show:
                report = run_topic(
                    cluster,
                    settings,
                    to_the_end=to_the_end,
                    stop=lambda: interruption.asked,
                    on_progress=lambda progress: show(_stream_status(progress)),
                )
            replaced = cluster.ask("progress").replaced
        finally:
            cluster.close()
    return cli_stream.finished(
        report, state, started, to_the_end=to_the_end, quiet=quiet, ray=_told(cluster, ready - started, replaced)
    )


def _stream_status(progress: Progress) -> StreamStatus:
    waits = (*progress.paused, *progress.obstacles)
    return StreamStatus(
        progress.accepted, progress.lag, progress.open_tasks, waits, progress.finished, progress.sending
    )


def _told(cluster: Cluster, starting_seconds: float, replaced: dict[str, int]) -> dict[str, Any]:
    return {
        "shards": cluster.spec.shards,
        "workers": cluster.spec.workers,
        "embedders": cluster.spec.embedders,
        "starting_seconds": round(starting_seconds, 3),
        "replaced": replaced,
    }


def _leave() -> None:
    """End at once: Ray's processes end with the one that started them, and what is acknowledged is durable."""
    display.errors.show_cursor()
    os.write(2, b"\nraygam: stopped\n" if display.errors.is_terminal else b"raygam: stopped\n")
    os._exit(EXIT_INTERRUPTED)


@contextmanager
def _starting(what: str) -> Iterator[None]:
    """Say that it takes a while; Ctrl-C ends it at once, since nothing is in hand yet."""
    before = signal.signal(signal.SIGINT, lambda number, frame: _leave())
    try:
        if display.errors.is_terminal:
            with display.errors.status(what):
                yield
        else:
            display.note(what, style="dim")
            yield
    finally:
        signal.signal(signal.SIGINT, before)


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
