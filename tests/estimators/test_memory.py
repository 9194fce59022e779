from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.memory import GANG_MARGIN_BYTES, GPU_MARGIN, MARGIN_BYTES, MARGIN_PERCENT, largest_micro_batch, predict
from estimators.model import CATEGORIES, MIB, Layout, Plan
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
    largest = largest_micro_batch(profile, Layout(dp_shard=ranks), capacity_mib, extra_bytes)

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
    found = predict(profile, Plan(8), extra_bytes=5 * MIB, margin=GPU_MARGIN)
    assert found.parts.keys() <= set(CATEGORIES) and sum(found.parts.values()) == found.peak_bytes == 23 * MIB
    assert (found.traced_bytes, found.slack_bytes, found.predicted_bytes) == (16 * MIB, 2 * MIB, 21 * MIB)


@given(st.integers(1, 400), st.sampled_from([1, 2, 4]))
def test_the_largest_peak_fits_with_its_margin_and_one_more_byte_does_not(capacity_mib: int, num_ranks: int) -> None:
    peak = GPU_MARGIN.largest_peak_bytes(capacity_mib, num_ranks)
    assert peak + GPU_MARGIN.bytes_for(peak, num_ranks) <= capacity_mib * MIB
    assert peak + 1 + GPU_MARGIN.bytes_for(peak + 1, num_ranks) > capacity_mib * MIB
