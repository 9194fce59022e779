"""One model in fake mode: what its steps log, and what is left of it when blocks are left out."""

from __future__ import annotations

from collections import defaultdict

import pytest

from estimators.model import Layout, Plan
from estimators.peaks.depth import TRACED_BLOCKS
from estimators.tracing.session.session import Session, num_passes
from tests.traced import WIDTH, Deep, Mlp, recipe


@pytest.mark.parametrize("reshard", [True, False])
def test_what_fsdp_gathers_and_reduces_is_on_streams_of_its_own(reshard: bool) -> None:
    with Session(recipe(Deep), Layout(dp_shard=2, reshard=reshard)) as traced:
        traced.spread()
        passes, update = traced.passes(16), traced.step(16).update
    bytes_on: dict[int, int] = defaultdict(int)
    kinds: dict[int, set[str]] = defaultdict(set)
    for buffer, size in passes.events[passes.num_before :]:
        stream = passes.streams.get(buffer, 0)
        bytes_on[stream] += size
        kinds[stream].add(passes.categories[buffer])
    assert {"activations", "gathered", "batch"} < kinds[0] and "gradients" not in kinds[0]
    assert (kinds[1], kinds[2], len(kinds)) == ({"scratch"}, {"gradients"}, 3)
    model = Deep()
    of_all, of_layers = (
        4 * sum(parameter.numel() for parameter in module.parameters()) for module in (model, model.layers)
    )
    # Layers that let go of their parameters after the forward pass are gathered once more for the backward pass.
    assert bytes_on[1] == of_all + (of_layers if reshard else 0)
    assert bytes_on[2] == of_all / 2
    assert {(update.categories[buffer], stream) for buffer, stream in update.streams.items()} == {("gradients", 2)}


def test_blocks_that_were_left_out_are_put_back_for_the_update() -> None:
    with Session(recipe(Deep), Layout()) as full_session:
        full_step = full_session.step(8)
    with Session(recipe(Deep), Layout()) as short:
        assert short.can_be_shortened
        short.shorten()
        few = short.step(8)
        short.grow()
        assert short.num_blocks == Deep.num_layers > TRACED_BLOCKS
        assert sum(size for _, size in short.update().state_events) == sum(size for _, size in full_step.state_events)
    assert sum(size for _, size in few.state_events) < sum(size for _, size in full_step.state_events)
    assert len(few.passes.events) < len(full_step.passes.events)


def test_a_model_of_few_blocks_is_not_shortened() -> None:
    with Session(recipe(Mlp), Layout()) as session:
        assert session.num_blocks == 2 and not session.can_be_shortened


def test_two_micro_batches_begin_with_the_first() -> None:
    with Session(recipe(), Layout(accumulate=True)) as session:
        session.step(8)
        single, two = session.one_and_two(8)
    assert two.events[: len(single.events)] == single.events and len(single.events) < len(two.events)
    assert single.work.flops * 2 == two.work.flops > 0


def test_passes_change_nothing_and_the_first_step_makes_the_states() -> None:
    with Session(recipe(), Layout()) as session:
        before = session.passes(8)
        assert before.events and session.passes(8).events == before.events
        first, second = (sum(size for _, size in session.step(8).state_events) for _ in range(2))
    assert first - second >= 2 * 4 * sum(parameter.numel() for parameter in Mlp().parameters())  # of AdamW


@pytest.mark.parametrize(
    ("layout", "num"),
    [(Layout(), 1), (Layout(accumulate=True), 2), (Plan(2, num_micro_batches=5, pp=2).layout, 5)],
    ids=str,
)
def test_a_traced_step_has_as_many_micro_batches_as_change_its_peak(layout: Layout, num: int) -> None:
    assert num_passes(layout) == num


def test_sizes_of_a_sample_are_known_without_its_number() -> None:
    with Session(recipe(), Layout()) as session:
        assert session.sample_dimensions == [WIDTH, WIDTH]
