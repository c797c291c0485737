"""Which shard has which partition: nothing moves without need, and all is even in the end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raygam.actors.placement import assign, next_move
from raygam.actors.spec import ActorName

SHARDS = [f"shard-{number}" for number in range(5)]
held_by = st.dictionaries(st.integers(0, 15), st.sampled_from([*SHARDS, "gone"]))


@given(st.integers(1, 16), st.lists(st.sampled_from(SHARDS), unique=True, min_size=1), held_by, held_by)
def test_every_partition_gets_a_living_shard_and_keeps_it(
    partitions: int, living: list[str], wanted: dict[int, str], held: dict[int, str]
) -> None:
    chosen = assign(partitions, living, wanted, held)
    assert sorted(chosen) == list(range(partitions))
    assert set(chosen.values()) <= set(living)
    for partition, shard in held.items():
        if shard in living and partition < partitions:
            assert chosen[partition] == shard
    assert assign(partitions, living, chosen, held) == chosen


@given(st.integers(1, 16), st.lists(st.sampled_from(SHARDS), unique=True, min_size=1))
def test_new_partitions_are_spread_evenly(partitions: int, living: list[str]) -> None:
    loads = [list(assign(partitions, living, {}, {}).values()).count(shard) for shard in living]
    assert max(loads) - min(loads) <= 1


def test_without_a_shard_nothing_is_assigned() -> None:
    assert assign(4, [], {}, {0: "shard-0"}) == {}
    assert next_move([], {0: "shard-0"}) is None


@given(st.integers(1, 16), st.lists(st.sampled_from(SHARDS), unique=True, min_size=1), held_by)
def test_moves_even_the_shards_out_and_end(partitions: int, living: list[str], before: dict[int, str]) -> None:
    held = assign(partitions, living, {}, before)
    moves = 0
    while (move := next_move(living, held)) is not None:
        partition, target = move
        assert held[partition] != target
        held[partition] = target
        moves += 1
        assert moves <= partitions
    loads = [list(held.values()).count(shard) for shard in living]
    assert max(loads) - min(loads) <= 1


def test_names_come_back_and_foreign_ones_are_nobodys() -> None:
    name = ActorName("shard", 3, 12)
    assert ActorName.parse("raygam-1/", name.full("raygam-1/")) == name
    for other in ("raygam-2/shard-3:12", "raygam-1/supervisor", "raygam-1/shard-x:1", "raygam-1/shard-1", "shard-3:12"):
        assert ActorName.parse("raygam-1/", other) is None
