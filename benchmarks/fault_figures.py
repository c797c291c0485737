"""What a fault run is told, and what it found, as figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from benchmarks.fault_kills import Recovery
from benchmarks.fault_verdict import KINDS, Deviation
from benchmarks.results import Results

SHOWN = 20
"""So many deviations of a kind are told in words."""


class Stores(StrEnum):
    """Where a state can be."""

    SQLITE = "sqlite"
    POSTGRES = "postgres"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a fault run does.

    Attributes:
        seconds: how long faults come.
        rate: records a second, of all producers together.
        users: speakers, over two tenants.
        shards: shard actors.
        workers: worker actors.
        seed: of all choices. What falls when depends on the machine as well.
        kinds: faults to deal, in this order; None deals at random, without end.
    """

    seconds: float
    rate: float = 300.0
    users: int = 300
    shards: int = 2
    workers: int = 2
    seed: int = 7
    kinds: Sequence[str] | None = None


@dataclass(slots=True)
class Outcome:
    """What a fault run found.

    Attributes:
        store: where the state was.
        recoveries: one a fault.
        acknowledged: turns that the topic has for certain.
        records: that the topic has in all.
        dead_letters: that had to be put aside.
        deviations: everything that is not as it must be.
        interrupted: it was ended by a signal.
    """

    store: str
    recoveries: list[Recovery] = field(default_factory=list)
    acknowledged: int = 0
    records: int = 0
    dead_letters: int = 0
    deviations: list[Deviation] = field(default_factory=list)
    interrupted: bool = False


def report(outcomes: Sequence[Outcome], plan: Plan) -> Results:
    """The figures of all runs together, then of each kind of fault."""
    results = Results("faults", plan.seed)
    recoveries = [recovery for outcome in outcomes for recovery in outcome.recoveries]
    kinds = Counter(recovery.kind for recovery in recoveries)
    stores = {"stores": "+".join(outcome.store for outcome in outcomes)}
    conditions = {
        "seconds": plan.seconds,
        "shards": plan.shards,
        "workers": plan.workers,
        "rate": plan.rate,
        "users": plan.users,
        "interrupted": any(outcome.interrupted for outcome in outcomes),
    }
    results.add("kills", len(recoveries), "faults", **stores, **dict(sorted(kinds.items())), **conditions)
    turns, records, letters = (
        sum(getattr(outcome, name) for outcome in outcomes) for name in ("acknowledged", "records", "dead_letters")
    )
    results.add("turns", turns, "turns", **stores, records=records, dead_letters=letters)
    deviations = [one for outcome in outcomes for one in outcome.deviations]
    for kind in KINDS:
        of_kind = [one.what for one in deviations if one.kind == kind]
        details = {"details": of_kind[:SHOWN]} if of_kind else {}
        results.add(kind, len(of_kind), "deviations", **stores, **details)
    _add_seconds(results, recoveries, **stores, faults="all")
    for kind in sorted(kinds):
        _add_seconds(results, [recovery for recovery in recoveries if recovery.kind == kind], faults=kind)
    return results


def _add_seconds(results: Results, recoveries: Sequence[Recovery], **params: Any) -> None:
    _add_percentiles(
        results, [max(known) for one in recoveries if (known := _known(one))], **params, of="all partitions"
    )
    _add_percentiles(results, [second for one in recoveries for second in _known(one)], **params, of="each partition")
    away = [one for one in recoveries if one.away_seconds is not None and _known(one)]
    since_back = [max(_known(one)) - (one.away_seconds or 0.0) for one in away]
    _add_percentiles(results, since_back, **params, of="all partitions", since="broker or database was back")
    gaps = [recovery.gap_seconds for recovery in recoveries if recovery.gap_seconds is not None]
    if gaps:
        results.add("gap_seconds_max", max(gaps), "s", **params, of="partitions that were not concerned")


def _known(recovery: Recovery) -> list[float]:
    return [one for one in recovery.seconds.values() if one is not None]


def _add_percentiles(results: Results, seconds: list[float], **params: Any) -> None:
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        if seconds:
            at = math.ceil(share * len(seconds)) - 1
            results.add(f"recovery_seconds_{name}", sorted(seconds)[at], "s", **params, measured=len(seconds))
