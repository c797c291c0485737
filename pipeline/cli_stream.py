"""What `raygam run --kafka` does: follow a topic until it is stopped, or up to its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from rich.text import Text

from ..memory.errors import Retryable
from . import cli_run, display, follow, runtime
from .config import Settings
from .follow import StreamReport, StreamStatus
from .interruption import Interruption
from .jobs import TopicJob, ended_error
from .local import LocalEngine
from .location import AnyState
from .summary import totals

_POLL_SECONDS = 0.1
_LINE_SECONDS = 10.0
"""Where nobody watches a terminal, a log gets a line so often."""


def run(state: AnyState, settings: Settings, *, to_the_end: bool, quiet: bool = False) -> dict[str, Any]:
    """Follow the topic into a state in this process; return what was done and what is there now."""
    runtime.tune_collector()
    interruption = Interruption()
    started = time.monotonic()
    with interruption.watching():
        settings = follow.fitting(settings, made=runtime.recorded_facts(state) is not None)
        engine = runtime.open_local(state, settings)
        try:
            with stream_display(settings.kafka_topic) as advance:
                report = _follow(engine, settings, to_the_end, lambda: interruption.asked, advance)
        finally:
            engine.close()
    return finished(report, state, started, to_the_end=to_the_end, quiet=quiet)


def finished(
    report: StreamReport, state: AnyState, started: float, *, to_the_end: bool, quiet: bool, **more: Any
) -> dict[str, Any]:
    """The document of a run that is over; says what it did, unless `quiet`."""
    document = asdict(report) | {
        "interrupted": to_the_end and not report.finished,  # what has no end is only ever stopped
        "state": str(state),
        "seconds": round(time.monotonic() - started, 3),
    }
    document |= more | cli_run.state_totals(state)
    if not quiet:
        cli_run.print_summary(document)
        if report.lag:
            display.note(f"{report.lag:,} records are still to be taken; the same command goes on from here")
    return document


def _follow(
    engine: LocalEngine,
    settings: Settings,
    to_the_end: bool,
    stop: Callable[[], bool],
    on_progress: Callable[[StreamStatus], None],
) -> StreamReport:
    before = totals(engine.readers)
    job = follow.job_for(settings, engine.facts, engine.readers, to_the_end=to_the_end)
    engine.host.read(job)
    status = StreamStatus()
    while True:
        try:
            status = _status(engine, job)
        except Retryable as error:  # the state's database is away: the feed waits for it, and so does this
            status = replace(status, waits=(str(error),), finished=False)
        on_progress(status)
        done = status.finished and not status.open_tasks
        if done or stop():
            engine.host.stop_reading()
            return follow.reported(job, engine.readers, before, logs=status.logs, finished=done)
        time.sleep(_POLL_SECONDS)


def _status(engine: LocalEngine, job: TopicJob) -> StreamStatus:
    host = engine.host.status()
    for feed in host.feeds:
        if feed.failure:
            raise ended_error(job, feed.failure, misconfigured=feed.misconfigured)
    waits = [feed.paused or feed.obstacle for feed in host.feeds]
    return StreamStatus(
        accepted=sum(feed.accepted for feed in host.feeds),
        lag=sum(sum(feed.lag.values()) for feed in host.feeds),
        logs={at: log for feed in host.feeds for at, log in feed.logs.items()},
        open_tasks=sum(held.open_tasks for held in host.partitions.values()),
        waits=tuple(filter(None, [*waits, *engine.obstacles()])),
        finished=bool(host.feeds) and all(feed.flushed and feed.ended for feed in host.feeds),
        unsent=host.sending,
    )


@contextmanager
def stream_display(topic: str) -> Iterator[Callable[[StreamStatus], None]]:
    """Show a stream's status: a line that changes on a terminal, else a line of the log every ten seconds."""
    if display.errors.is_terminal:
        with display.errors.status(f"opening topic {topic}") as line:
            yield lambda status: line.update(Text(display.shown(_told(topic, status))))
        return
    shown_at = float("-inf")
    told: Sequence[Sequence[str]] = ()

    def advance(status: StreamStatus) -> None:
        nonlocal shown_at, told
        if time.monotonic() - shown_at >= _LINE_SECONDS or (status.waits, status.unsent) != told:
            shown_at, told = time.monotonic(), (status.waits, status.unsent)
            display.note(_told(topic, status), style="dim")

    yield advance


def _told(topic: str, status: StreamStatus) -> str:
    line = f"topic {topic}: {status.accepted:,} turns, {status.lag:,} records behind, {status.open_tasks:,} tasks open"
    line += f"; waits: {status.waits[0]}" if status.waits else ""
    return f"{line}; {status.unsent[0]}" if status.unsent else line
