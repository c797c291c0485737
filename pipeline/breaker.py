"""When a chat model may be called: a circuit breaker, and the wait that its server asks for.

A pure state machine; the present is passed in. After some failures in a row it opens: nobody
calls. When its pause is over, one call probes; its answer closes the breaker, its failure opens it
for longer. What a server says in `Retry-After` holds for everyone, whatever the state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
"""Seconds, after the first failure in a row, the second, …; the last stays.

Longer than `backoff.PAUSES`: a model's server takes a minute to start, and each attempt may cost money.
"""
_AROUND = 0.5
"""A pause is drawn from the table's value plus and minus half of this share: processes do not return as one."""
_ABOVE = 0.25
"""What a server asks for is lengthened by up to this share, and never shortened."""


def pause_after(failures: int, random: Callable[[], float]) -> float:
    """Seconds to wait after so many failures in a row, of which there is at least one.

    Args:
        failures: how many.
        random: draws from 0 to 1.
    """
    return PAUSES[min(failures, len(PAUSES)) - 1] * (1 - _AROUND / 2 + _AROUND * random())


@dataclass(frozen=True, slots=True)
class Permit:
    """One call that the breaker let through.

    Attributes:
        generation: openings and closings before it: a call that began before the latest proves nothing by failing.
        probe: whether the breaker waits for its outcome.
    """

    generation: int
    probe: bool


class Breaker:
    """Not thread-safe. Times are seconds of one monotonic clock.

    Args:
        failures_to_open: failures in a row that open it.
        random: draws from 0 to 1.
    """

    def __init__(self, failures_to_open: int, random: Callable[[], float]) -> None:
        self._failures_to_open = failures_to_open
        self._random = random
        self._generation = 0
        self._failures = 0
        self._openings = 0  # in a row; 0 while it is closed
        self._probe_at = 0.0
        self._probing = False
        self._asked_until = 0.0

    @property
    def is_open(self) -> bool:
        """Whether the model counts as away, a probe under way included."""
        return self._openings > 0

    @property
    def openings(self) -> int:
        """How often in a row it has opened; 0 while it is closed."""
        return self._openings

    def wait_seconds(self, now: float) -> float | None:
        """How long no call may begin: 0 if one may now, None until a probe's outcome is known."""
        hold = max(self._asked_until, self._probe_at if self.is_open else 0.0) - now
        if hold > 0:
            return hold
        return None if self._probing else 0.0

    def begin(self, now: float) -> Permit:
        """Let one call through; `wait_seconds` is 0."""
        assert self.wait_seconds(now) == 0
        self._probing = self.is_open
        return Permit(self._generation, self.is_open)

    def answered(self, permit: Permit) -> None:
        """The model answered a call, with whatever: it is there. That of an older call counts as well."""
        self._failures = 0
        if self.is_open:
            self._turn()
            self._openings = 0

    def away(self, permit: Permit, now: float, retry_after_seconds: float | None = None) -> None:
        """A call found no model.

        Args:
            permit: of that call.
            now: the present.
            retry_after_seconds: what the server asked for, if it spoke.
        """
        if retry_after_seconds is not None:
            asked = now + retry_after_seconds * (1 + _ABOVE * self._random())
            self._asked_until = max(self._asked_until, asked)
        if permit.generation != self._generation:
            return
        self._failures += 1
        if permit.probe or self._failures >= self._failures_to_open:
            self._turn()
            self._openings += 1
            self._probe_at = now + pause_after(self._openings, self._random)

    def abandoned(self, permit: Permit) -> None:
        """A call ended without showing whether the model is there; if it was the probe, the next one probes."""
        if permit.generation == self._generation and permit.probe:
            self._probing = False

    def _turn(self) -> None:
        self._generation += 1
        self._failures = 0
        self._probing = False
