"""Plans and layouts have names of their own, survive JSON, and say which ranks share what."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from estimators.model import GIB, MIB, Layout, Plan, mib_in_words, size_in_words

PLANS = [
    Plan(4),
    Plan(2, 3, dp_shard=4, recompute=True),
    Plan(2, 2, dp_shard=2, tp=4, sequence_parallel=True),
    Plan(2, 2, dp_shard=2, dp_replicate=2),
    Plan(4, dp_replicate=4),
    Plan(4, dp_shard=2, reshard=False),
    Plan(4, recompute=True, selective=True),
    Plan(2, 4, pp=3),
    Plan(2, 2, tp=2, pp=3, schedule="gpipe"),
    Plan(2, 4, dp_shard=2, pp=3),
    Plan(2, 4, dp_replicate=2, dp_shard=2, pp=3),
    Plan(4, dp_replicate=4, zero1=True),
    Plan(4, co_shard=2),
    Plan(4, spatial=2),
    Plan(4, dp_shard=2, spatial=2),
    Plan(4, recompute=True, co_shard=4),
]


@pytest.mark.parametrize(
    ("plan", "short"),
    [
        (Plan(4, 2, recompute=True), "1 rank"),
        (Plan(4, dp_shard=2), "FSDP ×2"),
        (Plan(4, tp=2), "TP ×2"),
        (Plan(2, 4, pp=3), "PP ×3"),
        (Plan(4, dp_replicate=4), "DP ×4"),
        (Plan(4, dp_replicate=4, zero1=True), "ZeRO-1 ×4"),
        (Plan(2, 4, dp_replicate=2, dp_shard=2, pp=3), "DP ×2 · FSDP ×2 · PP ×3"),
        (Plan(4, dp_shard=2, spatial=2), "space ×2 · FSDP ×2"),
    ],
)
def test_the_short_text_of_a_plan_names_every_degree(plan: Plan, short: str) -> None:
    assert plan.short == short


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_plans_and_layouts_survive_json(plan: Plan) -> None:
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    for layout in plan.layouts:
        assert Layout.from_json(json.loads(json.dumps(asdict(layout)))) == layout


def test_every_layout_has_a_name_of_its_own() -> None:
    layouts = [layout for plan in PLANS for layout in plan.layouts]
    assert len(set(map(str, layouts))) == len(set(layouts)) == len(layouts)


def test_plans_written_before_tensor_parallelism_are_read() -> None:
    row = {"dp_shard": 2, "micro_batch": 8, "num_micro_batches": 3, "recompute": True}
    assert Plan.from_json(row) == Plan(8, 3, dp_shard=2, recompute=True)
    of_0_1_0 = {**Plan(8, dp_replicate=2, divided=True).to_json(), "tables": True}
    del of_0_1_0["divided"]
    assert Plan.from_json(of_0_1_0) == Plan(8, dp_replicate=2, divided=True)


def test_tensor_parallel_ranks_have_the_same_samples() -> None:
    plan = Plan(4, 2, dp_shard=3, tp=2)
    assert (plan.world_size, plan.batch) == (6, 24)
    assert [plan.data_rank(rank) for rank in range(6)] == [0, 0, 1, 1, 2, 2]


def test_replicas_of_the_same_shards_have_other_samples() -> None:
    plan = Plan(4, 2, dp_shard=3, dp_replicate=2, tp=2)
    assert (plan.world_size, plan.batch) == (12, 48)
    assert [plan.data_rank(rank) for rank in range(0, 12, 2)] == list(range(plan.num_shares))
    assert list(plan.layout.mesh.items()) == [("replicate", 2), ("dp", 3), ("tp", 2)]


def test_ranks_may_take_unlike_shares_of_a_batch() -> None:
    plan = Plan(5, 2, dp_shard=4, tp=2, shares=(5, 5, 3, 3))
    assert plan.batch == 32 and "micro-batch 2 × 5, shares 2 × 5 + 2 × 3" in str(plan)
    weights = [plan.weight_of(rank) for rank in range(8)]
    assert weights == [1.25] * 4 + [0.75] * 4
    assert plan.layouts == Plan(5, 2, dp_shard=4, tp=2).layouts and Plan.from_json(plan.to_json()) == plan
    assert Plan(4, dp_shard=2, shares=(4, 4)) == Plan(4, dp_shard=2)


@pytest.mark.parametrize(
    "fields",
    [{"shares": (4,)}, {"shares": (4, 3, 1)}, {"shares": (3, 2)}, {"shares": (5, 3)}, {"shares": (4, 0)}],
    ids=str,
)
def test_shares_that_ranks_cannot_take_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="samples of each of 2 data-parallel ranks"):
        Plan(4, dp_shard=2, **fields)
    with pytest.raises(ValueError, match="equal parts of a batch"):
        Plan(4, dp_replicate=2, adasum=True, shares=(4, 2))


def test_only_ranks_that_divide_layers_have_the_shares_of_others_in_their_layout() -> None:
    plan = Plan(5, dp_shard=3, divided=True, shares=(3, 5, 2))
    assert [plan.of_share(share).layout.shares for share in range(3)] == [(3, 2, 5), (5, 2, 3), (2, 3, 5)]
    assert len(plan.traced_layouts) == 4 and plan.layout.shares == ()
    assert len({str(layout) for layout in plan.traced_layouts}) == 4, "the cache of traces knows them by their names"
    undivided = Plan(5, dp_shard=3, shares=(3, 5, 2))
    assert undivided.traced_layouts == undivided.of_share(0).layouts == undivided.layouts


def test_sequences_are_divided_between_tensor_parallel_ranks_only() -> None:
    for make in (lambda: Plan(4, sequence_parallel=True), lambda: Layout(sequence_parallel=True)):
        with pytest.raises(ValueError, match="needs tp > 1"):
            make()


def test_the_ranks_of_a_stage_split_its_layers_and_all_stages_have_the_same_samples() -> None:
    plan = Plan(1, 4, pp=2, tp=2)
    assert (plan.world_size, plan.batch) == (4, 4)
    layouts = [plan.layout_of(rank) for rank in range(4)]
    assert [stage.index for layout in layouts for stage in layout.stages] == [0, 0, 1, 1]
    assert [layout.first_rank for layout in layouts] == [0, 0, 2, 2]
    assert {layout.world_size for layout in layouts} == {4}
    assert {plan.data_rank(rank) for rank in range(4)} == {0}


def test_a_schedule_without_a_pipeline_changes_no_layout() -> None:
    assert Plan(4, schedule="gpipe").layouts == Plan(4).layouts
    with pytest.raises(ValueError, match="it needs pp > 1"):
        Layout(schedule="gpipe")


def test_selective_says_what_is_recomputed() -> None:
    with pytest.raises(ValueError, match="needs recompute=true"):
        Plan(4, selective=True)


@pytest.mark.parametrize("fields", [{}, {"dp_shard": 2}, {"tp": 2}, {"pp": 2, "num_micro_batches": 2}], ids=str)
def test_only_whole_replicas_share_optimizer_states(fields: dict[str, Any]) -> None:
    replicas = 2 if fields else 1
    with pytest.raises(ValueError, match="zero1 needs dp_replicate > 1 alone"):
        Plan(1, zero1=True, dp_replicate=replicas, **fields)


def test_layers_are_divided_over_ranks_or_computed_in_parts() -> None:
    with pytest.raises(ValueError, match="use tp or co_shard"):
        Plan(4, tp=2, co_shard=2)


def test_every_stage_has_a_gang_that_shards_it() -> None:
    plan = Plan(1, 4, pp=2, dp_shard=2)
    assert (plan.world_size, plan.batch) == (4, 8)
    assert [stage.index for rank in range(4) for stage in plan.layout_of(rank).stages] == [0, 1, 0, 1]
    assert [plan.data_rank(rank) for rank in range(4)] == [0, 0, 1, 1]


def test_what_was_not_gathered_cannot_be_kept() -> None:
    with pytest.raises(ValueError, match="needs dp_shard > 1"):
        Plan(4, dp_replicate=2, reshard=False)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pp": 4, "num_micro_batches": 3}, "1F1B needs at least 4 micro-batches"),
        ({"pp": 2, "num_micro_batches": 2, "schedule": "zb"}, "one of 1f1b, gpipe"),
    ],
    ids=str,
)
def test_pipelines_that_cannot_run_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Plan(1, **fields)


def test_a_rank_has_two_stages_of_some_schedules_in_a_row_or_in_the_shape_of_a_v() -> None:
    held = {
        name: [[stage.index for stage in layout.stages] for layout in Plan(1, 8, pp=4, schedule=name).layouts]
        for name in ("zb-h1", "interleaved", "zbv")
    }
    assert held["zb-h1"] == [[0], [1], [2], [3]]
    assert held["interleaved"] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert held["zbv"] == [[0, 7], [1, 6], [2, 5], [3, 4]]
    plan = Plan(1, 8, pp=4, schedule="zbv", cut=(1, 2, 1, 2, 1, 2, 1, 2))
    assert [rank for rank in range(4) if plan.has_last_stage(rank)] == [0]
    assert [list(stage.blocks(12)) for stage in plan.layouts[3].stages] == [[4, 5], [6]]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"schedule": "zbv", "recompute": True}, "backward passes in two parts"),
        ({"schedule": "interleaved", "dp_shard": 2}, "without shards"),
        ({"schedule": "dualpipev", "num_micro_batches": 2}, "at least 4 micro-batches"),
        ({"schedule": "zbv", "cut": (4, 4)}, "each of the 4 stages"),
        ({"schedule": "other"}, "must be one of .* 'other' is no pass"),
        ({"schedule": "0F0 0B0; 1F0 1B0"}, "has 2 ranks and 1 micro-batches, and the plan 2 and 4"),
        ({"schedule": "0F0 0B0; 1F0 1B0", "pp": 3, "num_micro_batches": 1}, "has 2 ranks"),
        ({"schedule": "0F0 0B0; 1F0 1I0 1W0", "num_micro_batches": 1, "recompute": True}, "in two parts"),
        ({"schedule": "0F0 0B0; 1F0 1B0", "num_micro_batches": 1, "dp_shard": 2}, "order-[0-9a-f]{8} without shards"),
    ],
    ids=str,
)
def test_schedules_that_ranks_cannot_run_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Plan(**{"micro_batch": 1, "num_micro_batches": 4, "pp": 2, **fields})


def test_no_size_that_is_not_zero_is_said_to_be_0_mib() -> None:
    sizes = (0, 12, 1024, 51.2 * 1024, 0.94 * MIB, 0.96 * MIB, 2047.96 * MIB, 3 * GIB)
    words = ["0.0 MiB", "12 bytes", "1 KiB", "51 KiB", "963 KiB", "1.0 MiB", "2048.0 MiB", "3072.0 MiB"]
    assert [mib_in_words(size) for size in sizes] == words
    assert [size_in_words(size) for size in sizes] == [*words[:-2], "2.0 GiB", "3.0 GiB"]
