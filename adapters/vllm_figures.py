"""What vLLM's engine counts of itself, step by step."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """Sums over an engine's steps; the difference of two moments is what happened between them.

    Attributes:
        steps: passes of the model.
        running_sum: requests computed together, summed over the steps.
        waiting_steps: steps while further requests waited for room.
        waiting_running_sum: requests computed together, summed over those steps.
        running: computed together in the last step.
        waiting: that waited in the last step.
    """

    steps: int = 0
    running_sum: int = 0
    waiting_steps: int = 0
    waiting_running_sum: int = 0
    running: int = 0
    waiting: int = 0


class Figures:
    """Sums up what vLLM reports after each step. Thread-safe."""

    def __init__(self) -> None:
        self._so_far = EngineFigures()
        self._lock = threading.Lock()

    def so_far(self) -> EngineFigures:
        """The sums."""
        return self._so_far

    def step(self, running: int, waiting: int) -> None:
        """One pass of the model with so many requests, while others waited."""
        with self._lock:
            before = self._so_far
            self._so_far = EngineFigures(
                before.steps + 1,
                before.running_sum + running,
                before.waiting_steps + bool(waiting),
                before.waiting_running_sum + (running if waiting else 0),
                running,
                waiting,
            )

    def logger(self, vllm_config: Any, engine_index: int = 0) -> Any:
        """A factory of vLLM's stat loggers."""
        from vllm.v1.metrics.loggers import StatLoggerBase

        figures = self

        class Logger(StatLoggerBase):  # type: ignore[misc]
            """Hands each step's numbers on."""

            def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
                """Nothing to keep."""

            def record(self, scheduler_stats: Any, iteration_stats: Any, *others: Any, **named: Any) -> None:
                if scheduler_stats is not None:
                    figures.step(scheduler_stats.num_running_reqs, scheduler_stats.num_waiting_reqs)

            def log_engine_initialized(self) -> None:
                """Nothing to say."""

        return Logger(vllm_config, engine_index)
