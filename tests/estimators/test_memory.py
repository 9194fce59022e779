"""A footprint is the traced peak with what was learned and a margin, and its parts add up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.memory import (
    GANG_MARGIN_BYTES,
    GPU_MARGIN,
    MARGIN_BYTES,
    MARGIN_PERCENT,
    Extra,
    largest_micro_batch,
    predict,
    with_evaluation_batch,
)
from estimators.model import CATEGORIES, MIB, EvaluationExtra, Layout, Plan
from estimators.peaks.envelope import Envelope, Line
from estimators.profile import ModelProfile

CURVE = Envelope((Line(MIB, 10 * MIB),), Line(0, 10 * MIB))
PROFILE = ModelProfile("s", 1, MIB, {Layout(): CURVE, Layout(dp_shard=2): CURVE})


def test_a_footprint_is_the_traced_peak_and_a_margin() -> None:
    cost = predict(PROFILE, Plan(8))
    assert cost.peak_bytes == 18 * MIB
    assert cost.margin_bytes == MARGIN_BYTES + 18 * MIB * MARGIN_PERCENT // 100


def test_a_rank_of_a_gang_has_more_that_no_trace_shows() -> None:
    single, gang = predict(PROFILE, Plan(8)), predict(PROFILE, Plan(8, dp_shard=2))
    assert gang.margin_bytes - single.margin_bytes == GANG_MARGIN_BYTES


def test_what_was_learned_from_failures_counts_as_part_of_the_peak() -> None:
    cost = predict(PROFILE, Plan(8), extra_bytes=5 * MIB)
    assert cost.peak_bytes == 23 * MIB and cost.parts == {"learned": 5 * MIB}


@given(
    st.integers(0, 10**5), st.integers(0, 10**9), st.integers(1, 400), st.integers(0, 10**8), st.sampled_from([1, 2])
)
def test_the_largest_micro_batch_fits_with_its_margin_and_one_more_does_not(
    slope: int, fixed: int, capacity_mib: int, extra_bytes: int, ranks: int
) -> None:
    curve = Envelope((Line(slope + 1, fixed),), Line(0, fixed + slope + 1))
    profile = ModelProfile("s", 1, 1, {Layout(dp_shard=ranks): curve})
    largest = largest_micro_batch(profile, Layout(dp_shard=ranks), capacity_mib, Extra(rank_bytes=extra_bytes))

    def reserved(micro_batch: int) -> int:
        return predict(profile, Plan(micro_batch, dp_shard=ranks), extra_bytes).reserved_mib

    assert largest == 0 or reserved(largest) <= capacity_mib
    assert reserved(largest + 1) > capacity_mib


def test_a_layout_that_was_not_traced_has_no_footprint() -> None:
    with pytest.raises(KeyError):
        predict(PROFILE, Plan(8, recompute=True))


def test_the_parts_add_up_to_the_peak_with_what_was_learned_and_what_the_allocator_needs() -> None:
    class OnGpu:
        """A peak curve of 16 MiB of tensors for which the allocator needs 18 MiB."""

        def peak_bytes(self, micro_batch: int) -> int:
            return 18 * MIB

        def parts(self, micro_batch: int) -> dict[str, int]:
            return {"parameters": 10 * MIB, "activations": 6 * MIB, "slack": 2 * MIB}

        def largest_batch(self, capacity_bytes: int) -> int:
            return 8

    profile = ModelProfile("s", 1, 0, {Layout(): OnGpu()})
    prediction = predict(profile, Plan(8), extra_bytes=5 * MIB, margin=GPU_MARGIN)
    assert (
        prediction.parts.keys() <= set(CATEGORIES)
        and sum(prediction.parts.values()) == prediction.peak_bytes == 23 * MIB
    )
    assert (prediction.traced_bytes, prediction.slack_bytes, prediction.predicted_bytes) == (
        16 * MIB,
        2 * MIB,
        21 * MIB,
    )


@given(st.integers(1, 400), st.sampled_from([1, 2, 4]))
def test_the_largest_peak_fits_with_its_margin_and_one_more_byte_does_not(capacity_mib: int, num_ranks: int) -> None:
    peak = GPU_MARGIN.largest_peak_bytes(capacity_mib, num_ranks)
    assert peak + GPU_MARGIN.bytes_for(peak, num_ranks) <= capacity_mib * MIB
    assert peak + 1 + GPU_MARGIN.bytes_for(peak + 1, num_ranks) > capacity_mib * MIB


def evaluated(sample_mib: int, fixed_mib: int = 10) -> ModelProfile:
    """``PROFILE`` with an evaluation of this many MiB, and more for each sample."""
    curve = Envelope((Line(sample_mib * MIB, fixed_mib * MIB),), Line(0, (fixed_mib + sample_mib) * MIB))
    return replace(PROFILE, evaluations={Layout(): curve})


@given(st.integers(1, 30), st.integers(1, 40), st.integers(1, 20))
def test_an_evaluation_is_as_large_as_a_step_leaves_room_for(sample_mib: int, fixed_mib: int, micro_batch: int) -> None:
    profile = evaluated(sample_mib, fixed_mib)
    plan = with_evaluation_batch(profile, Plan(micro_batch))
    prediction, step_mib = predict(profile, plan), CURVE.peak_bytes(micro_batch) // MIB
    size = plan.evaluation_micro_batch
    assert prediction.evaluation_bytes == (fixed_mib + sample_mib * size) * MIB
    assert prediction.peak_bytes == predict(PROFILE, Plan(micro_batch)).peak_bytes, (
        "the peak of a step is one of its own"
    )
    assert prediction.needed_bytes == max(step_mib, fixed_mib + sample_mib) * MIB
    assert size == micro_batch or fixed_mib + sample_mib * (size + 1) > max(step_mib, fixed_mib + sample_mib)


def test_an_evaluation_of_which_one_sample_does_not_fit_excludes_every_micro_batch() -> None:
    assert largest_micro_batch(evaluated(80), Layout(), 100) == largest_micro_batch(PROFILE, Layout(), 100) > 1
    assert largest_micro_batch(evaluated(90), Layout(), 100) == 0


def test_an_evaluation_that_ran_out_of_memory_is_made_of_fewer_samples_and_then_gets_more_memory() -> None:
    profile = evaluated(1)
    first = EvaluationExtra(bytes_per_sample=5 * MIB)
    plan = with_evaluation_batch(profile, Plan(8), 0, first)
    assert plan.evaluation_batch == 1, "10 + (1 + 5) · 2 > 18"
    assert predict(profile, plan, evaluation=first).needed_bytes == predict(profile, Plan(8)).needed_bytes
    second = EvaluationExtra(fixed_bytes=40 * MIB)
    plan = with_evaluation_batch(profile, Plan(8), 0, second)
    assert plan.evaluation_batch == 1 and predict(profile, plan, evaluation=second).needed_bytes == (11 + 40) * MIB
    assert largest_micro_batch(profile, Layout(), 50, Extra(evaluation=second)) == 0
