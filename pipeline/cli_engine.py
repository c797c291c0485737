"""`raygam engine show | move | stop`: an engine that runs on Ray, from another terminal."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, Any

import typer
from rich.table import Table

from . import display
from .cli_state import State
from .jobs import FileJob
from .location import AnyState

app = typer.Typer(help="Look at an engine that runs on Ray, move its partitions, stop it.", no_args_is_help=True)

Address = Annotated[str, typer.Option("--address", help="The Ray cluster; `auto` finds the one on this machine.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]


@app.command()
def show(state: State, address: Address = "auto", as_json: Json = False) -> None:
    """Show who has which partition, how far reading is, and what stands in its way."""
    with running(state, address) as engine:
        found = _document(engine.progress())
    if as_json:
        display.print_json(found)
        return
    table = Table(title="shards")
    for name in ("shard", "process", "partitions"):
        table.add_column(name)
    for shard in sorted(set(found["owned"].values())):
        owned = sorted(at for at, owner in found["owned"].items() if owner == shard)
        table.add_row(shard, str(found["pids"].get(shard, "")), ", ".join(map(str, owned)))
    display.output.print(table)
    others = {place: pid for place, pid in found["pids"].items() if not place.startswith("shard-")}
    lines = [
        "others: " + (", ".join(f"{place} (process {pid})" for place, pid in sorted(others.items())) or "none"),
        f"tasks: {found['open_tasks']:,} open, {found['parked_tasks']:,} parked",
    ]
    if found["job"]:
        lines.append(f"reading {found['job']['name']}: {found['offset']:,} of {found['size']:,} {found['job']['unit']}")
    lines += [f"reading has ended: {found['failure']}"] if found["failure"] else []
    lines += [f"waits: {why}" for why in (*found["paused"], *found["obstacles"])]
    if found["unsent"]:
        lines.append(f"messages for other systems that are not sent yet: {found['unsent']:,}")
    lines += found["sending"]
    if found["replaced"]:
        lines.append(
            "replaced: " + ", ".join(f"{place} {count}x" for place, count in sorted(found["replaced"].items()))
        )
    for line in lines:
        display.output.print(line, highlight=False, markup=False)


@app.command()
def move(
    partition: Annotated[int, typer.Argument(min=0, help="The partition.")],
    shard: Annotated[int, typer.Argument(min=0, help="The number of the shard that gets it.")],
    state: State,
    address: Address = "auto",
    as_json: Json = False,
) -> None:
    """Move PARTITION to SHARD while it streams; only this partition waits."""
    with running(state, address) as engine:
        seconds = engine.move(partition, shard)
    if as_json:
        display.print_json({"partition": partition, "shard": f"shard-{shard}", "seconds": round(seconds, 3)})
    else:
        display.output.print(f"partition {partition} is with shard-{shard}; it answered nobody for {seconds:.2f} s")


@app.command()
def stop(state: State, address: Address = "auto") -> None:
    """Stop the engine at a batch's edge; the next run goes on from there."""
    with running(state, address) as engine:
        engine.stop()
    display.note(f"the engine over {state} has stopped")


def _document(progress: Any) -> dict[str, Any]:
    """The progress as plain values; of the job what people need, and no password of a broker."""
    job = progress.job
    unit = "bytes" if isinstance(job, FileJob) else "records"
    told = {"name": job.name, "source": job.source_id, "unit": unit} if job else None
    return asdict(replace(progress, job=None)) | {"job": told}


def running(state: AnyState, address: str) -> Any:
    """The engine over a state on a Ray cluster, for the length of a block; see `attached`."""
    from ..actors.attach import attached  # Ray takes a second to load

    return attached(state, address)
