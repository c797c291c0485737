"""What `raygam partitions` shows: the ledger's own word on every partition."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

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


_NUMBERS = {
    **{"partition": "part", "epoch": "epoch", "users": "users", "events": "turns"},
    **{"open_tasks": "open", "parked_tasks": "parked", "dead_letters": "dead", "unsent_messages": "unsent"},
}
_ALWAYS = 4
"""So many of them are shown whatever they are; the others where any partition has some: a terminal is narrow."""


def partitions_view(document: dict[str, Any]) -> RenderableType:
    """One row a partition; below, who opened them last."""
    topic, rows = document.get("topic"), document["partitions"]
    beside = f", beside topic {escape(topic['name'])}" if topic else ""
    table = Table(title=f"{len(rows)} partitions, placed by {document['partitioner']}{beside}", title_justify="left")
    shown = [name for at, name in enumerate(_NUMBERS) if at < _ALWAYS or any(one[name] for one in rows)]
    for heading in (*(_NUMBERS[name] for name in shown), *(("end", "lag") if topic else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("sources", overflow="fold")
    openers: dict[str, list[int]] = {}
    for one in rows:
        openers.setdefault(one["opened_by"], []).append(one["partition"])
        sources = [
            f"{_short(source, held['name'])} @ {held['next_offset']:,}" for source, held in one["positions"].items()
        ]
        held = one.get("kafka")
        lag = [f"{held['end']:,}", f"{held['lag']:,}"] if held else ["–", "–"] if topic else []
        table.add_row(*(f"{one[name]:,}" for name in shown), *lag, escape("\n".join(sources)))
    return Group(table, *(Text(f"last opened by {who}: {_listed(held)}") for who, held in openers.items() if who))


def _short(source: str, name: str) -> str:
    """A source as a row has room for it; `--json` has it whole."""
    return (name if source.startswith(TOPIC_SOURCE) else PurePath(name).name) or source


def _listed(partitions: list[int]) -> str:
    last = partitions[-1]
    whole = len(partitions) > 2 and partitions == list(range(partitions[0], last + 1))
    return f"partitions {partitions[0]} to {last}" if whole else f"partition {', '.join(map(str, partitions))}"
