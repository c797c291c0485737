"""What every store asks of a write before it begins a transaction."""

from __future__ import annotations

from itertools import pairwise

from ..memory.writes import WriteSet


def check_write(write: WriteSet, dimension: int, next_seq: int) -> None:
    """Refuse a write whose lists do not belong together, before it begins.

    Raises:
        ValueError: a fault of the caller.
    """
    held = (0, dimension) if write.vectors is None else write.vectors.shape
    if write.events and held != (len(write.events), dimension):
        raise ValueError(f"{len(write.events)} events have vectors of shape {held}; the dimension is {dimension}")
    seqs = [event.seq for event in write.events]
    if seqs and (seqs[0] < next_seq or any(second <= first for first, second in pairwise(seqs))):
        raise ValueError(f"events must come by `seq`, from {next_seq} on; these are {seqs[:3]} … {seqs[-1]}")
    if write.event_sources and len(write.event_sources) != len(write.events):
        raise ValueError(f"{len(write.events)} events have {len(write.event_sources)} sources")
    for shadow in write.shadows:
        if shadow.vectors.shape != (len(shadow.topics), dimension):
            raise ValueError(
                f"shadow of {shadow.user}: {len(shadow.topics)} topics have vectors of shape {shadow.vectors.shape}"
            )
    for closed in write.closed:
        if (closed.topic is None) != (closed.topic_vector is None):
            raise ValueError(f"episode {closed.episode.id} has a topic without a vector, or the other way round")
        if closed.topic_vector is not None and closed.topic_vector.shape != (dimension,):
            raise ValueError(f"topic of {closed.episode.id}: vector of shape {closed.topic_vector.shape}")
