"""The pipeline's figures through Ray's exporter."""

from __future__ import annotations

import threading
from typing import Any

from ray.util.metrics import Counter, Gauge, Histogram

from ..pipeline.metrics import METRICS


class RayMetrics:
    """A `Metrics` that Ray's agent on each node serves at `/metrics`. Thread-safe."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}
        self._lock = threading.Lock()

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter."""
        if amount > 0:
            self._metric(name).inc(amount, labels)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        self._metric(name).set(value, labels)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Put a value into a histogram."""
        self._metric(name).observe(value, labels)

    def _metric(self, name: str) -> Any:
        made = self._made.get(name)
        if made is None:
            with self._lock:
                made = self._made.get(name)
                if made is None:
                    made = self._made[name] = _make(name)
        return made


def _make(name: str) -> Any:
    metric = METRICS[name]
    # Ray puts "ray_" before a name, and the exporter "_total" behind a counter's.
    plain = name.removesuffix("_total") if metric.kind == "counter" else name
    if metric.kind == "histogram":
        return Histogram(plain, metric.help, boundaries=list(metric.buckets), tag_keys=metric.labels)
    return (Counter if metric.kind == "counter" else Gauge)(plain, metric.help, tag_keys=metric.labels)
