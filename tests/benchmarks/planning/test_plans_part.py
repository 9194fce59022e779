"""The models of the benchmark have the sizes of their papers, and its lower bounds never exceed a rank's share."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks.planning import plans_part
from benchmarks.planning.unlike.drafts import (
    CAPACITY_BYTES,
    Draft,
    SharedEnds,
    flat,
    ideal_seconds,
    rows_of,
    schedule_of,
)
from benchmarks.planning.unlike.emerging import KNOWN, Evoformer, Gpt, Model, Swin, draw
from benchmarks.planning.unlike.grid import NUM_RANKS, Grid, Kept, Style, conversions_on, cost, possible, tensor_of
from benchmarks.planning.unlike.hand_plans import alike, best_hand_plan
from benchmarks.planning.unlike.new_plans import best_new_plan
from benchmarks.running.results import Finding

SMALL = Gpt("small", 4, 1024, 16, 1024, 51_200, 64)
WORDS = Gpt("words", 4, 2048, 16, 1024, 500_000, 32)


def test_evoformers_of_alphafold_have_its_parameters() -> None:
    """AlphaFold's stack of 48 has 87 million; "small" GPTs of the code 1.3 and 2.6 billion."""
    params = sum(unit.num_params for unit in Evoformer("", 48, 128, 256).model().units)
    assert params == pytest.approx(87e6, rel=0.01)
    blocks = sum(unit.num_params for unit in Gpt("", 32, 2560, 32, 1024, 51_200, 1).model().units if unit.is_block)
    assert blocks == pytest.approx(2.5e9, rel=0.01)


def test_swin_halves_its_sides_and_doubles_its_width() -> None:
    units = Swin("", (2, 2, 6, 2), 512, 16, 1536, 48, 32).model().units
    assert [(unit.rows, unit.width) for unit in units[::2]] == [
        (384**2, 512),
        (192**2, 1024),
        *[(96**2, 2048)] * 3,
        (48**2, 4096),
    ]
    outputs = [(unit.rows, unit.width) for unit in units]
    assert outputs[1] == (192**2, 1024)
    assert [unit.most_slabs for unit in units[::2]] == [8, 4, 2, 2, 2, 1]


def test_drawn_models_depend_on_the_seed_and_are_not_known() -> None:
    assert list(draw(1, 8)) == list(draw(1, 8)) != list(draw(2, 8))
    sizes = [{replace(model, name="") for model in every} for every in (draw(0, 40), KNOWN)]
    assert not sizes[0] & sizes[1]


def test_a_rank_never_computes_less_than_its_share() -> None:
    unit = SMALL.model().units[1]
    alone = cost(unit, Style(), Grid(1, 1, 1), 8, 1)
    for inner in ("layers", "layers and tokens"):
        shared = cost(unit, Style(inner), Grid(1, 4, 4), 8, 1)
        assert shared.forward_seconds > alone.forward_seconds / 4
        assert shared.state_bytes == alone.state_bytes / 4
    assert cost(unit, Style(inner="layers and tokens"), Grid(1, 4, 4), 8, 1).kept_bytes == alone.kept_bytes / 4
    assert cost(unit, Style(inner="layers"), Grid(1, 4, 4), 8, 1).kept_bytes > alone.kept_bytes / 4


def test_what_is_not_kept_is_computed_again() -> None:
    unit, grid = SMALL.model().units[1], Grid(1, 1, 1)
    kepts = [Kept(), Kept(scores=False), Kept(1), Kept(4)]
    ways = [cost(unit, Style(kept=kept), grid, 8, 1) for kept in kepts]
    kept_all, scores, again, parts = ways
    assert again.backward_seconds == pytest.approx(kept_all.backward_seconds + kept_all.forward_seconds)
    assert parts.backward_seconds > again.backward_seconds > scores.backward_seconds > kept_all.backward_seconds
    assert again.kept_bytes < parts.kept_bytes < scores.kept_bytes < kept_all.kept_bytes
    assert parts.working_bytes < again.working_bytes


def test_fsdp_hides_its_gathers_only_behind_enough_computation() -> None:
    unit, grid = Gpt("short", 4, 4096, 32, 128, 51_200, 64).model().units[1], Grid(32, 1, 1)
    few, many = (cost(unit, Style(states="FSDP"), grid, samples, 1) for samples in (32, 32 * 64))
    plain = cost(unit, Style(), grid, 32 * 64, 1)
    assert many.forward_seconds == plain.forward_seconds
    assert few.forward_seconds > cost(unit, Style(), grid, 32, 1).forward_seconds
    assert many.state_bytes == plain.state_bytes / 32


