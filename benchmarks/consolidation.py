"""What consolidating with a chat model costs: calls and tokens, and how many users it keeps busy.

    python -m benchmarks.consolidation --endpoint scripted --data locomo10.json --json OUT
    python -m benchmarks.consolidation --endpoint http://127.0.0.1:8000/v1 --model qwen3 --data locomo10.json --json OUT
    python -m benchmarks.consolidation --endpoint vllm --sessions 2 --data locomo10.json --json OUT

The conversations are streamed for 1, 8 and 32 users at a time, repeated under new users as needed,
each into a fresh state, and flushed. `scripted` answers by rules over real HTTP: it counts what would be
asked, and judges nothing. `vllm` starts a server on this machine, and reports from its own
metrics how many requests it computed together while tasks waited.
"""

from __future__ import annotations

import itertools
import math
import sqlite3
import statistics
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn

from benchmarks import chat_endpoint, locomo
from benchmarks.chat_endpoint import Endpoint
from benchmarks.results import Results
from raygam.memory.errors import ModelAway, RaygamError
from raygam.memory.prompts import counts_apart
from raygam.memory.writes import TaskStatus
from raygam.pipeline import runtime
from raygam.pipeline.config import Settings, read_settings
from raygam.pipeline.engine import Engine
from raygam.pipeline.records import from_mapping

console = Console(stderr=True)
app = typer.Typer(add_completion=False)
_BATCH = 512
_LOOK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Run:
    """What one run came to.

    Attributes:
        turns: streamed.
        tasks: maintenance events that were looked into.
        closing: those of them that closed a segment.
        episodes: that were closed.
        parked: tasks whose answers did not fit.
        seconds: from the first turn until no task was left.
        calls: by what they were for: `closing`, `parts` (of over-long input, of closing tasks), `all`.
        tokens: prompt and completion, of all calls.
        running: requests that the server computed at a time while others waited, with it or as tasks, over its most;
            None if it does not say.
    """

    turns: int
    tasks: int
    closing: int
    episodes: int
    parked: int
    seconds: float
    calls: dict[str, int]
    tokens: tuple[int, int]
    running: float | None


