"""What every actor of one engine is made from, and what the actors are called."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from ..memory.writes import StateFacts
from ..pipeline.config import Settings

NAMESPACE = "raygam"


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """One engine on a Ray cluster.

    Attributes:
        state: the state directory, absolute.
        facts: what it was made with.
        settings: the settings, as the driver read them.
        cluster: the Ray cluster's address: the name under which its processes share the state's lock.
        node: the id of the node that holds the directory.
        shards: shard actors.
        workers: worker actors.
        embedders: embedder replicas.
    """

    state: Path
    facts: StateFacts
    settings: Settings
    cluster: str
    node: str
    shards: int
    workers: int
    embedders: int

    @property
    def prefix(self) -> str:
        """How the names of all its actors begin: one engine per state and cluster."""
        return engine_prefix(self.state)

    @property
    def supervisor(self) -> str:
        """The supervisor's name."""
        return f"{self.prefix}supervisor"


def engine_prefix(state: Path) -> str:
    """How the names of the actors over a state begin."""
    return f"raygam-{hashlib.sha256(str(state).encode()).hexdigest()[:12]}/"


@dataclass(frozen=True, slots=True, order=True)
class ActorName:
    """Kind, slot and incarnation of an actor; a replacement has the slot and the next incarnation."""

    kind: str
    slot: int
    incarnation: int

    @property
    def place(self) -> str:
        """The slot's name, the same for every incarnation."""
        return f"{self.kind}-{self.slot}"

    def full(self, prefix: str) -> str:
        """The name that Ray knows."""
        return f"{prefix}{self.place}:{self.incarnation}"

    @classmethod
    def parse(cls, prefix: str, name: str) -> ActorName | None:
        """Read a name that Ray knows; None if it is not one of this engine's."""
        place, colon, incarnation = name.removeprefix(prefix).partition(":")
        kind, dash, slot = place.rpartition("-")
        if not name.startswith(prefix) or not colon or not dash or not slot.isdecimal() or not incarnation.isdecimal():
            return None
        return cls(kind, int(slot), int(incarnation))
