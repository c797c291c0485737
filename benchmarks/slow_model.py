"""A chat model that takes a minute for an answer: what ingest and search notice of it.

    python -m benchmarks.slow_model --json OUT

The same turns are streamed again and again into fresh states, in turn without a slow path and with a chat model
(over real HTTP) whose every answer takes `--seconds`. Searches are asked all the while. Reported are the ratios
of rate and latency, beside the spread that the runs without a model show among themselves.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress

from benchmarks.kafka_broker import free_ports
from benchmarks.results import Results
from raygam import Memory

console = Console(stderr=True)
app = typer.Typer(add_completion=False)
_BATCH = 512
_WORDS = "garden river train ticket doctor sister holiday coffee recipe guitar match report laptop beach".split()
_PACE_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Run:
    """One run: turns a second until all are durable and searchable, and seconds of each search meanwhile."""

    rate: float
    searches: np.ndarray
    waiting: int


@app.command()
def main(
    turns: Annotated[int, typer.Option(min=1000, help="Turns of a run.")] = 40_000,
    users: Annotated[int, typer.Option(min=1, help="Users.")] = 500,
    seconds: Annotated[float, typer.Option(min=1, help="What each of the model's answers takes.")] = 60.0,
    repeats: Annotated[int, typer.Option(min=2, help="Runs with, and as many without.")] = 5,
    seed: Annotated[int, typer.Option(help="Of the dialogue.")] = 7,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the results here; - is stdout.")] = None,
) -> None:
    """Compare ingest and search with a slow chat model and without any."""
    dialogue = _dialogue(turns, users, random.Random(seed))
    without: list[Run] = []
    slow: list[Run] = []
    with _model(seconds) as model, Progress(console=console) as progress:
        bar = progress.add_task("streaming", total=2 * repeats + 1)
        _run(dialogue[: turns // 4], users, workers=0)  # warms what is loaded once
        progress.advance(bar)
        for _ in range(repeats):
            without.append(_run(dialogue, users, workers=0))
            progress.advance(bar)
            slow.append(_run(dialogue, users, workers=1, chat_url=model))
            progress.advance(bar)
        calls = _calls(model)
    results = Results("slow_model", seed)
    params = {"turns": turns, "users": users, "answer_seconds": seconds, "runs": repeats, "embedder": "stub"}
    _compare(results, "turns_per_second", "turns/s", [run.rate for run in without], [run.rate for run in slow], params)
    for metric, quantile in (("latency_ms_p50", 0.5), ("latency_ms_p95", 0.95)):
        none, with_it = (
            [1000 * float(np.quantile(run.searches, quantile)) for run in runs] for runs in (without, slow)
        )
        _compare(results, metric, "ms", none, with_it, params)
    results.add("llm_calls", calls, "calls", **params)
    results.add("tasks_waiting", statistics.median(run.waiting for run in slow), "tasks", **params)
    results.show()
    results.write(json_out)


@contextmanager
def _model(seconds: float) -> Iterator[str]:
    """The scripted model in a process of its own, as models are; gives its URL."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "benchmarks.scripted_model", "--port", str(port), "--seconds", str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            server.stdout.readline()  # it answers from here on
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()


def _calls(url: str) -> int:
    with urllib.request.urlopen(f"{url.removesuffix('/v1')}/stats", timeout=30) as reply:
        return sum(json.load(reply)["calls"].values())


def _compare(
    results: Results, metric: str, unit: str, without: Sequence[float], slow: Sequence[float], params: dict[str, Any]
) -> None:
    base = statistics.median(without)
    for name, values in (("slow", slow), ("none", without)):
        spread = {"min": round(min(values), 4), "max": round(max(values), 4)}
        results.add(metric, statistics.median(values), unit, model=name, **spread, **params)
    spread = {"min": round(min(without) / base, 4), "max": round(max(without) / base, 4)}
    ratio = statistics.median(slow) / base
    results.add(
        f"{metric}_ratio", ratio, "slow/none", inside=spread["min"] <= ratio <= spread["max"], **spread, **params
    )


def _run(dialogue: Sequence[dict[str, Any]], users: int, **settings: Any) -> Run:
    with tempfile.TemporaryDirectory(prefix="raygam-slow-model-") as folder:
        memory = Memory(Path(folder) / "state", embedder="stub", partitions=8, **settings)
        try:
            seconds: list[float] = []
            over = threading.Event()
            asking = threading.Thread(target=_ask, args=(memory, users, over, seconds), daemon=True)
            asking.start()
            started = time.perf_counter()
            for start in range(0, len(dialogue), _BATCH):
                memory.add(dialogue[start : start + _BATCH])
            rate = len(dialogue) / (time.perf_counter() - started)
            over.set()
            asking.join()
            return Run(rate, np.asarray(seconds), memory._engine.open_tasks())
        finally:
            memory.close()


def _ask(memory: Memory, users: int, over: threading.Event, seconds: list[float]) -> None:
    """Ask one user after another, at a pace."""
    at = 0
    while not over.wait(_PACE_SECONDS):
        began = time.perf_counter()
        memory.search(f"user-{at % users}", _WORDS[at % len(_WORDS)])
        seconds.append(time.perf_counter() - began)
        at += 1


def _dialogue(turns: int, users: int, chance: random.Random) -> list[dict[str, Any]]:
    """Sessions of some twenty turns, so that tasks come all the time."""
    found = []
    for number in range(turns):
        turn = number // users
        found.append(
            {
                "message_id": f"m{number}",
                "user_id": f"user-{number % users}",
                "session_id": f"s{turn // 20}",
                "speaker": "Ana" if turn % 2 else "Bo",
                "role": "user",
                "text": " ".join(chance.choices(_WORDS, k=14)),
                "timestamp": 1_700_000_000_000 + (turn + 60 * (turn // 20)) * 60_000,
            }
        )
    return found


if __name__ == "__main__":
    app()
