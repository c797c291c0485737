"""What a tenant may spend: a bucket of tokens that fills up minute by minute.

Pure; the present is passed in. A bucket holds one minute's tokens. A call may begin while there is
something in it, and may leave it in debt: so no call is too large for a budget, and who overdrew waits.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..memory.errors import Misconfigured


class TokenBudgets:
    """The buckets of one process. Not thread-safe. Times are seconds of one monotonic clock.

    Args:
        tokens_per_minute: of every tenant that is not named; None for no limit.
        tenants: tokens per minute of named tenants.

    Raises:
        Misconfigured: a budget is less than one token.
    """

    def __init__(self, tokens_per_minute: int | None = None, tenants: Mapping[str, int] | None = None) -> None:
        self._default = tokens_per_minute
        self._named = dict(tenants or {})
        for whose, budget in [("every tenant", tokens_per_minute), *self._named.items()]:
            if budget is not None and budget < 1:
                raise Misconfigured(
                    f"the token budget of {whose} is {budget} a minute; give 1 or more, or leave it out for no limit "
                    "(to keep a tenant from the model, choose rules for it instead)"
                )
        self._levels: dict[str, tuple[float, float]] = {}  # tokens, and when it was so; who is missing has all

    def spend(self, tenant: str, tokens: int, now: float) -> None:
        """Take tokens out of a bucket, or put back what was taken for nothing (less than 0)."""
        per_minute = self._per_minute(tenant)
        if per_minute is None:
            return
        self._levels[tenant] = (self._level(tenant, per_minute, now) - tokens, now)

    def wait_seconds(self, tenant: str, now: float) -> float:
        """How long the tenant's calls have to wait; 0 if one may begin."""
        per_minute = self._per_minute(tenant)
        if per_minute is None:
            return 0.0
        return max(0.0, (1 - self._level(tenant, per_minute, now)) * 60 / per_minute)

    def barred(self, now: float) -> frozenset[str]:
        """The tenants whose calls have to wait."""
        for tenant in list(self._levels):
            per_minute = self._per_minute(tenant)
            if per_minute is None or self._level(tenant, per_minute, now) >= per_minute:
                del self._levels[tenant]
        return frozenset(tenant for tenant in self._levels if self.wait_seconds(tenant, now) > 0)

    def _per_minute(self, tenant: str) -> int | None:
        return self._named.get(tenant, self._default)

    def _level(self, tenant: str, per_minute: int, now: float) -> float:
        if tenant not in self._levels:
            return per_minute
        level, at = self._levels[tenant]
        return min(level + (now - at) * per_minute / 60, per_minute)
