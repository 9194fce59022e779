"""Kinds are found by name, and their figures have sources and agree with datasheets."""

from __future__ import annotations

import pytest

from estimators.devices.catalogue import KINDS, gpu
from estimators.devices.kind import DeviceKind
from estimators.model import MIB
from estimators.work import OP_KINDS, WorkCounter

OF_PYTHON = {"sharded"}


def test_a_kind_is_found_by_its_name_in_any_case() -> None:
    assert gpu(" h100 ").name == "H100" and gpu("A100-80") is next(kind for kind in KINDS if kind.name == "A100-80")
    with pytest.raises(ValueError, match=r"unknown device 'A100': choose one of P100, V100-16, .*, RTX4090"):
        gpu("A100")
    assert len({kind.name for kind in KINDS}) == len(KINDS) == 16


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_figure_has_a_source_and_no_kind_claims_to_be_measured(kind: DeviceKind) -> None:
    figures = dict(kind.figures())
    assert not kind.verified
    assert len(figures) == 11
    for name, figure in figures.items():
        assert figure.value > 0
        assert figure.source
        assert name.endswith(("_bytes", "_seconds", "_per_second", "_size"))
        assert figure.provenance in ("datasheet", "literature", "assumed")
    assert kind.rates.keys() == set(OP_KINDS) - OF_PYTHON


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_half_precision_is_at_least_as_fast_and_links_across_nodes_are_no_faster(kind: DeviceKind) -> None:
    assert all(rate.per_half_flop <= rate.per_flop for rate in kind.rates.values())
    assert kind.links is not None
    inside, across = kind.links.inside, kind.links.across
    assert inside.latency_seconds.value < across.latency_seconds.value
    assert across.bytes_per_second.value < 1.1 * inside.bytes_per_second.value


def test_what_a_rank_takes_outside_of_the_allocator() -> None:
    memory = gpu("A100-40").memory
    assert memory is not None
    alone = (320 + 2 * 8.125) * MIB
    assert [memory.outside_bytes(ranks) for ranks in (1, 2, 3, 8)] == [
        alone,
        alone + 544 * MIB,
        alone + 688 * MIB,
        alone + 688 * MIB,
    ]
    hopper = gpu("H100").memory
    assert hopper is not None and hopper.outside_bytes(1) == (320 + 64) * MIB


def test_seconds_of_a_matrix_product_follow_the_datasheet() -> None:
    counter = WorkCounter()
    counter.add("matmul", flops=312e12, half_flops=312e12)
    assert gpu("A100-80").seconds(counter.work) == pytest.approx(1 / 0.6, rel=1e-4)
    counter.clear()
    counter.add("copy", num_bytes=1555e9)
    assert gpu("A100-40").seconds(counter.work) == pytest.approx(1 / 0.8, rel=1e-4)
