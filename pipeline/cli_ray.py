"""The commands that use Ray, loaded only by them."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
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
    started = time.monotonic()
    runtime.open_source(path)  # a wrong path is told before Ray is started
    with _engine(state, settings, shards, workers, address) as engine, _bar() as advance:
        report = run_file(engine.cluster, path, stop=engine.stop_asked, on_progress=advance)
        told = engine.told()
    document = asdict(report) | {
        "source": str(path),
        "state": str(state),
        "seconds": round(time.monotonic() - started, 3),
        "ray": told,
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
    started = time.monotonic()
    settings = follow.fitting(settings, made=runtime.recorded_facts(state) is not None)  # wrong settings, before Ray
    with (
        _engine(state, settings, shards, workers, address) as engine,
        cli_stream.stream_display(settings.kafka_topic) as show,
    ):
        report = run_topic(
            engine.cluster,
            settings,
            to_the_end=to_the_end,
            stop=engine.stop_asked,
            on_progress=lambda progress: show(_stream_status(progress)),
        )
        told = engine.told()
    return cli_stream.finished(report, state, started, to_the_end=to_the_end, quiet=quiet, ray=told)


@dataclass(frozen=True, slots=True)
class _Started:
    """An engine on Ray, as long as a command holds it."""

    cluster: Cluster
    interruption: Interruption
    starting_seconds: float

    def stop_asked(self) -> bool:
        return self.interruption.asked

    def told(self) -> dict[str, Any]:
        """What the command's document says of it."""
        spec = self.cluster.spec
        return {
            "shards": spec.shards,
            "workers": spec.workers,
            "embedders": spec.embedders,
            "starting_seconds": round(self.starting_seconds, 3),
            "replaced": self.cluster.ask("progress").replaced,
        }


@contextmanager
def _engine(
    state: AnyState, settings: Settings, shards: int | None, workers: int | None, address: str | None
) -> Iterator[_Started]:
    """Start an engine or join it; signals ask it to stop inside the block, and it is let go of behind it."""
    interruption = Interruption(leave=_leave if address is None else None)
    started = time.monotonic()
    # Ray prints its warnings into standard output, which is for the result.
    with redirect_stdout(sys.stderr):
        with _starting("starting Ray") if address is None else interruption.watching():
            cluster = Cluster.open(state, settings, shards=shards, workers=workers, address=address)
        ready = time.monotonic()
        try:
            # Only now, or anew: Ray takes SIGTERM for itself when it starts.
            with interruption.watching():
                yield _Started(cluster, interruption, ready - started)
        finally:
            cluster.close()


def _stream_status(progress: Progress) -> StreamStatus:
    return StreamStatus(
        accepted=progress.accepted,
        lag=progress.lag,
        logs=progress.logs,
        open_tasks=progress.open_tasks,
        waits=(*progress.paused, *progress.obstacles),
        finished=progress.finished,
        unsent=progress.sending,
    )


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