def test_tensor_parallel_blocks_reduce_twice_in_each_pass() -> None:
    """Once inside of a block, and once between it and the next."""
    model, grid = SMALL.model(), Grid(1, 8, 8)
    styles = alike(model, Style("layers"))
    rows = rows_of(model, styles, grid, 8)
    unit, inside = model.units[1], cost(model.units[1], styles[1], grid, 8, 1)
    flow = inside.flow
    reduction = conversions_on(grid).between(tensor_of(unit, 8), flow.leaves, flow.needs)
    assert [step.kind for step in reduction.steps] in (["all_reduce"], ["reduce_scatter", "all_gather"])
    assert rows.forward[1] == pytest.approx(inside.forward_seconds + reduction.seconds)


@pytest.mark.parametrize("model", [SMALL.model(), Evoformer("rows", 8, 128, 256, batch=32).model()], ids=str)
def test_no_plan_is_faster_than_the_ideal_or_larger_than_a_device(model: Model) -> None:
    plain, hand = best_hand_plan(model, is_plain=True), best_hand_plan(model, is_plain=False)
    assert plain is not None and hand is not None
    new, ideal = best_new_plan(model) or hand, ideal_seconds(model)
    assert plain.seconds >= hand.seconds >= new.seconds >= ideal
    assert max(plan.peak_bytes for plan in (plain, hand, new)) <= CAPACITY_BYTES


def test_a_plan_that_lacks_memory_is_refused() -> None:
    model = replace(SMALL.model(), units=SMALL.model().units * 1)
    grid = Grid(32, 1, 1)
    assert flat(model, "", alike(model, Style()), grid, 32) is not None
    huge = Gpt("huge", 48, 8192, 64, 1024, 51_200, 64).model()
    assert flat(huge, "", alike(huge, Style()), grid, 32) is None


def test_an_interlaced_pipeline_divides_a_huge_vocabulary_over_all_its_ranks() -> None:
    model, grid = WORDS.model(), Grid(1, 8, 8)
    styles = alike(model, Style("layers"))
    plain = Draft(model, "1f1b", grid, 1, 32, styles, (2, 1, 1, 2), 8)
    shared = SharedEnds(model, "interlaced", grid, 1, 32, styles, (1, 1, 1, 1, 1, 1), 8)
    assert shared.ends_grid.num_inner == NUM_RANKS
    assert shared.rows.state[0] == pytest.approx(plain.rows.state[0] / 4)
    assert shared.rows.forward[1] == plain.rows.forward[1]
    plain_plan, other = plain.planned("1f1b"), shared.planned("interlaced")
    assert plain_plan is not None and other is not None
    assert other.peak_bytes < plain_plan.peak_bytes and other.seconds < plain_plan.seconds


def test_turns_by_hand_take_longer_than_three_forward_passes_for_each_backward_pass() -> None:
    model = Evoformer("", 8, 128, 256, batch=16).model()
    styles, grid = alike(model, Style(kept=Kept(1))), Grid(8, 1, 1)
    drafts = [Draft(model, name, grid, 8, 2, styles, (2, 2, 2, 2), 8) for name in ("1f1b", "3f1b")]
    hand, new = (draft.planned(draft.schedule) for draft in drafts)
    assert hand is not None and new is not None
    assert schedule_of("zbv", 4, 8, 3) is None
    assert new.seconds <= hand.seconds * 1.001


def test_ways_that_cannot_divide_a_unit_are_not_possible() -> None:
    block, head = WORDS.model().units[1], WORDS.model().units[-1]
    assert possible(block, Style("layers"), Grid(4, 8, 8), 4)
    assert not possible(block, Style("layers"), Grid(1, 32, 32), 4)  # 16 heads
    assert not possible(block, Style(), Grid(32, 1, 1), 4)  # fewer samples than ranks
    assert not possible(head, Style(kept=Kept(1)), Grid(4, 1, 1), 4)
    assert not possible(block, Style("space"), Grid(4, 8, 8), 4)


def test_a_result_is_written_with_its_picture(tmp_path: Path) -> None:
    result = plans_part.measure(plans_part.Case(SMALL), 0)
    assert result.ratio >= result.ratio_of_any >= 1
    values = json.loads(json.dumps(asdict(result)))
    assert plans_part.Result(**values) == result and len(result.row()) == len(plans_part.HEADER) - 1
    findings = [Finding("plans", "small", result.row(), values), Finding("plans", "bad", failure="no plan fits")]
    plans_part.write_pictures(findings, tmp_path)
    assert [file.name for file in tmp_path.rglob("*.svg")] == ["small.svg"]
    assert "</svg>" in result.svg
    assert plans_part.figures([result])["new_plan_ratios"] == {"small": round(result.ratio, 3)}
    assert plans_part.notes(findings) == ["  bad: no plan fits"]
