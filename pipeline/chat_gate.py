"""Who may call a chat model now: a hard cap, first come first served, and nobody while it is away.

One gate per process and model. Callers are threads; they wait here and nowhere else.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Protocol

from ..memory.errors import ModelAway, TokensSpent
from .breaker import Breaker, Permit
from .budgets import TokenBudgets

_TOGETHER_SECONDS = 1.0
"""Calls without an answer that end within so long of each other have failed together: a replica has died, say."""


class Clock(Protocol):
    """The present, and waiting in it."""

    def now(self) -> float:
        """Seconds; only differences mean something."""
        ...

    def wait(self, changed: threading.Condition, seconds: float) -> None:
        """Wait, holding the condition's lock before and after, until it is notified or the time is over."""
        ...


class MonotonicClock:
    """The machine's."""

    def now(self) -> float:
        """Seconds since some moment."""
        return time.monotonic()

    def wait(self, changed: threading.Condition, seconds: float) -> None:
        """Wait for a notification, or as long."""
        changed.wait(seconds)


class ChatGate:
    """Lets callers of one model through. Thread-safe.

    Args:
        model: what it is called in messages.
        concurrency: calls under way at most.
        breaker: of the model; the gate's alone from now on.
        budgets: of the tenants; likewise.
        clock: for both.
    """

    def __init__(self, model: str, concurrency: int, breaker: Breaker, budgets: TokenBudgets, clock: Clock) -> None:
        self._model = model
        self._concurrency = concurrency
        self._breaker = breaker
        self._budgets = budgets
        self._clock = clock
        self._changed = threading.Condition()
        self._queue: deque[object] = deque()
        self._under_way = 0
        self._last_failure = ""
        self._answered = 0
        self._collapses = 0
        self._failed_at: float | None = None  # None from an answer on
        self._closed = False

    @property
    def under_way(self) -> int:
        """Calls now."""
        return self._under_way

    @property
    def record(self) -> tuple[int, int]:
        """How many calls were answered so far, and how often it failed; calls that fail together count once."""
        return self._answered, self._collapses

    @property
    def is_away(self) -> bool:
        """Whether the model counts as away."""
        return self._breaker.is_open

    def enter(self, tenant: str, tokens: int, deadline: float, patient_until: float | None = None) -> Permit:
        """Wait for one's turn and take it; `leave` gives it back.

        Args:
            tenant: whose budget the call is on.
            tokens: taken out of it for the time being.
            deadline: on the gate's clock.
            patient_until: when to give up if the model is away; default: the deadline.

        Raises:
            ModelAway: the turn does not come before the deadline, the tenant's tokens are used up, or the gate closed.
        """
        me = object()
        with self._changed:
            self._queue.append(me)
            try:
                while not self._may_go(me, tenant, deadline, deadline if patient_until is None else patient_until):
                    pass
                permit = self._breaker.begin(self._clock.now())
                self._under_way += 1
                self._budgets.spend(tenant, tokens, self._clock.now())
                return permit
            finally:
                self._queue.remove(me)
                self._changed.notify_all()

    def _may_go(self, me: object, tenant: str, deadline: float, patient_until: float) -> bool:
        """Whether it is one's turn; else after waiting for a change."""
        now = self._clock.now()
        self._check_open(now, deadline)
        if (debt := self._budgets.wait_seconds(tenant, now)) > 0:
            raise TokensSpent(
                f"the tokens of tenant {tenant} for {self._model} are used up for now; its tasks go on in {debt:.0f} s "
                "(chat_tenant_tokens_per_minute)",
                debt,
            )
        hold = self._breaker.wait_seconds(now)
        if hold is not None and now + hold > (patient_until if hold else deadline):
            raise ModelAway(self._held_up(now), hold)
        first = self._queue[0] is me and self._under_way < self._concurrency
        if first and hold == 0:
            return True
        self._clock.wait(self._changed, min(hold, deadline - now) if first and hold else deadline - now)
        return False

    def leave(self, permit: Permit, tenant: str, tokens: int) -> None:
        """The call was answered.

        Args:
            permit: its permit.
            tenant: as it entered.
            tokens: what it took above what `enter` was told; less than 0 if it took less.
        """
        with self._changed:
            self._breaker.answered(permit)
            self._answered += 1
            self._failed_at = None
            self._over(tenant, tokens)

    def leave_away(self, permit: Permit, tenant: str, tokens: int, error: Exception, counts: bool = True) -> None:
        """The call was not answered.

        Args:
            permit: its permit.
            tenant: as it entered.
            tokens: as it entered; they are given back.
            error: why.
            counts: whether it says that the model is away.
        """
        with self._changed:
            if counts:
                self._last_failure = str(error)
                asked = error.retry_after_seconds if isinstance(error, ModelAway) else None
                now = self._clock.now()
                self._collapses += self._failed_at is None or now - self._failed_at > _TOGETHER_SECONDS
                self._failed_at = now
                self._breaker.away(permit, now, asked)
            else:
                self._breaker.abandoned(permit)
            self._over(tenant, -tokens)

    def _over(self, tenant: str, tokens: int) -> None:
        self._under_way -= 1
        self._budgets.spend(tenant, tokens, self._clock.now())
        self._changed.notify_all()

    def report(self, error: Exception) -> None:
        """Take note that the model's server did not answer to something else than a call.

        It counts as a call would that begins now; where none may begin, it says nothing new.
        """
        with self._changed:
            now = self._clock.now()
            if self._breaker.wait_seconds(now) == 0:
                asked = error.retry_after_seconds if isinstance(error, ModelAway) else None
                self._last_failure = str(error)
                self._breaker.away(self._breaker.begin(now), now, asked)
                self._changed.notify_all()

    def pause(self, seconds: float, deadline: float) -> bool:
        """Wait as long, and until calls may begin or are tried; return False at once if that ends after the deadline.

        Raises:
            ModelAway: the gate closed.
        """
        with self._changed:
            now = self._clock.now()
            until = now + max(seconds, self._breaker.wait_seconds(now) or 0.0)
            if until > deadline:
                return False
            while (now := self._clock.now()) < until:
                self._check_open(now, deadline)
                self._clock.wait(self._changed, until - now)
        return True

    def room(self) -> int:
        """How many calls could begin now, beside those that wait: 1 where the breaker wants a probe."""
        with self._changed:
            if self._closed or self._breaker.wait_seconds(self._clock.now()) != 0:
                return 0
            capacity = 1 if self._breaker.is_open else self._concurrency - self._under_way
            return max(0, capacity - len(self._queue))

    def wait_until_open(self, seconds: float) -> bool:
        """Wait until calls may begin, at most so long; return whether they may."""
        with self._changed:
            until = self._clock.now() + seconds
            while not self._closed:
                now = self._clock.now()
                hold = self._breaker.wait_seconds(now)
                if hold == 0:
                    return True
                if now >= until:
                    return False
                self._clock.wait(self._changed, until - now if hold is None else min(hold, until - now))
            return False

    def barred(self) -> frozenset[str]:
        """Tenants whose tokens are used up for now."""
        with self._changed:
            return self._budgets.barred(self._clock.now())

    def obstacle(self) -> str:
        """What stands in the way of calls, for people; empty if nothing does."""
        with self._changed:
            if self._closed:
                return f"the callers of {self._model} have ended"
            now = self._clock.now()
            return self._held_up(now) if self._breaker.is_open or self._breaker.wait_seconds(now) != 0 else ""

    @property
    def setbacks(self) -> int:
        """How often in a row the model was asked again for nothing, once it counted as away."""
        return self._breaker.openings

    def exhausted(self) -> str:
        """Which tenants wait for tokens, for people; empty if none does."""
        with self._changed:
            now = self._clock.now()
            barred = self._budgets.barred(now)
            if not barred:
                return ""
            last = max(self._budgets.wait_seconds(tenant, now) for tenant in barred)
            return (
                f"{len(barred)} tenant(s) have used up their tokens for {self._model}: "
                f"{', '.join(sorted(barred)[:5])}{', …' if len(barred) > 5 else ''}; all go on within {last:.0f} s"
            )

    def close(self) -> None:
        """End; who waits gets `ModelAway`. Calls under way are the model's to end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _check_open(self, now: float, deadline: float) -> None:
        if self._closed:
            before = f" (before that: {self._last_failure})" if self._breaker.is_open else ""
            raise ModelAway(
                f"the callers of {self._model} ended with their process; the task waits for the next{before}"
            )
        if now >= deadline:
            behind = self._held_up(now) if self._breaker.wait_seconds(now) != 0 else f"{self._model} is busy"
            raise ModelAway(f"the task's time is over before its call could begin: {behind}")

    def _held_up(self, now: float) -> str:
        hold = self._breaker.wait_seconds(now)
        state = "is away" if self._breaker.is_open else "asked to wait"
        then = "it is being asked again" if not hold else f"it is asked again in {hold:.1f} s"
        return f"{self._model} {state} ({self._last_failure}); {then}"
