"""Where a partition lies in its store, and which numbers are its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from .schema import EVENT_STEP, LOG_BITS, OWNER_BITS

_LAST_NUMBER = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Place:
    """A partition's place.

    Attributes:
        state: the state, for people; no password is in it.
        name: the file or database, for people.
        partition: the partition's number.
        owner_base: its owners are numbered from here on.
        log_base: so is its vector log. Callers see the numbers without it, the same in every store.
        end_seq: its turns and commands are numbered below this.
        owners_here: values of `Dialect.owners_here`.
        partition_here: values of `Dialect.partition_here`.
    """

    state: str
    name: str
    partition: int
    owner_base: int = 0
    log_base: int = 0
    end_seq: int = _LAST_NUMBER // EVENT_STEP
    owners_here: tuple[int, ...] = ()
    partition_here: tuple[int, ...] = ()

    @classmethod
    def shared(cls, state: str, partition: int) -> Self:
        """A place in a database that holds all partitions."""
        base = partition << OWNER_BITS
        return cls(
            state,
            state,
            partition,
            base,
            partition << LOG_BITS,
            (1 << LOG_BITS) // EVENT_STEP,
            (base, base + (1 << OWNER_BITS) - 1),
            (partition,),
        )
