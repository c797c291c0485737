"""What a state was made with, as its store keeps it: names and values, compared at every opening."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..memory.errors import Misconfigured
from ..memory.writes import StateFacts
from .schema import FORMAT_VERSION

REVISION = f"{FORMAT_VERSION:04d}"
"""The migration that makes this form."""

_REMEDIES = {
    "partitions": "open it with that number of partitions, or make a new state from the sources",
    "partitioner": "open it with that partitioner, or make a new state from the sources",
    "embedder": "open it with that embedding model, or make a new state from the sources: vectors of two do not compare",
    "dimension": "open it with an embedding model of that dimension, or make a new state from the sources",
    "template": "open it with the raygam that made it, or make a new state from the sources",
}


def to_rows(facts: StateFacts) -> list[dict[str, str]]:
    """The rows that a new state is given."""
    values = {"format": FORMAT_VERSION, **{name: getattr(facts, name) for name in _REMEDIES}}
    return [{"name": name, "value": str(value)} for name, value in values.items()]


def from_rows(values: Mapping[str, str], state: object, name: object) -> StateFacts:
    """The facts of a state.

    Args:
        values: by name, as they are stored.
        state: the state, for people.
        name: the file or table that says so, for people.

    Raises:
        Misconfigured: they are of a newer form, or none.
    """
    held = dict(values)
    version = held.pop("format", "")
    known = version.isdecimal() and int(version) <= FORMAT_VERSION
    if not known:
        raise Misconfigured(
            f"{state} has format {version or '(none)'}, this raygam writes format {FORMAT_VERSION}; "
            "open it with the newer raygam that made it"
        )
    try:
        return msgspec.convert(held, StateFacts, strict=False)
    except msgspec.ValidationError as error:
        raise Misconfigured(
            f"{name} does not say what the state was made with ({error}); restore it from a copy"
        ) from None


def compare(state: object, held: StateFacts, wanted: StateFacts) -> None:
    """Refuse to open a state with other facts than it was made with.

    Raises:
        Misconfigured: they differ; the message names the first that does, and what to do.
    """
    for name, remedy in _REMEDIES.items():
        made, asked = getattr(held, name), getattr(wanted, name)
        if made != asked:
            raise Misconfigured(
                f"{state} was made with {name} = {made!r}, the settings say {asked!r}; {remedy}. Nothing was changed"
            )


def check_partitions(facts: StateFacts) -> None:
    """Refuse to make a state without partitions.

    Raises:
        Misconfigured: it would have none.
    """
    if facts.partitions < 1:
        raise Misconfigured(f"a state has at least one partition, not {facts.partitions}")


def other_revision(name: object, revision: str | None) -> Misconfigured:
    """The error for tables that are at another migration than this raygam's."""
    if revision is not None and revision > REVISION:
        return Misconfigured(
            f"{name} has format {revision}, this raygam writes {REVISION}; open it with the newer raygam that made it"
        )
    return Misconfigured(
        f"{name} has format {revision or '(none)'}, this raygam reads {REVISION}; "
        "an engine that opens it for writing (`raygam run`) brings it up to date"
    )
