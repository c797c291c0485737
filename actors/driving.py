"""What a driver does with an engine on Ray: have a source taken, and wait for it.

It carries no turns: shards read the source themselves.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..memory.errors import Misconfigured, Retryable
from ..memory.ports import Reader
from ..pipeline import follow, runtime
from ..pipeline.config import Settings
from ..pipeline.follow import StreamReport
from ..pipeline.jobs import FileJob, Job, TopicJob, ended_error
from ..pipeline.location import StateLocation
from ..pipeline.run import RunReport, furthest_positions
from ..pipeline.summary import gained, totals
from .cluster import Cluster
from .progress import Progress
from .supervisor import Busy

_POLL_SECONDS = 0.1
_STANDSTILL_SECONDS = 120.0


def run_file(
    cluster: Cluster,
    path: Path,
    *,
    drain: bool = True,
    stop: Callable[[], bool] = lambda: False,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> RunReport:
    """Have a file taken up to its end and consolidated.

    Args:
        cluster: the engine.
        path: the file, where the shards can read it.
        drain: wait for the workers too.
        stop: asked all the time; True ends the reading at a batch's edge.
        on_progress: told all the time.

    Raises:
        RaygamError: reading failed for good; what was taken is kept.
        Busy: the engine reads another file.
        Misconfigured: there are no workers to wait for.
        Retryable: nothing has moved for two minutes, and an error stands in the way.
    """
    if drain and not cluster.spec.workers and not cluster.joined:
        raise Misconfigured(
            "on Ray nobody consolidates without workers; give at least one (--workers, setting workers)"
        )
    source = runtime.open_source(path)
    with partition_readers(cluster.spec.state) as readers:
        infos = [reader.partition_info() for reader in readers]
        before = totals(readers)
        source_id = source.identify(furthest_positions(info.positions for info in infos))
        held = [info.positions.get(source_id) for info in infos]
        start = min((position.next_offset if position else 0 for position in held), default=0)
        chunk_bytes = cluster.spec.settings.chunk_for(cluster.spec.facts.embedder)
        job = FileJob(str(source.path.resolve()), source_id, chunk_bytes, secrets.token_hex(8))
        cluster.ask("start_job", job)
        progress, done = _wait(cluster, job, drain, stop, on_progress)
        if not done:
            cluster.ask("stop_job", source_id)
        after = totals(readers)
    return RunReport(
        offset=max(progress.offset, start),
        size=max(progress.size, source.size),
        **gained(before, after),
        started_at=start,
        incomplete_line=progress.incomplete_line,
        interrupted=not done,
    )


def run_topic(
    cluster: Cluster,
    settings: Settings,
    *,
    to_the_end: bool = False,
    stop: Callable[[], bool] = lambda: False,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> StreamReport:
    """Have a topic followed until `stop()`, or up to where it ends now and consolidated.

    Args:
        cluster: the engine.
        settings: where Kafka is and which topic; they go to the shards.
        to_the_end: stop where the topic ends now.
        stop: asked all the time; True ends the reading at a batch's edge.
        on_progress: told all the time.

    Raises:
        Misconfigured: the topic is not the one that was read before, or cannot be read.
        RaygamError: reading failed for good; what was taken is kept.
        Busy: the engine reads another source.
        Retryable: no broker answers at the beginning.
    """
    with partition_readers(cluster.spec.state) as readers:
        before = totals(readers)
        job = follow.job_for(settings, cluster.spec.facts, readers, to_the_end=to_the_end)
        cluster.ask("start_job", job)
        progress, done = _wait(cluster, job, True, stop, on_progress)
        cluster.ask("stop_job", job.source_id)
        return follow.reported(job, readers, before, logs=progress.logs, finished=done)


def _wait(
    cluster: Cluster, job: Job, drain: bool, stop: Callable[[], bool], on_progress: Callable[[Progress], None]
) -> tuple[Progress, bool]:
    moved: tuple[object, ...] = ()
    since = time.monotonic()
    own: Progress | None = None
    endless = isinstance(job, TopicJob) and job.until is None
    settings = cluster.spec.settings
    # A model that is being loaded takes its time; until then the workers say that it is away.
    patience = max(_STANDSTILL_SECONDS, settings.chat_start_seconds if settings.vllm_model is not None else 0.0)
    while True:
        progress: Progress = cluster.ask("progress")
        on_progress(progress)
        if progress.job is not None and progress.job.source_id == job.source_id:
            own = progress
            if progress.failure:
                cluster.ask("stop_job", job.source_id)
                raise ended_error(job, progress.failure, misconfigured=progress.misconfigured)
        elif own is None or not own.finished:  # every actor that knew of it has died since, or another run came between
            with suppress(Busy):
                cluster.ask("start_job", job)
        done = own is not None and own.finished and not (drain and progress.open_tasks)
        if done or stop():
            return own or progress, done
        now = (progress.offset, progress.accepted, progress.open_tasks, progress.owned)
        if now != moved:
            moved, since = now, time.monotonic()
        elif endless:  # whoever follows a topic waits for its brokers as long as it takes
            pass
        elif progress.obstacles and time.monotonic() - since > patience:
            raise Retryable(
                f"nothing has moved for {patience:g} s: {'; '.join(progress.obstacles)}. What is stored "
                "stays, and the next run goes on"
            )
        time.sleep(_POLL_SECONDS)


@contextmanager
def partition_readers(state: StateLocation) -> Iterator[list[Reader]]:
    """Readers of all partitions, beside whoever writes."""
    store = runtime.open_store(state)
    try:
        yield [store.reader(at) for at in range(store.facts.partitions)]
    finally:
        store.close()
