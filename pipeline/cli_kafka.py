"""What `raygam produce` and `raygam topics` do."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from . import display, kafka_runtime, runtime
from .cli_run import progress_bar
from .config import Settings
from .interruption import Interruption
from .produce import ProduceReport
from .produce import produce as send_all
from .routing import Routing


def produce(path: Path, settings: Settings, *, quiet: bool = False) -> dict[str, Any]:
    """Send a file's records into the topic; return what was sent."""
    started = time.monotonic()
    interruption = Interruption()
    source = runtime.open_source(path)
    with kafka_runtime.open_cluster(settings) as cluster:
        facts = cluster.topic(settings.kafka_topic)
    routing = Routing(facts.partitions, settings.partitioner)
    with interruption.watching(), progress_bar() as bar:
        task = bar.add_task("sending", total=source.size, detail="")

        def advance(report: ProduceReport) -> None:
            bar.update(task, completed=report.offset, total=report.size, detail=f"{report.sent:,} records")

        producer = kafka_runtime.open_producer(settings)
        try:
            report = send_all(
                source,
                producer,
                routing,
                max_record_bytes=settings.max_record_bytes,
                stop=lambda: interruption.asked,
                on_progress=advance,
            )
        finally:
            producer.close()
    document = asdict(report) | {
        "source": str(path),
        "topic": facts.name,
        "topic_id": facts.topic_id,
        "partitions": facts.partitions,
        "partitioner": settings.partitioner,
        "seconds": round(time.monotonic() - started, 3),
    }
    if not quiet:
        _print_sent(document)
    return document


def _print_sent(document: dict[str, Any]) -> None:
    display.output.print(
        f"{document['sent']:,} records are in topic {document['topic']} ({document['partitions']} partitions by "
        f"{document['partitioner']}), in {document['seconds']:.1f} s",
        highlight=False,
        markup=False,
    )
    if document["without_owner"]:
        display.note(f"{document['without_owner']:,} of them name no user, and will be dead letters")
    if document["too_large"]:
        places = ", ".join(map(str, document["too_large_at"]))
        display.note(f"{document['too_large']:,} were not sent: larger than max_record_bytes (at bytes {places})")
    if document["incomplete_line"] is not None:
        display.note(f"the last line (at byte {document['incomplete_line']}) is not complete, and was not sent")
    if document["interrupted"]:
        display.note(
            f"stopped at byte {document['offset']:,} of {document['size']:,}; the same command sends all of it again, "
            "which changes no memory: a message_id that is known is passed over"
        )


def create_topic(settings: Settings, partitions: int, replicas: int | None) -> dict[str, Any]:
    """Make the topic, and the one for its dead letters; return what they are."""
    name = settings.kafka_topic
    with kafka_runtime.open_cluster(settings) as cluster:
        made = asdict(cluster.create(name, partitions, replicas))
        if settings.kafka_dead_letters and not name.endswith(kafka_runtime.DEAD):
            made["dead_letters"] = asdict(cluster.create_missing(name + kafka_runtime.DEAD, partitions, replicas))
        return made


def show_topic(settings: Settings) -> dict[str, Any]:
    """What the topic is, and what each partition's log holds."""
    with kafka_runtime.open_cluster(settings) as cluster:
        facts = cluster.topic(settings.kafka_topic)
        return asdict(facts) | {"source": facts.source_id, "offsets": [asdict(held) for held in cluster.ranges(facts)]}


def topic_view(found: dict[str, Any]) -> RenderableType:
    """A topic as a person reads it."""
    table = Table()
    for name in ("partition", "begins at", "ends at", "records at most"):
        table.add_column(name, justify="right")
    for at, held in enumerate(found["offsets"]):
        begin, end = held["beginning"], held["end"]
        table.add_row(str(at), f"{begin:,}", f"{end:,}", f"{end - begin:,}")
    lines = [f"topic {found['name']}, id {found['topic_id']}, replication {found['replicas']}"]
    if not found["readable"]:
        lines.append("this user has no right to read it")
    if found["leaderless"]:
        lines.append(f"nobody serves partitions {', '.join(map(str, found['leaderless']))} at the moment")
    return Group(*(Text(line) for line in lines), table)
