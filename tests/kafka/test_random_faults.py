"""`benchmarks.faults` for some seconds: actors and a broker that fall while producers write, and nothing deviates."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.fault_figures import Plan, report
from benchmarks.fault_verdict import KINDS
from benchmarks.faults import disturb
from benchmarks.kafka_broker import KafkaBroker


@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
def test_faults_one_after_another_change_nothing(killable: KafkaBroker, tmp_path: Path) -> None:
    kinds = ("shard", "broker")
    plan = Plan(seconds=0, rate=150, users=60, seed=11, kinds=kinds)
    (tmp_path / "sqlite").mkdir()
    outcome = disturb(killable, tmp_path / "sqlite", plan)
    assert [str(one) for one in outcome.deviations] == []
    assert [one.kind for one in outcome.recoveries] == list(kinds)
    assert outcome.acknowledged > 200
    assert outcome.records > outcome.acknowledged, "no record came twice, or was bad"
    assert outcome.dead_letters > 0
    figures = {
        row["metric"]: row["value"] for row in reversed(report([outcome], plan).rows)
    }  # the first is the headline
    assert figures["kills"] == 2
    assert figures["turns"] == outcome.acknowledged
    assert {figures[name] for name in KINDS} == {0}


def test_without_a_release_of_kafka_it_says_what_to_set(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.faults"],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "set KAFKA_HOME" in done.stderr
