"""How much memory `raygam run` takes: peak PSS of the real process, and whether idle users cost any.

    python -m benchmarks.footprint --turns 200000 --users 1000 --json OUT

The second run has the same turns spread over many more users, each silent most of the
time: what they add is the price of idle users in memory.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.console import Console

from benchmarks.ingest import write_dialogue
from benchmarks.results import Results

console = Console(stderr=True)
app = typer.Typer(add_completion=False)


def peak_pss(arguments: list[str], interval_seconds: float = 0.1) -> tuple[int, float]:
    """Run a command; return its peak PSS in bytes and the seconds that it took."""
    started = time.monotonic()
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    watched = psutil.Process(process.pid)
    peak = 0
    while process.poll() is None:
        try:
            family = [watched, *watched.children(recursive=True)]
            peak = max(peak, sum(member.memory_full_info().pss for member in family))
        except psutil.Error:  # it ended between two looks
            pass
        time.sleep(interval_seconds)
    if process.returncode != 0:
        raise typer.Exit(1)
    return peak, time.monotonic() - started


@app.command()
def main(
    turns: Annotated[int, typer.Option(min=1)] = 200_000,
    users: Annotated[int, typer.Option(min=1)] = 1000,
    idle_users: Annotated[int, typer.Option(min=1, help="Users of the second run.")] = 50_000,
    embedder: Annotated[str, typer.Option(help="stub or minilm")] = "stub",
    seed: int = 7,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the results here; - is stdout.")] = None,
) -> None:
    """Measure the peak memory of whole runs."""
    results = Results("footprint", seed)
    with tempfile.TemporaryDirectory(prefix="raygam-footprint-") as folder:
        for count in (users, idle_users):
            source = Path(folder) / f"{count}.jsonl"
            write_dialogue(source, turns, count, seed)
            state = Path(folder) / f"state-{count}"
            command = [sys.executable, "-m", "raygam.pipeline.cli", "run", str(source), "--state", str(state)]
            peak, seconds = peak_pss([*command, "--embedder", embedder])
            console.print(f"{count} users: {peak / 1e6:,.0f} MB, {seconds:.0f} s")
            params = {"turns": turns, "users": count, "embedder": embedder}
            results.add("peak_memory_bytes", peak, "bytes", **params)
            results.add("turns_per_second", turns / seconds, "turns/s", path="whole run", **params)
    results.show()
    results.write(json_out)


if __name__ == "__main__":
    app()
