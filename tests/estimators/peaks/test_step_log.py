"""The log of a run has the peak that the curve says, on any streams."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from estimators.model import MIB
from estimators.peaks.allocator import smallest_capacity
from estimators.peaks.depth import Passes
from estimators.peaks.envelope import Line, constant_peak, fit_envelope, live_bytes
from estimators.peaks.reserved import ReservedCurve
from estimators.peaks.step_log import StepLog, log_of
from estimators.work import Work

CATEGORIES = ("parameters", "optimizer", "batch", "activations", "gradients")
UPDATE = [(0, 3 * MIB), (0, 0)]


def passes(micro_batch: int, *, extra: int = 0, streams: Mapping[int, int] | None = None) -> Passes:
    """One parameter of 8 MiB with as much of states; an activation that grows by 2 MiB a sample."""
    events = (
        (0, 8 * MIB),
        (1, 8 * MIB),
        (2, MIB * micro_batch),
        (3, 2 * MIB * micro_batch + 4 * MIB + extra),
        (4, 8 * MIB),
        (3, 0),
        (2, 0),
    )
    return Passes(events, CATEGORIES, Work(), num_before=2, streams=streams or {})


def log_with(streams: Mapping[int, int]) -> StepLog:
    several = {size: passes(size, streams=streams) for size in (2, 3, 16)}
    return log_of(several, passes(1, streams=streams), UPDATE)


LOG = log_with({})
LOGS = {size: passes(size).events for size in (2, 3, 16)}
CURVE = fit_envelope(LOGS, Line(0, 0), passes(1).peak, dict.fromkeys(LOGS, CATEGORIES))


def test_a_run_makes_the_states_after_the_first_passes_and_keeps_them() -> None:
    activation, batch = 2 * 5 * MIB + 4 * MIB, 5 * MIB
    step = [(2, batch), (3, activation), (4, 8 * MIB), (3, 0), (2, 0)]
    update, dropped = [(5, 3 * MIB), (5, 0)], [(4, 0)]
    assert LOG.run(5) == [(0, 8 * MIB), *step, (1, 8 * MIB), *update, *dropped, *step, *update, *dropped]
    assert live_bytes(LOG.run(5))[-1] == 16 * MIB


@pytest.mark.parametrize("streams", [{}, {3: 1}, {2: 3, 3: 1, 4: 2}])
def test_a_run_is_the_same_on_any_streams_and_tells_them(streams: dict[int, int]) -> None:
    log = log_with(streams)
    for micro_batch in (1, 2, 7):
        assert log.streams(micro_batch) == streams and log.run(micro_batch) == LOG.run(micro_batch)


def test_one_sample_that_does_the_same_on_other_streams_has_a_log_of_its_own() -> None:
    log = log_of({size: passes(size) for size in (2, 16)}, passes(1, streams={4: 1}), UPDATE)
    assert (log.streams(1), log.streams(2)) == ({4: 1}, {})


@given(st.integers(1, 300))
def test_of_every_micro_batch_a_run_holds_what_the_curve_says(micro_batch: int) -> None:
    assert CURVE is not None
    assert constant_peak(LOG.run(micro_batch)).fixed_bytes == CURVE.peak_bytes(micro_batch)


def test_one_sample_has_a_log_of_its_own_where_it_does_not_follow_the_lines() -> None:
    assert LOG.single is None
    other = log_of({size: passes(size) for size in (2, 16)}, passes(1, extra=512), UPDATE)
    assert other.single is not None and other.run(2) == LOG.run(2)
    assert max(size for _, size in other.run(1)) == 8 * MIB and (3, 6 * MIB + 512) in other.run(1)


def test_a_log_is_written_and_read_again_and_anything_else_is_refused() -> None:
    log = replace(log_with({3: 1, 4: 2}), single=LOG)
    data = json.loads(json.dumps(asdict(log)))
    assert TypeAdapter(StepLog).validate_python(data) == log
    for damage in ({"held": [[0, -1]]}, {"update": [[0, len(log.sizes)]]}, {"sizes": [[0, 0]]}):
        with pytest.raises(ValueError):
            TypeAdapter(StepLog).validate_python({**data, **damage})


def test_the_reserved_peak_is_that_of_tensors_and_a_slack_that_the_replay_has_found() -> None:
    assert CURVE is not None
    curve = ReservedCurve(CURVE, LOG)
    for micro_batch in (1, 2, 7, 40):
        parts = curve.parts(micro_batch)
        assert parts.pop("slack") == curve.peak_bytes(micro_batch) - CURVE.peak_bytes(micro_batch) >= 0
        assert parts == CURVE.parts(micro_batch)


def test_the_reserved_peak_is_that_of_buffers_on_their_streams() -> None:
    assert CURVE is not None
    plain, two = ReservedCurve(CURVE, LOG), ReservedCurve(CURVE, log_with({3: 1}))
    # States that are made where the activation was pin its segment, unless that is another stream's.
    assert two.peak_bytes(16) == smallest_capacity(LOG.run(16), streams={3: 1}) < plain.peak_bytes(16)
    assert two.largest_batch(two.peak_bytes(16)) == 16 > plain.largest_batch(two.peak_bytes(16))


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("capacity_mib", [38, 64, 100, 1000])
def test_the_largest_batch_is_where_the_reserved_peak_crosses_the_capacity(capacity_mib: int, expandable: bool) -> None:
    assert CURVE is not None
    curve = ReservedCurve(CURVE, LOG, expandable)
    largest = curve.largest_batch(capacity_mib * MIB)
    assert largest == 0 or curve.peak_bytes(largest) <= capacity_mib * MIB
    assert curve.peak_bytes(largest + 1) > capacity_mib * MIB
    assert (largest == 0) == (capacity_mib == 38)
