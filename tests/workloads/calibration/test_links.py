"""Links between the ranks of a host: what is fitted to measured seconds. Real ranks are started by ``scamp calibrate``
(``tests/scamp_service/sizing/test_estimate.py``)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, replace

import numpy as np
import pytest
from pydantic import TypeAdapter

from estimators.devices.communication import Group, collective_seconds, ring
from estimators.devices.kind import DeviceKind
from workloads.calibration import links
from workloads.calibration.links import SIZES, LinkMeasurement, Timed, fitted_links

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "message")
START, HOP, SPEED = 2e-4, 5e-5, 1e9


def samples(num_cores: float, noise: float = 0.0) -> Iterator[Timed]:
    """The measurement of ranks on a host of this many cores."""
    source = np.random.default_rng(0)
    for kind in KINDS:
        for num_ranks in (2, 4):
            for size in SIZES:
                hops, moved = ring(kind, size, num_ranks)
                seconds = max(1.0, num_ranks / num_cores) * (START + hops * HOP + moved / SPEED)
                yield Timed(kind, num_ranks, size, seconds * np.exp(noise * source.normal()), 0.0)


def test_latency_and_speed_are_found_again_in_the_seconds_that_they_made() -> None:
    host = fitted_links(LinkMeasurement(list(samples(2)), 1.0, 0.0, 3e-5, 0.0), 2, "made up")
    assert host.cores.value == 2
    assert host.sharded_seconds == 3e-5
    assert not host.links.overlap
    assert host.links.paces.keys() == set(KINDS)
    for kind, pace in host.links.paces.items():
        if kind != "message":  # always one hop, so that a start is the same
            assert pace.start_seconds.value == pytest.approx(START) and pace.hop_seconds.value == pytest.approx(HOP)
        assert pace.bytes_per_second.value == pytest.approx(SPEED)
        assert collective_seconds(kind, 1e6, Group(2), host.links) == pytest.approx(
            START + ring(kind, 1e6, 2)[0] * HOP + ring(kind, 1e6, 2)[1] / SPEED
        )


def test_noise_does_not_make_the_fit_too_low() -> None:
    host = fitted_links(LinkMeasurement(list(samples(2, noise=0.3)), 1.0, 0.0, 0.0, 0.0), 2, "made up")
    for kind in KINDS:
        small, large = (
            collective_seconds(kind, size, Group(4), host.links)
            / (START + ring(kind, size, 4)[0] * HOP + ring(kind, size, 4)[1] / SPEED)
            for size in (2**10, 2**24)
        )
        assert 0.8 < small < 1.3
        assert 0.75 < large < 1.35


def test_messages_whose_bytes_cost_nothing_by_chance_are_no_faster_than_memory() -> None:
    chance = [replace(sample, seconds=START) for sample in samples(2)]
    paces = fitted_links(LinkMeasurement(chance, 1.0, 0.0, 0.0, 0.0), 2, "made up").links.paces
    assert {pace.bytes_per_second.value for pace in paces.values()} == {100e9}


def test_ranks_that_slow_each_other_on_all_cores_count_as_fewer_cores() -> None:
    host = fitted_links(LinkMeasurement(list(samples(1.6)), 1.25, 0.0, 0.0, 0.0), 2, "made up")
    assert host.cores.value == 1.6 and "1.25 times" in host.cores.source
    assert host.links.paces["all_reduce"].bytes_per_second.value == pytest.approx(SPEED)
    assert fitted_links(LinkMeasurement(list(samples(2)), 0.9, 0.0, 0.0, 0.0), 2, "made up").cores.value == 2


def test_the_time_of_fsdp2_in_python_belongs_to_its_collectives_alone() -> None:
    plain, slower = (
        fitted_links(LinkMeasurement(list(samples(2)), 1.0, unit, 0.0, 0.0), 2, "made up").links.paces
        for unit in (0.0, 1e-3)
    )
    for kind in KINDS:
        more = slower[kind].start_seconds.value - plain[kind].start_seconds.value
        assert more == pytest.approx(1e-3 if kind in ("all_gather", "reduce_scatter") else 0.0)


def test_measured_links_are_read_again_as_they_were_written() -> None:
    host = fitted_links(LinkMeasurement(list(samples(2)), 1.0, 0.0, 0.0, 0.0), 2, "made up")
    kind = DeviceKind("a CPU", {}, "made up", links=host.links, cores=host.cores)
    assert TypeAdapter(DeviceKind).validate_json(json.dumps(asdict(kind))) == kind


def test_a_rank_that_fails_is_an_error_and_no_measurement(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def run_rank(store: str, rank: int, *arguments: object) -> LinkMeasurement:
        if rank == 1:
            raise OSError("no network")
        return LinkMeasurement((time.sleep(600),), 1.0, 0.0, 0.0, 0.0)  # type: ignore[arg-type, func-returns-value]

    monkeypatch.setattr(links, "run_rank", run_rank)
    with pytest.raises(RuntimeError, match="a rank failed while it measured its links"):
        links.measure_links(2, 1)
    assert "no network" in capfd.readouterr().err
