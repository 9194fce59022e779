"""Costs of units under each way follow what recompute, FSDP and tensor parallelism do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from estimators.axes import Spread
from estimators.devices.catalogue import gpu
from estimators.work import Collectives
from placement.pricing.unit_costs import KEPT_SHARE, ModelCosts, merged_communication
from tests.placement.exact.test_candidate_ways import MIB, gpt

MODEL = ModelCosts(gpt(), gpu("V100-32"))
FIRST, BLOCK, LAST = MODEL.units[0], MODEL.units[1], MODEL.units[-1]


def test_equal_units_share_their_costs_and_the_ends_are_no_blocks() -> None:
    assert len(MODEL.units) == 14
    assert len(set(MODEL.units)) == 3
    assert set(MODEL.units[1:-1]) == {BLOCK}
    assert [unit.is_block for unit in (FIRST, BLOCK, LAST)] == [False, True, False]


def test_recompute_adds_a_forward_pass_and_selective_recompute_a_part_of_it() -> None:
    plain, waits, part = Spread(), Spread(recompute=True), Spread(recompute=True, selective=True)
    forward = BLOCK.forward_seconds(plain, 4)
    assert BLOCK.seconds(waits, 4) - BLOCK.seconds(plain, 4) == pytest.approx(forward)
    assert 0 < BLOCK.seconds(part, 4) - BLOCK.seconds(plain, 4) < forward
    assert FIRST.seconds(waits, 4) == FIRST.seconds(plain, 4) and FIRST.kept_bytes(waits, 4) == FIRST.kept_bytes(
        plain, 4
    )
    assert [BLOCK.kept_bytes(way, 1) / MIB for way in (plain, waits, part)] == [40, 1, 40 * KEPT_SHARE]
    assert [BLOCK.working_bytes(way, 1) / MIB for way in (plain, waits, part)] == pytest.approx(
        [0, 40, 40 * (1 - KEPT_SHARE)]
    )


def test_fsdp_gathers_a_block_for_either_pass_and_the_rest_once_together() -> None:
    way = Spread(dp_shard=4)
    block, first, last = BLOCK.traffic(way, 1, 0), FIRST.traffic(way, 1, 1), LAST.traffic(way, 1, 0)
    assert [collective.kind for collective in block.forward] == ["all_gather"]
    assert [collective.kind for collective in block.backward] == ["all_gather", "reduce_scatter"]
    assert [collective.kind for collective in first.backward] == ["reduce_scatter"]
    assert not block.update
    total = merged_communication((collective, 1) for traffic in (first, last) for collective in traffic.forward)
    assert [(collective.num, collective.num_bytes) for collective in total] == [(1, 2 * 8 * MIB * 4)]


def test_copies_of_parameters_in_bf16_are_gathered_in_half_the_bytes_and_freed_by_fsdp() -> None:
    profile = gpt()
    narrow = replace(profile, units=tuple(replace(unit, gathered_bytes=2) for unit in profile.units))
    block, way = ModelCosts(narrow, gpu("V100-32")).units[1], Spread(dp_shard=4)
    gathered, fp32 = block.traffic(way, 1, 0), BLOCK.traffic(way, 1, 0)
    assert [2 * collective.num_bytes for collective in gathered.forward] == [
        collective.num_bytes for collective in fp32.forward
    ]
    assert gathered.backward[1] == fp32.backward[1], "gradients are added up in fp32"
    assert BLOCK.kept_bytes(way, 1) - block.kept_bytes(way, 1) == min(BLOCK.kept_bytes(way, 1), 2 * BLOCK.num_params)
    assert block.kept_bytes(Spread(), 1) == BLOCK.kept_bytes(Spread(), 1)


def test_tensor_parallel_ranks_communicate_in_every_pass_and_more_with_recompute() -> None:
    traffic = BLOCK.traffic(Spread(tp=2, sequence_parallel=True), 3, 0)
    counts = [
        sum(collective.num * often for collective, often in traffic.of_step(5, recomputed))
        for recomputed in (False, True)
    ]
    assert counts == [5 * 2 * 4, 5 * 2 * 6]
    assert {collective.num_bytes / collective.num for collective in traffic.forward} == {3 * MIB}
    assert not FIRST.traffic(Spread(tp=2), 3, 1).forward


def test_merged_collectives_keep_their_number_and_bytes() -> None:
    collectives = Collectives("all_gather", "dp", True, 2, 10)
    other = replace(collectives, overlaps=False)
    assert merged_communication([(collectives, 1), (other, 1), (collectives, 1)]) == [
        replace(collectives, num=4, num_bytes=20),
        other,
    ]


def test_replicas_share_optimizer_states_only_with_zero1() -> None:
    assert Spread(dp_replicate=4).optimizer_shards == 1
    zero1 = Spread(dp_replicate=4, zero1=True)
    assert (zero1.parameter_shards, zero1.optimizer_shards) == (1, 4)
    held_bytes = BLOCK.held_bytes(Spread(), 16)
    assert BLOCK.held_bytes(Spread(dp_replicate=4), 16) == held_bytes == 4 * MIB * 16
    assert BLOCK.held_bytes(Spread(dp_replicate=4, zero1=True), 16) == 4 * MIB * (8 + 8 / 4)
    assert BLOCK.held_bytes(Spread(dp_shard=4), 16) == held_bytes / 4
