"""Slower GPUs get trials that end in time there; no gang spans two speeds, and nobody waits for ever."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from placement.model import Cluster, Device, Gang, Queued, Shape
from placement.packing.elastic import elastic
from placement.packing.fixed import min_degree, static
from placement.packing.ledger import Ledger
from placement.packing.packer import pack
from placement.packing.policy import Blocked, Policy
from placement.packing.turns import PASSES_BEFORE_RESERVATION


def mixed(fast: int, slow: int, mib: int = 100, slow_mib: int = 100) -> Cluster:
    kinds = [("V100-16", mib)] * fast + [("T4", slow_mib)] * slow
    return Cluster(tuple(Device(f"d{n}", f"n{kind}", n, kind, size) for n, (kind, size) in enumerate(kinds)))


def queued_of(name: str, *shapes: tuple[int, float | None], passed_over: int = 0) -> Queued:
    return Queued(name, tuple(Shape(ranks, 60, seconds) for ranks, seconds in shapes), passed_over)


def test_the_long_trials_get_the_fast_devices() -> None:
    queue = [queued_of("short", (1, 10.0)), queued_of("long", (1, 100.0))]
    decision = pack(queue, Ledger(mixed(1, 1), 1))
    assert {placement.gang.id: placement.devices for placement in decision.placements} == {
        "long": ("d0",),
        "short": ("d1",),
    }


def test_a_trial_that_would_end_too_late_waits_for_a_fast_device() -> None:
    queue = [queued_of("a", (1, 100.0)), queued_of("b", (1, 100.0))]
    ledger = Ledger(mixed(4, 1), 1)
    for placement in pack([queued_of(f"r{n}", (1, 10.0)) for n in range(4)], ledger).placements:
        ledger.place(placement.gang, placement.devices)
    decision = pack(queue, ledger, {f"r{n}": 5.0 for n in range(4)})
    assert not decision.placements and set(decision.waits) == {"a", "b"}
    late = [queued_of("a", (1, 100.0), passed_over=PASSES_BEFORE_RESERVATION)]
    kept = pack(late, ledger, {f"r{n}": 5.0 for n in range(4)}).waits["a"]
    assert kept.blocked is Blocked.OWN_RESERVATION
    assert kept.reason.endswith("on T4 it would end later than all trials could")
    unknown = pack(queue, ledger)
    assert [placement.devices for placement in unknown.placements] == [("d4",)], "when the others end is not known"


def test_what_only_the_slow_devices_hold_goes_there_and_what_no_kind_alone_holds_spans_both() -> None:
    large = Ledger(mixed(1, 1, mib=50), 1)
    assert [placement.devices for placement in pack([queued_of("a", (1, 9.0))], large).placements] == [("d1",)]
    decision = pack([queued_of("wide", (4, 9.0))], Ledger(mixed(2, 2), 1))
    assert [len(placement.devices) for placement in decision.placements] == [4]


def test_devices_of_slow_kinds_are_used_before_fast_ones_are_shared() -> None:
    queue = [Queued(f"{n}", (Shape(1, 20, 10.0 + n),)) for n in range(4)]
    decision = pack(queue, Ledger(mixed(2, 2), 4))
    assert sorted(placement.devices for placement in decision.placements) == [("d0",), ("d1",), ("d2",), ("d3",)]


def planned(name: str, *shapes: tuple[str, int, int, float]) -> Queued:
    """A trial with plans for kinds of devices, each as (kind, ranks, MiB, seconds)."""
    return Queued(name, tuple(Shape(ranks, mib, seconds, kind=kind) for kind, ranks, mib, seconds in shapes))


def test_each_kind_runs_the_plans_that_are_for_it() -> None:
    plans = ("V100-16", 1, 90, 50.0), ("V100-16", 2, 50, 30.0), ("T4", 4, 25, 40.0)
    decision = pack([planned(name, *plans) for name in ("a", "b")], Ledger(mixed(1, 4, slow_mib=30), 1))
    placed = {placement.gang.id: (placement.choice, placement.devices) for placement in decision.placements}
    assert placed == {"a": (0, ("d0",)), "b": (2, ("d1", "d2", "d3", "d4"))}


def test_a_plan_for_one_kind_takes_no_other_where_that_has_its_own() -> None:
    plans = ("V100-16", 1, 20, 10.0), ("T4", 2, 20, 90.0)
    ledger = Ledger(mixed(1, 1), 1)
    ledger.place(Gang("held", 1, 90), ["d0"])
    decision = pack([planned("a", *plans)], ledger)
    assert not decision.placements and "needs 20 MiB" in decision.waits["a"].reason


def test_a_kind_without_plans_takes_those_of_the_first_one_and_a_lost_kind_those_of_what_is_left() -> None:
    joined = pack([planned("a", ("V100-16", 1, 20, 10.0))], Ledger(mixed(0, 1), 1))
    assert [placement.devices for placement in joined.placements] == [("d0",)]
    plans = ("V100-16", 1, 20, 10.0), ("T4", 2, 20, 90.0)
    left = pack([planned("a", *plans)], Ledger(mixed(0, 2), 1))
    assert [(placement.choice, placement.devices) for placement in left.placements] == [(1, ("d0", "d1"))]


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
        if source.random() < 0.5:
            kinds = source.choice((("V100-16",), ("T4",), ("V100-16", "T4")))
            shapes = tuple(replace(shape, kind=kind) for kind in kinds for shape in shapes)
        queue.append(Queued(f"{n}", shapes[: 1 if seconds is None else 6], source.choice((0, 0, 9)), n))
    version = ledger.gangs
    decision = pack(queue, ledger, {})
    assert ledger.gangs == version
    started = {placement.gang.id for placement in decision.placements}
    assert started | set(decision.waits) == {queued.id for queued in queue} and not started & set(decision.waits)
    by_id = {queued.id: queued for queued in queue}
    for placement in decision.placements:
        assert placement.gang == by_id[placement.gang.id].gang(placement.choice)
        ledger.place(placement.gang, placement.devices)


def uneven(mibs: tuple[int, ...], samples: tuple[int, ...], passed_over: int = 0) -> Queued:
    shape = Shape(len(mibs), max(mibs), 100.0, mibs=mibs, samples=samples)
    return Queued("uneven", (shape,), passed_over)


def test_the_larger_a_share_the_faster_its_device_of_those_with_room_for_it() -> None:
    ledger = Ledger(mixed(2, 2, mib=90, slow_mib=60), 4)
    (placement,) = pack([uneven((50, 80, 50, 80), (3, 5, 3, 5))], ledger).placements
    assert placement.devices == ("d2", "d0", "d3", "d1") and "larger a rank's share" in placement.reason
    ledger.place(placement.gang, placement.devices)
    assert [ledger.free_mib(f"d{n}") for n in range(4)] == [10, 10, 10, 10]
    tight = Ledger(mixed(1, 1, mib=60, slow_mib=90), 4)
    (placement,) = pack([uneven((80, 50), (5, 3))], tight).placements
    assert placement.devices == ("d1", "d0"), "the fast device has no room for the larger share"
    equal = Ledger(mixed(1, 1), 4)
    (placement,) = pack([uneven((80, 80), (3, 5))], equal).placements
    assert placement.devices == ("d1", "d0"), "the larger share counts where both need as much"


def test_unlike_shares_that_no_devices_hold_wait_with_the_reason_and_old_ones_get_devices_kept() -> None:
    ledger = Ledger(mixed(1, 1, mib=90, slow_mib=60), 4)
    for mibs, blocked in (((95, 50), Blocked.TOO_LARGE), ((80, 70), Blocked.TOO_LARGE)):
        assert pack([uneven(mibs, (5, 3))], ledger).waits["uneven"].blocked is blocked
    ledger.place(Gang("held", 1, 40), ["d1"])
    decision = pack([uneven((80, 50), (5, 3))], ledger)
    assert decision.waits["uneven"].blocked is Blocked.BUSY and "needs 50 to 80 MiB" in decision.waits["uneven"].reason
    old = pack([uneven((80, 50), (5, 3), PASSES_BEFORE_RESERVATION)], ledger)
    assert set(old.kept_devices) == {"d0", "d1"} and old.waits["uneven"].blocked is Blocked.OWN_RESERVATION


NONE_NOW = "the cluster has no devices now"


def bound(queued: Queued, *kinds: str) -> Queued:
    return replace(queued, kinds=frozenset(kinds))


def test_a_bound_trial_takes_only_its_kinds_and_leaves_the_others_to_others() -> None:
    queue = [bound(queued_of("slow", (1, 50.0)), "T4"), queued_of("any", (1, 10.0))]
    decision = pack(queue, Ledger(mixed(1, 1), 1))
    assert {placement.gang.id: placement.devices for placement in decision.placements} == {
        "slow": ("d1",),
        "any": ("d0",),
    }
    wide = pack([bound(queued_of("wide", (3, 50.0)), "T4"), queued_of("any", (3, 9.0))], Ledger(mixed(2, 2), 1))
    assert [placement.gang.id for placement in wide.placements] == ["any"], "there are two T4, and no others count"
    assert wide.waits["wide"].blocked is Blocked.TOO_LARGE
    assert wide.waits["wide"].reason.endswith("; its study may use T4 alone")


def test_a_bound_trial_of_two_kinds_spans_these_alone() -> None:
    devices = [("A100-40", 1), ("V100-16", 2), ("T4", 1)]
    names = [kind for kind, number in devices for _ in range(number)]
    cluster = Cluster(tuple(Device(f"{kind}-{n}", "n", n, kind, 100) for n, kind in enumerate(names)))
    (placement,) = pack([bound(queued_of("a", (3, 9.0)), "V100-16", "T4")], Ledger(cluster, 1)).placements
    assert sorted(placement.devices) == ["T4-3", "V100-16-1", "V100-16-2"]


@pytest.mark.parametrize("policy", [pack, min_degree, elastic, static(1)], ids=lambda policy: policy.__name__)
def test_a_bound_trial_waits_where_its_kind_is_absent_and_no_device_is_kept_for_it(policy: Policy) -> None:
    absent = replace(bound(queued_of("absent", (1, 9.0)), "A100-40"), passed_over=PASSES_BEFORE_RESERVATION)
    for cluster in (mixed(0, 1), mixed(1, 1)):
        decision = policy([absent, queued_of("any", (1, 9.0))], Ledger(cluster, 1), {})
        assert [placement.gang.id for placement in decision.placements] == ["any"] and not decision.kept_devices
        assert decision.waits["absent"].reason == f"{NONE_NOW}; its study may use A100-40 alone"


@pytest.mark.parametrize("policy", [pack, min_degree, elastic, static(2)], ids=lambda policy: policy.__name__)
@pytest.mark.parametrize("seed", range(10))
def test_no_policy_breaks_a_bound_and_every_trial_starts_or_has_a_reason(policy: Policy, seed: int) -> None:
    source = random.Random(seed)
    kinds = ("A100-40", "V100-16", "T4", "Cerebras")
    cluster = Cluster(tuple(Device(f"d{n}", f"n{n // 4}", n, source.choice(kinds[:3]), 100) for n in range(12)))
    ledger = Ledger(cluster, 1 if policy is elastic else source.choice((1, 3)))
    ledger.place(Gang("held", 2, 80), ["d1", "d7"])
    queue = [
        bound(
            queued_of(f"{n}", *((width, 90.0 / width) for width in (1, 2, 4)), passed_over=source.choice((0, 0, 9))),
            *source.sample(kinds, source.choice((0, 1, 2))),
        )
        for n in range(10)
    ]
    decision = policy(queue, ledger, {"held": 5.0})
    assert [gang.id for gang in ledger.gangs] == ["held"]
    started = {placement.gang.id for placement in decision.placements}
    assert started | set(decision.waits) == {queued.id for queued in queue} and not started & set(decision.waits)
    allowed = {queued.id: queued.kinds or frozenset(kinds) for queued in queue}
    for placement in decision.placements:
        ledger.place(placement.gang, placement.devices)
        assert {ledger.device(device).kind for device in placement.devices} <= allowed[placement.gang.id]
    free = {device.kind for device in cluster.devices if not ledger.gangs_on(device.id)}
    waiting = [allowed[queued.id] for queued in queue if queued.id in decision.waits]
    assert policy is not min_degree or not any(free & kinds for kinds in waiting), "its narrowest shape is one device"
