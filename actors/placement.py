"""Which shard should have which partition: a pure decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def assign(
    partitions: int, shards: Sequence[str], wanted: Mapping[int, str], held: Mapping[int, str]
) -> dict[int, str]:
    """Return a shard for every partition, moving none that has a living one.

    What a shard holds stays with it, else what was wanted before; the rest goes to whoever has least.

    Args:
        partitions: their number.
        shards: the living shards, in the order of preference.
        wanted: an earlier answer.
        held: what the shards say they have.
    """
    if not shards:
        return {}
    living = set(shards)
    chosen: dict[int, str] = {}
    for partition in range(partitions):
        for known in (held, wanted):
            if known.get(partition) in living:
                chosen[partition] = known[partition]
                break
    load = dict.fromkeys(shards, 0)
    for shard in chosen.values():
        load[shard] += 1
    for partition in range(partitions):
        if partition not in chosen:
            least = min(shards, key=lambda shard: load[shard])
            chosen[partition] = least
            load[least] += 1
    return chosen


def next_move(shards: Sequence[str], held: Mapping[int, str]) -> tuple[int, str] | None:
    """The move that evens the shards out most, None if they differ by one partition at most."""
    if not shards:
        return None
    owned: dict[str, list[int]] = {shard: [] for shard in shards}
    for partition, shard in sorted(held.items()):
        if shard in owned:
            owned[shard].append(partition)
    least = min(shards, key=lambda shard: len(owned[shard]))
    most = max(shards, key=lambda shard: len(owned[shard]))
    if len(owned[most]) - len(owned[least]) < 2:
        return None
    return owned[most][-1], least
