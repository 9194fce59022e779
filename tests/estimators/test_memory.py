from __future__ import annotations

import pytest

from estimators.envelope import Envelope, Line
from estimators.memory import GANG_MARGIN_BYTES, MARGIN_BYTES, MARGIN_SHARE, footprint
from estimators.model import MIB, Layout, ModelProfile, Plan

CURVE = Envelope((Line(MIB, 10 * MIB),), 10 * MIB)
PROFILE = ModelProfile("s", 1, MIB, 1.0, {Layout(): CURVE, Layout(2): CURVE})


def test_a_footprint_is_the_traced_peak_and_a_margin() -> None:
    cost = footprint(PROFILE, Plan(8))
    assert cost.peak_bytes == 18 * MIB
    assert cost.margin_bytes == MARGIN_BYTES + int(MARGIN_SHARE * 18 * MIB)


def test_a_rank_of_a_gang_has_more_that_no_trace_shows() -> None:
    single, gang = footprint(PROFILE, Plan(8)), footprint(PROFILE, Plan(8, dp_shard=2))
    assert gang.margin_bytes - single.margin_bytes == GANG_MARGIN_BYTES


def test_what_failures_have_taught_counts_as_part_of_the_peak() -> None:
    assert footprint(PROFILE, Plan(8), extra_bytes=5 * MIB).peak_bytes == 23 * MIB


def test_a_layout_that_was_not_traced_has_no_footprint() -> None:
    with pytest.raises(KeyError):
        footprint(PROFILE, Plan(8, recompute=True))
