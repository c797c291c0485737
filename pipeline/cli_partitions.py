"""What `raygam partitions` shows: the ledger's own word on every partition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from . import runtime


def partitions(state: Path) -> dict[str, Any]:
    """Epoch, owner, positions, users and tasks of every partition; reads beside whoever writes."""
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
                    "positions": {
                        source: {"next_offset": position.next_offset, "name": position.name}
                        for source, position in sorted(info.positions.items())
                    },
                }
            )
        return {"state": str(state), "partitioner": store.facts.partitioner, "partitions": found}
    finally:
        store.close()


def partitions_table(document: dict[str, Any]) -> Table:
    """One row a partition."""
    table = Table(title=f"{len(document['partitions'])} partitions, placed by {document['partitioner']}")
    for name in ("partition", "epoch", "users", "turns", "open tasks", "parked", "dead letters"):
        table.add_column(name, justify="right")
    table.add_column("sources")
    table.add_column("last opened by")
    for one in document["partitions"]:
        sources = [f"{held['name'] or source} @ {held['next_offset']:,}" for source, held in one["positions"].items()]
        numbers = [
            one[name]
            for name in ("partition", "epoch", "users", "events", "open_tasks", "parked_tasks", "dead_letters")
        ]
        table.add_row(*(f"{number:,}" for number in numbers), "\n".join(sources), one["opened_by"])
    return table
