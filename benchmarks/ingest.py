"""How fast turns become durable and searchable, and how fast they are consolidated.

    python -m benchmarks.ingest --turns 200000 --users 1000 --embedder stub --json OUT
    python -m benchmarks.ingest --turns 5000 --embedder minilm --json OUT
    python -m benchmarks.ingest --ray --shards 1,2 --json OUT
    python -m benchmarks.ingest --kafka auto --embedder minilm --turns 5000 --json OUT

The fast path (file → decode → batches → embed → shard → SQLite, synchronous=FULL) runs
without workers; then the slow path drains what it left. In the same run stand a bare
`executemany` of the same rows (`share_of_insert`) and the bare embedder on the same
texts (`share_of_embedder`). With `--kafka` a topic takes the file's place: see `ingest_kafka.py`.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import typer
from rich.console import Console

from benchmarks.results import Results
from raygam.memory.model import embedded_text
from raygam.pipeline import runtime
from raygam.pipeline.config import Settings, read_settings
from raygam.pipeline.run import run_source

console = Console(stderr=True)
app = typer.Typer(add_completion=False)

_WORDS = (
    "the a my our your this that we they she he I you will can could should went saw made bought found lost kept left "
    "garden river kitchen office train ticket meeting doctor sister brother neighbour holiday window station market "
    "engine coffee dinner recipe guitar concert match team project report deadline budget laptop phone picture "
    "beach mountain forest city village school teacher student exam result idea plan question answer story movie "
    "book chapter song dance dress jacket shoes yesterday soon again never always maybe really quite almost often"
).split()


def write_dialogue(path: Path, turns: int, users: int, seed: int) -> None:
    """Write turns of users whose sessions of some twenty turns interleave in time."""
    chance = random.Random(seed)
    clock_ms = 1_735_689_600_000
    with path.open("w", encoding="utf-8") as file:
        per_user = [0] * users
        for number in range(turns):
            user = chance.randrange(users)
            spoken = per_user[user]
            per_user[user] += 1
            # A user speaks every `users` steps on average: 20 turns of a session lie within minutes.
            session = spoken // 20
            time_ms = clock_ms + (session * 86_400 + spoken % 20 * 20) * 1000 + user
            record = {
                "message_id": f"m{number}",
                "user_id": f"user-{user}",
                "session_id": f"s{session}",
                "speaker": "Ana" if spoken % 2 == 0 else "assistant",
                "role": "user" if spoken % 2 == 0 else "assistant",
                "text": " ".join(chance.choices(_WORDS, k=chance.randint(6, 24))) + ".",
                "timestamp": time_ms,
            }
            file.write(json.dumps(record) + "\n")


def stream(source: Path, directory: Path, settings: Settings) -> tuple[float, float, int]:
    """Run fast path, then slow path; return `(fast seconds, drain seconds, turns)`."""
    engine = runtime.open_engine(directory, settings, workers=0)
    try:
        started = time.perf_counter()
        report = run_source(
            engine, runtime.open_source(source), chunk_bytes=settings.chunk_for(engine.models.embedder.name)
        )
        ingested = time.perf_counter()
        engine.drain()
        drained = time.perf_counter()
    finally:
        engine.close()
    return ingested - started, drained - ingested, report.accepted


def bare_insert(directory: Path, scratch: Path, batch: int = 512) -> float:
    """Insert the same event and vector rows into fresh files with executemany; return seconds."""
    spent = 0.0
    for path in sorted(directory.glob("partition-*.db")):
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as stored:
            tables: dict[str, tuple[str, list[Any]]] = {}
            for table in ("event", "vector_log"):
                (ddl,) = stored.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
                rows = stored.execute(f"SELECT * FROM {table} ORDER BY seq").fetchall()
                tables[table] = (ddl, rows)
        stored.close()
        fresh = sqlite3.connect(scratch / path.name, isolation_level=None)
        fresh.execute("PRAGMA journal_mode=WAL")
        fresh.execute("PRAGMA synchronous=FULL")
        for ddl, _ in tables.values():
            fresh.execute(ddl)
        events = tables["event"][1]
        vectors = [row for row in tables["vector_log"][1] if row[2] == "event"] or tables["vector_log"][1]
        started = time.perf_counter()
        for at in range(0, len(events), batch):
            fresh.execute("BEGIN IMMEDIATE")
            for table, rows in (("event", events), ("vector_log", vectors)):
                part = rows[at : at + batch]
                marks = ",".join("?" * len(part[0])) if part else ""
                fresh.executemany(f"INSERT INTO {table} VALUES ({marks})", part)
            fresh.execute("COMMIT")
        spent += time.perf_counter() - started
        fresh.close()
    return spent


def bare_embedding(source: Path, settings: Settings, chunk_lines: int) -> float:
    """Embed the same texts with the same embedder in chunks of the same size; return seconds."""
    embedder = runtime.make_embedder(settings.embedder or "minilm", settings)
    with source.open(encoding="utf-8") as file:
        texts = [embedded_text(turn["speaker"], turn["text"], ()) for turn in map(json.loads, file)]
    embedder.embed(texts[:64])
    started = time.perf_counter()
    for at in range(0, len(texts), chunk_lines):
        embedder.embed(texts[at : at + chunk_lines])
    return time.perf_counter() - started


def measure_on_ray(
    results: Results,
    source: Path,
    settings: Settings,
    params: dict[str, Any],
    shards: list[int],
    repeats: int,
    bare_seconds: float | None,
) -> None:
    """Run with each number of shards, interleaved; the most shards come first in the results.

    Args:
        results: where figures go.
        source: the file.
        settings: the settings; one embedder replica, one thread.
        params: of every figure.
        shards: numbers of shards.
        repeats: runs of each.
        bare_seconds: what the bare embedder took for the same texts, on one thread; None leaves its share out.
    """
    from benchmarks.ingest_ray import OnRay, ray_running, stream_on_ray

    turns = params["turns"]
    runs: dict[int, list[OnRay]] = {count: [] for count in shards}
    with ray_running():
        for repeat in range(repeats):
            for count in shards:
                runs[count].append(stream_on_ray(source, settings, turns, count))
                last = runs[count][-1]
                console.print(
                    f"ray, {count} shards, run {repeat + 1}: {turns / last.fast_seconds:,.0f} turns/s, "
                    f"drain {turns / last.slow_seconds:,.0f}/s"
                )
    for count in sorted(shards, reverse=True):
        for path, seconds in (
            ("fast", [run.fast_seconds for run in runs[count]]),
            ("slow, drain", [run.slow_seconds for run in runs[count]]),
        ):
            rates = [turns / spent for spent in seconds]
            spread = {"min": round(min(rates), 4), "max": round(max(rates), 4), "runs": len(rates)}
            more = {"engine": "ray", "shards": count, "path": path}
            results.add("turns_per_second", statistics.median(rates), "turns/s", **params, **more, **spread)
            if path == "fast" and bare_seconds is not None:
                shares = [bare_seconds / spent for spent in seconds]
                spread = {"min": round(min(shares), 4), "max": round(max(shares), 4), "runs": len(shares)}
                results.add("share_of_embedder", statistics.median(shares), "fraction", **params, **more, **spread)
        for role in sorted({role for run in runs[count] for role in run.cpu}):
            spent = statistics.median(run.cpu.get(role, 0.0) for run in runs[count])
            where = {"engine": "ray", "shards": count, "path": "fast", "role": role}
            results.add("cpu_microseconds_per_turn", spent, "us", **params, **where)


def measure_on_kafka(
    results: Results,
    address: str,
    source: Path,
    later: Path,
    settings: Settings,
    params: dict[str, Any],
    repeats: int,
    lag_seconds: float,
) -> None:
    """Take a topic with fresh states, between runs of the bare embedder; then watch its lag at half the rate.

    Args:
        results: where figures go.
        address: of brokers, or `auto`.
        source: what the topic is filled with.
        later: dialogue that comes after it.
        settings: the settings.
        params: of every figure.
        repeats: runs.
        lag_seconds: how long records come at half the rate.
    """
    from benchmarks import ingest_kafka as topic

    turns, embedder = params["turns"], params["embedder"]
    with topic.broker(address) as brokers, tempfile.TemporaryDirectory(prefix="raygam-ingest-kafka-") as folder:
        settings = settings.model_copy(
            update={"kafka_brokers": brokers, "kafka_topic": f"raygam-ingest-{time.time_ns()}", "partitions": 8}
        )
        topic.fill(source, settings)
        chunk = settings.poll_records_for(embedder)
        consumer, embedding, streaming = [], [bare_embedding(source, settings, chunk)], []
        for repeat in range(repeats):
            consumer.append(topic.bare_consumer(settings, turns))
            streaming.append(topic.stream_topic(settings, Path(folder) / f"state-{repeat}", turns, workers=0))
            embedding.append(bare_embedding(source, settings, chunk))
            console.print(
                f"topic, run {repeat + 1}: {turns / streaming[-1]:,.0f} turns/s, bare embedder "
                f"{turns / embedding[-1]:,.0f}/s, bare consumer {turns / consumer[-1]:,.0f}/s"
            )
        shares = [
            (before + after) / 2 / spent
            for before, spent, after in zip(embedding[:-1], streaming, embedding[1:], strict=True)
        ]
        whole = turns / topic.stream_topic(settings, Path(folder) / "whole", turns, workers=1)
        console.print(f"topic, with a worker: {whole:,.0f} turns/s, consolidated")
        lag = topic.lag_at(settings, Path(folder) / "whole", later, whole / 2, lag_seconds)
    where = params | {"source": "kafka", "path": "fast"}
    for metric, values, unit in (
        ("turns_per_second", [turns / spent for spent in streaming], "turns/s"),
        ("share_of_embedder", shares, "fraction"),
        ("embedder_texts_per_second", [turns / spent for spent in embedding], "texts/s"),
        ("consumer_records_per_second", [turns / spent for spent in consumer], "records/s"),
    ):
        median, around = topic.spread(values)
        results.add(metric, median, unit, **where, **around)
    results.add("turns_per_second", whole, "turns/s", **params, source="kafka", path="fast and slow", workers=1)
    sent = {"records": len(lag.seconds), "rate": round(lag.rate, 1), "searched": lag.searched, "found": lag.found}
    for name, share in (("p50", 50), ("p99", 99), ("max", 100)):
        value = float(np.percentile(lag.seconds, share))
        results.add(f"searchable_lag_seconds_{name}", value, "s", **params, source="kafka", workers=1, **sent)


@app.command()
def main(
    turns: Annotated[int, typer.Option(min=1)] = 200_000,
    users: Annotated[int, typer.Option(min=1)] = 1000,
    embedder: Annotated[str, typer.Option(help="stub or minilm")] = "stub",
    repeats: Annotated[int, typer.Option(min=1, help="Runs; the median is reported, with the spread.")] = 3,
    cores: Annotated[int | None, typer.Option(min=1, help="Cores to run on; default 1, with --ray all.")] = None,
    on_ray: Annotated[bool, typer.Option("--ray", help="Measure the engine on Ray too.")] = False,
    shards: Annotated[str, typer.Option(help="With --ray: numbers of shards, the last is the headline.")] = "1,2",
    kafka: Annotated[
        str | None, typer.Option("--kafka", help="Take a topic instead: host:port of brokers, or auto to start one.")
    ] = None,
    lag_seconds: Annotated[float, typer.Option(min=1, help="With --kafka: time at half the rate.")] = 30.0,
    seed: int = 7,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the results here; - is stdout.")] = None,
) -> None:
    """Measure the ingest path; ratios come from the same run."""
    available = sorted(os.sched_getaffinity(0))
    cores = min(cores or (len(available) if on_ray or kafka else 1), len(available))
    os.sched_setaffinity(0, available[:cores])
    runtime.tune_collector()  # as `raygam run` does
    if on_ray and embedder != "stub":
        import torch

        torch.set_num_threads(1)  # as a replica does; all of this run is compared with it
    settings = read_settings(embedder=embedder, max_open_tasks=10_000_000, max_waiting_turns=10_000_000)
    results = Results("ingest", seed)
    params = {"turns": turns, "users": users, "embedder": embedder, "cores": cores}
    fast: list[float] = []
    slow: list[float] = []
    shares: list[float] = []
    with tempfile.TemporaryDirectory(prefix="raygam-ingest-") as folder:
        source = Path(folder) / "dialogue.jsonl"
        write_dialogue(source, turns, users, seed)
        if kafka is not None:
            later = Path(folder) / "later.jsonl"  # the same dialogue goes on
            write_dialogue(later, turns + 200_000, users, seed)
            with later.open("rb") as file:
                rest = file.readlines()[turns:]
            later.write_bytes(b"".join(rest))
            measure_on_kafka(results, kafka, source, later, settings, params, repeats, lag_seconds)
            finish(results, params, json_out)
            return
        chunk_lines = max(1, settings.chunk_for(embedder) * turns // source.stat().st_size)
        if embedder != "stub":
            stream(source, Path(folder) / "warm", settings)  # loads the model outside the measurement
        for repeat in range(repeats):
            state = Path(folder) / f"state-{repeat}"
            scratch = Path(folder) / f"bare-{repeat}"
            scratch.mkdir()
            ingest_seconds, drain_seconds, accepted = stream(source, state, settings)
            assert accepted == turns, f"{accepted} of {turns} turns were accepted"
            fast.append(turns / ingest_seconds)
            slow.append(turns / drain_seconds)
            if embedder == "stub":
                shares.append(bare_insert(state, scratch) / ingest_seconds)
            else:
                shares.append(bare_embedding(source, settings, chunk_lines) / ingest_seconds)
            console.print(f"run {repeat + 1}: {fast[-1]:,.0f} turns/s, drain {slow[-1]:,.0f}/s, share {shares[-1]:.2f}")
        share = "share_of_insert" if embedder == "stub" else "share_of_embedder"
        for metric, values, unit, more in (
            ("turns_per_second", fast, "turns/s", {"path": "fast"}),
            ("turns_per_second", slow, "turns/s", {"path": "slow, drain"}),
            (share, shares, "fraction", {"path": "fast"}),
        ):
            spread = {"min": round(min(values), 4), "max": round(max(values), 4), "runs": len(values)}
            results.add(metric, statistics.median(values), unit, **params, **more, **spread)
        if on_ray:
            bare = (
                None
                if embedder == "stub"
                else statistics.median(share * turns / rate for share, rate in zip(shares, fast, strict=True))
            )
            counts = [int(count) for count in shards.split(",")]
            measure_on_ray(results, source, settings, params, counts, repeats, bare)
    finish(results, params, json_out)


def finish(results: Results, params: dict[str, Any], json_out: Path | None) -> None:
    """Add this process' memory, show and write."""
    results.add("peak_memory_bytes", psutil.Process().memory_full_info().pss, "bytes", **params)
    results.show()
    results.write(json_out)


if __name__ == "__main__":
    app()
