"""Slower GPUs get trials that end in time there; no gang spans two speeds, and nobody waits for ever."""

from __future__ import annotations

import random

import pytest

from placement.model import Cluster, Device, Queued, Shape
from placement.packing.ledger import Ledger
from placement.packing.packer import pack
from placement.packing.turns import PASSES_BEFORE_RESERVATION


def mixed(fast: int, slow: int, mib: int = 100, slow_mib: int = 100) -> Cluster:
    kinds = [("V100-16", mib)] * fast + [("T4", slow_mib)] * slow
    return Cluster(tuple(Device(f"d{n}", f"n{kind}", n, kind, size) for n, (kind, size) in enumerate(kinds)))


def one(name: str, *shapes: tuple[int, float | None], passed_over: int = 0) -> Queued:
    return Queued(name, tuple(Shape(ranks, 60, seconds) for ranks, seconds in shapes), passed_over)


def test_the_long_trials_get_the_fast_devices() -> None:
    queue = [one("short", (1, 10.0)), one("long", (1, 100.0))]
    found = pack(queue, Ledger(mixed(1, 1), 1))
    assert {placement.gang.id: placement.devices for placement in found.placements} == {
        "long": ("d0",),
        "short": ("d1",),
    }


def test_a_trial_that_would_end_too_late_waits_for_a_fast_device() -> None:
    queue = [one("a", (1, 100.0)), one("b", (1, 100.0))]
    ledger = Ledger(mixed(4, 1), 1)
    for placement in pack([one(f"r{n}", (1, 10.0)) for n in range(4)], ledger).placements:
        ledger.place(placement.gang, placement.devices)
    found = pack(queue, ledger, {f"r{n}": 5.0 for n in range(4)})
    assert not found.placements and set(found.waits) == {"a", "b"}
    late = [one("a", (1, 100.0), passed_over=PASSES_BEFORE_RESERVATION)]
    assert [placement.devices for placement in pack(late, ledger).placements] == [("d4",)]


def test_what_only_the_slow_devices_hold_goes_there_and_what_no_kind_alone_holds_spans_both() -> None:
    large = Ledger(mixed(1, 1, mib=50), 1)
    assert [placement.devices for placement in pack([one("a", (1, 9.0))], large).placements] == [("d1",)]
    found = pack([one("wide", (4, 9.0))], Ledger(mixed(2, 2), 1))
    assert [len(placement.devices) for placement in found.placements] == [4]


def test_devices_of_slow_kinds_are_used_before_fast_ones_are_shared() -> None:
    queue = [Queued(f"{n}", (Shape(1, 20, 10.0 + n),)) for n in range(4)]
    found = pack(queue, Ledger(mixed(2, 2), 4))
    assert sorted(placement.devices for placement in found.placements) == [("d0",), ("d1",), ("d2",), ("d3",)]


@pytest.mark.parametrize("seed", range(30))
def test_every_trial_starts_or_has_a_reason_and_the_ledger_is_as_before(seed: int) -> None:
    source = random.Random(seed)
    max_gangs = source.choice((1, 3))
    ledger = Ledger(mixed(source.randint(1, 6), source.randint(1, 6), slow_mib=source.choice((50, 100))), max_gangs)
    queue = []
    for n in range(12):
        seconds = None if source.random() < 0.2 else source.uniform(1, 100)
        widths = sorted(source.sample((1, 2, 4, 8), source.randint(1, 3)))
        shapes = tuple(
            Shape(width, source.randint(10, 100), None if seconds is None else seconds / width**0.9) for width in widths
        )
        queue.append(Queued(f"{n}", shapes[: 1 if seconds is None else 3], source.choice((0, 0, 9)), n))
    version = ledger.gangs
    found = pack(queue, ledger, {})
    assert ledger.gangs == version
    started = {placement.gang.id for placement in found.placements}
    assert started | set(found.waits) == {queued.id for queued in queue} and not started & set(found.waits)
    for placement in found.placements:
        ledger.place(placement.gang, placement.devices)
