"""What `raygam partitions` shows: the ledger's own word on every partition."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from ..memory.errors import Misconfigured
from ..memory.identity import TOPIC_SOURCE
from . import runtime
from .config import Settings
from .location import AnyState


def partitions(state: AnyState, settings: Settings) -> dict[str, Any]:
    """Epoch, owner, positions, users and tasks of every partition; reads beside whoever writes.

    Where the settings name Kafka, also what each partition of the topic holds, and how far behind it is taken.
    """
    store = runtime.open_store(state)
    try:
        found = []
        for at in range(store.facts.partitions):
            info = store.reader(at).partition_info()
            found.append(
                {
                    "partition": at,
                    "epoch": info.epoch,
                    "opened_by": info.opened_by,
                    "users": info.users,
                    "events": info.events,
                    "open_tasks": info.open_tasks,
                    "parked_tasks": info.parked_tasks,
                    "dead_letters": info.dead_letters,
                    "unsent_messages": info.unsent_messages,
                    "positions": {
                        source: {"next_offset": position.next_offset, "name": position.name}
                        for source, position in sorted(info.positions.items())
                    },
                }
            )
    finally:
        store.close()
    document = {"state": str(state), "partitioner": store.facts.partitioner, "partitions": found}
    return document if settings.kafka_brokers is None else document | {"topic": _compared(found, settings)}


def _compared(found: list[dict[str, Any]], settings: Settings) -> dict[str, Any]:
    """Add the topic's offsets to each partition; return what the topic is."""
    from . import kafka_runtime  # the client takes half a second to load

    with kafka_runtime.open_cluster(settings) as cluster:
        facts = cluster.topic(_topic_of(found, settings))
        ranges = cluster.ranges(facts)
    for one in found:
        at = one["partition"]
        if at >= len(ranges):
            continue
        taken = one["positions"].get(facts.source_id, {}).get("next_offset")
        begins, ends = ranges[at].beginning, ranges[at].end
        one["kafka"] = {
            "beginning": begins,
            "end": ends,
            "offset": taken,
            "lag": max(0, ends - (begins if taken is None else taken)),
        }
    return {"name": facts.name, "source": facts.source_id, "partitions": facts.partitions}


def _topic_of(found: list[dict[str, Any]], settings: Settings) -> str:
    """The topic that the settings name, else the one that the state has read.

    Raises:
        Misconfigured: it has read several, and none is named.
    """
    if "kafka_topic" in settings.model_fields_set:
        return settings.kafka_topic
    held = [position for one in found for position in one["positions"].items()]
    read = sorted({place["name"] for source, place in held if source.startswith(TOPIC_SOURCE)})
    if len(read) > 1:
        raise Misconfigured(f"the state has read the topics {', '.join(read)}; name one with --topic")
    return read[0] if read else settings.kafka_topic


def partitions_table(document: dict[str, Any]) -> Table:
    """One row a partition."""
    topic = document.get("topic")
    beside = f", beside topic {topic['name']}" if topic else ""
    table = Table(title=f"{len(document['partitions'])} partitions, placed by {document['partitioner']}{beside}")
    for name in ("partition", "epoch", "users", "turns", "open tasks", "parked", "dead letters", "unsent"):
        table.add_column(name, justify="right")
    if topic:
        table.add_column("topic ends at", justify="right")
        table.add_column("lag", justify="right")
    table.add_column("sources")
    table.add_column("last opened by")
    for one in document["partitions"]:
        sources = [f"{held['name'] or source} @ {held['next_offset']:,}" for source, held in one["positions"].items()]
        numbers = [
            one[name]
            for name in (
                *("partition", "epoch", "users", "events"),
                *("open_tasks", "parked_tasks", "dead_letters", "unsent_messages"),
            )
        ]
        held = one.get("kafka")
        lag = [f"{held['end']:,}", f"{held['lag']:,}"] if held else ["–", "–"] if topic else []
        table.add_row(*(f"{number:,}" for number in numbers), *lag, "\n".join(sources), one["opened_by"])
    return table