@app.command()
def main(
    endpoint: Annotated[str, typer.Option(help="A URL with its /v1, `scripted`, or `vllm` (started here).")],
    data: Annotated[Path, typer.Option(help="LoCoMo (locomo10.json).")],
    model: Annotated[str | None, typer.Option(help="The model's name there; default: the first it lists.")] = None,
    users: Annotated[str, typer.Option(help="Users at a time, with commas.")] = "1,8,32",
    sessions: Annotated[int | None, typer.Option(min=1, help="Only the first N sessions of each user.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0.1, help="Break a run off after so long.")] = None,
    embedder: Annotated[str, typer.Option(help="minilm or stub.")] = "stub",
    max_num_seqs: Annotated[int, typer.Option(min=1, help="For vllm: requests decoded together.")] = 16,
    seed: Annotated[int, typer.Option(help="Recorded with the results; nothing here is random.")] = 7,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the results here; - is stdout.")] = None,
) -> None:
    """Count what a chat model is asked for LoCoMo's conversations."""
    try:
        counts = [int(count) for count in users.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise typer.BadParameter(f"{users!r} is no list of numbers like 1,8,32", param_hint="--users")
    results = Results("consolidation", seed)
    try:
        conversations = locomo.load(data)
        with chat_endpoint.endpoint(endpoint, model, max_num_seqs=max_num_seqs) as found:
            params = {
                "endpoint": _kind(endpoint),
                "model": found.model,
                "embedder": embedder,
                "sessions": sessions or "all",
            }
            for count in counts:
                run = measure(conversations, found, count, sessions, embedder, minutes)
                _report(results, run, {"users": count, "minutes": minutes or "to the end", **params})
    except (locomo.OddData, RaygamError) as error:
        console.print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(2) from error
    results.show()
    results.write(json_out)


def measure(
    conversations: Sequence[locomo.Conversation],
    endpoint: Endpoint,
    users: int,
    sessions: int | None,
    embedder: str,
    minutes: float | None,
) -> Run:
    """Stream conversations for so many users into a fresh state, until no task is left or the time is over."""
    turns = list(_interleaved([_of_user(conversations[at % len(conversations)], at, sessions) for at in range(users)]))
    with tempfile.TemporaryDirectory(prefix="raygam-consolidation-") as folder:
        settings = read_settings(
            embedder=embedder,
            partitions=8,
            chat_url=endpoint.url,
            chat_model=endpoint.model,
            chat_concurrency=max(users, 1),
            chat_timeout_seconds=600,
            lease_seconds=3600,
        )
        state = Path(folder) / "state"
        with closing(runtime.open_engine(state, settings)) as engine:
            watch = _Watch(engine, endpoint)
            started = time.perf_counter()
            with suppress(_TimeIsOver):
                _stream(engine, settings, turns, started + 60 * minutes if minutes else math.inf)
            seconds = time.perf_counter() - started
            running = watch.end()
        return _counted(state, len(turns), seconds, running)


class _TimeIsOver(Exception):
    """The run was given so long and no longer."""


def _stream(engine: Engine, settings: Settings, turns: Sequence[dict[str, Any]], until: float) -> None:
    with Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=console) as progress:
        bar = progress.add_task("streaming", total=len(turns))
        for batch in _batches(turns):
            engine.add([from_mapping(turn, settings.record_limits) for turn in batch])
            progress.advance(bar, len(batch))
        engine.flush()
        bar = progress.add_task("thinking", total=None)
        most = 0

        def left(tasks: int) -> None:
            nonlocal most
            if time.perf_counter() > until:
                raise _TimeIsOver
            most = max(most, tasks)
            progress.update(bar, total=most, completed=most - tasks)

        while True:
            try:
                engine.drain(left)
                return
            except ModelAway as error:  # it goes on by itself
                progress.console.print(f"waiting: {error}", style="yellow", markup=False)


def _batches(turns: Sequence[dict[str, Any]]) -> Iterator[Sequence[dict[str, Any]]]:
    for start in range(0, len(turns), _BATCH):
        yield turns[start : start + _BATCH]


class _Watch:
    """Looks at a vLLM server's own figures while tasks wait."""

    def __init__(self, engine: Engine, endpoint: Endpoint) -> None:
        self._engine = engine
        self._endpoint = endpoint
        self._seen: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        if endpoint.metrics_url:
            self._thread.start()

    def end(self) -> float | None:
        """Mean of running requests over the most, while tasks waited."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        return statistics.fmean(self._seen) / self._endpoint.max_num_seqs if self._seen else None

    def _look(self) -> None:
        assert self._endpoint.metrics_url is not None
        while not self._over.wait(_LOOK_SECONDS):
            with urllib.request.urlopen(self._endpoint.metrics_url, timeout=30) as reply:
                figures = reply.read().decode()
            waiting = any(shard.has_claimable() for shard in self._engine.shards)
            if waiting or _gauge(figures, "vllm:num_requests_waiting"):
                self._seen.append(_gauge(figures, "vllm:num_requests_running"))


def _gauge(text: str, name: str) -> float:
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(f"{name}{{"))


_CLOSING = "SELECT DISTINCT task_id FROM episode"
_CALLS = (
    "SELECT prompt, task_id IN (" + _CLOSING + "), sum(calls), sum(prompt_tokens), sum(completion_tokens) "
    "FROM model_call GROUP BY 1, 2"
)


def _counted(state: Path, turns: int, seconds: float, running: float | None) -> Run:
    """Count in the ledgers of a state, which the engine has left."""
    tasks: Counter[str] = Counter()
    calls = {"closing": 0, "parts": 0, "all": 0}
    closing_tasks = episodes = prompt_tokens = completion_tokens = 0
    for path in sorted(state.glob("partition-*.db")):
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as ledger:
            tasks.update(dict(ledger.execute("SELECT status, count(*) FROM task GROUP BY 1")))
            episodes += ledger.execute("SELECT count(*) FROM episode").fetchone()[0]
            closing_tasks += ledger.execute(f"SELECT count(*) FROM ({_CLOSING})").fetchone()[0]
            for prompt, closes, made, into, out in ledger.execute(_CALLS):
                calls["all"] += made
                prompt_tokens += into
                completion_tokens += out
                if closes:
                    calls["parts" if counts_apart(prompt) else "closing"] += made
    return Run(
        turns, tasks[TaskStatus.DONE], closing_tasks, episodes, tasks[TaskStatus.PARKED], seconds, calls,
        (prompt_tokens, completion_tokens), running,
    )  # fmt: skip


def _report(results: Results, run: Run, params: dict[str, Any]) -> None:
    per_turns = 1000 / run.turns
    results.add("llm_calls_per_maintenance_event", run.calls["closing"] / max(run.closing, 1), "calls", **params)
    results.add("llm_calls_for_parts", run.calls["parts"], "calls", **params)
    results.add("llm_calls", run.calls["all"], "calls", **params)
    results.add("llm_calls_per_1000_turns", run.calls["all"] * per_turns, "calls", **params)
    for kind, tokens in zip(("prompt", "completion"), run.tokens, strict=True):
        results.add("llm_tokens_per_1000_turns", tokens * per_turns, "tokens", kind=kind, **params)
    results.add("episodes_per_second", run.episodes / run.seconds, "episodes/s", **params)
    results.add("maintenance_events", run.tasks, "events", closing=run.closing, parked=run.parked, **params)
    results.add("turns", run.turns, "turns", seconds=round(run.seconds, 2), **params)
    if run.running is not None:
        results.add("share_of_running_requests", run.running, "fraction", **params)


def _of_user(conversation: locomo.Conversation, at: int, sessions: int | None) -> list[dict[str, Any]]:
    """A conversation under a user of its own."""
    wanted = list(dict.fromkeys(turn["session_id"] for turn in conversation.turns))[:sessions]
    return [turn | {"user_id": f"user-{at}"} for turn in conversation.turns if turn["session_id"] in set(wanted)]


def _interleaved(streams: Sequence[list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """A turn of each in turn, as they would arrive."""
    for turns in itertools.zip_longest(*streams):
        yield from filter(None, turns)


def _kind(named: str) -> str:
    return named if named in (chat_endpoint.SCRIPTED, chat_endpoint.VLLM) else "http"


if __name__ == "__main__":
    app()
