"""What the pipeline counts, and the port through which it tells.

One table names every metric; a process without an exporter uses `NoMetrics`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric's definition.

    Attributes:
        kind: what is done with it.
        help: one sentence, with the unit.
        labels: label names.
        buckets: upper bounds of a histogram, in the metric's unit.
    """

    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_CALL_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0)
_SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)

METRICS = {
    "raygam_turns_accepted_total": Metric("counter", "Turns stored.", ("shard",)),
    "raygam_turns_duplicate_total": Metric("counter", "Turns that were stored before.", ("shard",)),
    "raygam_dead_letters_total": Metric("counter", "Records put aside.", ("shard",)),
    "raygam_source_bytes_total": Metric("counter", "Bytes of sources taken.", ("shard",)),
    "raygam_source_lag_bytes": Metric("gauge", "Bytes of the source that are still to be taken.", ("shard",)),
    "raygam_source_records_total": Metric("counter", "Records of topics taken.", ("shard",)),
    "raygam_source_lag_records": Metric("gauge", "Records of a topic's partition that are not searchable yet.", ("shard", "partition")),
    "raygam_partitions": Metric("gauge", "Partitions owned.", ("shard",)),
    "raygam_open_tasks": Metric("gauge", "Tasks that workers will take.", ("shard",)),
    "raygam_parked_tasks": Metric("gauge", "Tasks that wait for a person, and those behind them.", ("shard",)),
    "raygam_outbox_messages": Metric("gauge", "Messages for other systems that are not sent yet.", ("shard",)),
    "raygam_messages_sent_total": Metric("counter", "Messages that Kafka acknowledged.", ("shard", "kind")),
    "raygam_messages_failed_total": Metric("counter", "Attempts to send messages that failed.", ("shard", "kind")),
    "raygam_reading_paused": Metric("gauge", "1 while reading waits for workers, memory, disk or unsent updates.", ("shard",)),
    "raygam_fenced_total": Metric("counter", "Partitions lost to a newer epoch.", ("shard",)),
    "raygam_tasks_applied_total": Metric("counter", "Proposals applied.", ("shard",)),
    "raygam_leases_lost_total": Metric("counter", "Proposals that came too late.", ("shard",)),
    "raygam_tasks_failed_total": Metric("counter", "Tasks that a worker gave back.", ("shard",)),
    "raygam_tasks_released_total": Metric("counter", "Tasks that a worker gave back since nobody could do them then.", ("shard",)),
    "raygam_ingest_seconds": Metric("histogram", "Time of one batch's transaction.", ("shard",), _SECONDS),
    "raygam_apply_seconds": Metric("histogram", "Time of one group of proposals' transaction.", ("shard",), _SECONDS),
    "raygam_search_seconds": Metric("histogram", "Time of one search in its shard, without embedding.", ("shard",), _SECONDS),
    "raygam_embed_texts": Metric("histogram", "Texts of one pass of the embedding model.", ("replica",), _SIZES),
    "raygam_embed_seconds": Metric("histogram", "Time of one pass of the embedding model.", ("replica",), _SECONDS),
    "raygam_worker_tasks_total": Metric("counter", "Tasks worked on.", ("worker",)),
    "raygam_chat_calls_total": Metric("counter", "Calls of a chat model: answered, away, refused (by our settings), rejected (by what was asked).", ("model", "prompt", "outcome")),
    "raygam_chat_answers_total": Metric("counter", "A chat model's answers: taken, bad (asked again), known (of an earlier attempt).", ("model", "prompt", "outcome")),
    "raygam_chat_dropped_items_total": Metric("counter", "Items of its answers that were left out since they name nothing that exists.", ("model", "prompt")),
    "raygam_chat_tokens_total": Metric("counter", "Tokens said to a chat model and by it.", ("model", "kind")),
    "raygam_chat_seconds": Metric("histogram", "Time of one call of a chat model, answered or not.", ("model",), _CALL_SECONDS),
    "raygam_chat_under_way": Metric("gauge", "Calls of a chat model under way in a process.", ("model",)),
    "raygam_chat_away": Metric("gauge", "1 while a process waits for a chat model that is away.", ("model",)),
    "raygam_replacements_total": Metric("counter", "Actors replaced, by kind and cause.", ("kind", "cause")),
    "raygam_moves_total": Metric("counter", "Partitions moved, by a person or to even the shards out."),
    "raygam_requests_total": Metric("counter", "HTTP requests, by route and status.", ("route", "status")),
    "raygam_request_seconds": Metric("histogram", "Time of one HTTP request, by route.", ("route",), _SECONDS),
}  # fmt: skip


class Metrics(Protocol):
    """Where figures go. Thread-safe; never raises; names are keys of `METRICS`."""

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter."""
        ...

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        ...

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Put a value into a histogram."""
        ...


class NoMetrics:
    """Nobody looks."""

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Nothing."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Nothing."""

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Nothing."""
