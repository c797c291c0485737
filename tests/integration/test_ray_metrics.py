"""What Ray's exporter serves of an engine."""

from __future__ import annotations

import re
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from raygam.memory import identity
from raygam.memory.errors import Misconfigured
from raygam.memory.model import User
from raygam.pipeline.config import read_settings
from raygam.pipeline.metrics import METRICS

pytestmark = pytest.mark.usefixtures("ray_session")

DIALOGUES = Path(__file__).resolve().parents[2] / "examples" / "dialogues.jsonl"
SAMPLE = re.compile(r"^ray_(raygam_\w+?)(?:_(?:count|sum|bucket))?\{(.*)\} (\S+)$")
MOVED = {
    *("raygam_turns_accepted_total", "raygam_turns_duplicate_total", "raygam_dead_letters_total"),
    *("raygam_source_bytes_total", "raygam_source_lag_bytes", "raygam_partitions", "raygam_open_tasks"),
    *("raygam_parked_tasks", "raygam_reading_paused", "raygam_tasks_applied_total", "raygam_worker_tasks_total"),
    *("raygam_ingest_seconds", "raygam_apply_seconds", "raygam_search_seconds"),
    *("raygam_embed_texts", "raygam_embed_seconds", "raygam_moves_total"),
}


def samples(port: int) -> dict[str, float]:
    """Every sample of raygam, by name and labels; empty while nothing is served."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
            text = response.read().decode()
    except OSError:
        return {}
    lines = (line.rpartition(" ") for line in text.splitlines() if line.startswith("ray_raygam_"))
    return {name: float(value) for name, _, value in lines}


def total(found: dict[str, float], name: str) -> float:
    return sum(value for sample, value in found.items() if sample.startswith(f"ray_{name}{{"))


@pytest.mark.long
def test_everything_that_moved_is_served_with_its_labels(tmp_path: Path) -> None:
    import ray

    from raygam.actors.cluster import Cluster
    from raygam.actors.driving import run_file

    nodes: Any = ray.nodes
    (node,) = nodes()
    port = node["MetricsExportPort"]
    earlier = samples(port)
    source = tmp_path / "a.jsonl"
    source.write_bytes(DIALOGUES.read_bytes() + b"no record\n")
    cluster = Cluster.open(tmp_path / "state", read_settings(embedder="stub"), shards=2, workers=1)
    try:
        run_file(cluster, source)
        user = User("default", "maya")
        facts = cluster.spec.facts
        at = identity.partition_of(identity.record_key(user), facts.partitions, facts.partitioner)
        ask = {"k": 3, "mode": "gam"}
        cluster.routes.call(at, lambda shard: shard.search.remote(at, user, "A greyhound?", None, ask), 10)
        cluster.move(at, 1 - int(cluster.ask("progress").owned[at][-1]))
        deadline = time.monotonic() + 60
        found: dict[str, float] = {}
        while not served(found):
            assert time.monotonic() < deadline, f"missing: {MOVED - names(found)}; {found}"
            time.sleep(0.2)
            found = {sample: value for sample, value in samples(port).items() if sample not in earlier}
    finally:
        cluster.close()
    assert total(found, "raygam_turns_duplicate_total") == 1
    assert total(found, "raygam_dead_letters_total") == 1
    assert total(found, "raygam_partitions") == facts.partitions
    for sample in found:
        match = SAMPLE.match(f"{sample} 0")
        assert match is not None, sample
        labels = set(re.findall(r'(\w+)="', match[2]))
        assert labels >= set(METRICS[match[1]].labels), sample
    assert {shard for sample in found for shard in re.findall(r'shard="([^"]*)"', sample)} == {"shard-0", "shard-1"}


def names(found: dict[str, float]) -> set[str]:
    return {match[1] for sample in found if (match := SAMPLE.match(f"{sample} 0"))}


def served(found: dict[str, float]) -> bool:
    """Whether all has come: Ray's processes send what they count each some seconds."""
    return (
        names(found) >= MOVED
        and total(found, "raygam_turns_accepted_total") == 469
        and total(found, "raygam_partitions") == 8
        and total(found, "raygam_tasks_applied_total") == total(found, "raygam_worker_tasks_total") > 0
    )


def test_a_port_that_is_taken_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    import ray

    from raygam.actors.cluster import connect

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Misconfigured, match=f"port {port} for metrics"):
            connect(None, port)
