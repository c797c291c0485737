"""What every actor of one engine is made from, and what the actors are called."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ..memory.writes import StateFacts
from ..pipeline.config import Settings
from ..pipeline.location import StateLocation

NAMESPACE = "raygam"


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """One engine on a Ray cluster.

    Attributes:
        state: where the state is, for any process; the address in it is shown by no `repr`.
        facts: what it was made with.
        settings: the settings, as the driver read them.
        cluster: the Ray cluster's address.
        node: the id of the only node that reaches the state; empty if all do.
        shards: shard actors.
        workers: worker actors.
        embedders: embedder replicas.
        chats: replicas of the chat model.
    """

    state: StateLocation
    facts: StateFacts
    settings: Settings
    cluster: str
    node: str
    shards: int
    workers: int
    embedders: int
    chats: int = 0

    @property
    def prefix(self) -> str:
        """How the names of all its actors begin: one engine per state and cluster."""
        return engine_prefix(self.state)

    @property
    def lock_name(self) -> str:
        """The name under which the engine's processes share the state's lock.

        A database that is spelt in two ways that cannot be told for one gets no second engine of the same cluster.
        """
        return self.cluster if self.state.directory is not None else f"{self.cluster}, as {self.state.identity}"

    @property
    def supervisor(self) -> str:
        """The supervisor's name."""
        return f"{self.prefix}supervisor"


def engine_prefix(state: StateLocation) -> str:
    """How the names of the actors over a state begin."""
    return f"raygam-{hashlib.sha256(state.identity.encode()).hexdigest()[:12]}/"


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
