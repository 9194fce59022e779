"""The packer by example, and by hypothesis over whole histories of placing, releasing and failing."""

from __future__ import annotations

import time
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.model import Cluster, Device, Gang, Placement, Queued, Shape
from placement.packing.ledger import Ledger
from placement.packing.packer import pack
from placement.packing.policy import Blocked
from placement.packing.turns import PASSES_BEFORE_RESERVATION, passed_over

BUSY = "waits until other gangs leave that much free, or end where the limit of gangs is reached"


def cluster(num_devices: int, mib: int = 96, per_node: int = 4) -> Cluster:
    return Cluster(tuple(Device(f"d{n}", f"n{n // per_node}", n % per_node, "v", mib) for n in range(num_devices)))


def queue(*demands: tuple[int, int]) -> list[Queued]:
    return [Queued(f"{n}/1", (Shape(*demand),)) for n, demand in enumerate(demands)]


def ledger_with(num_devices: int, *held: tuple[str, int], max_gangs: int = 4, per_node: int = 4) -> Ledger:
    """One gang of one rank per (device, MiB)."""
    ledger = Ledger(cluster(num_devices, per_node=per_node), max_gangs)
    for n, (device, mib) in enumerate(held):
        ledger.place(Gang(f"held{n}", 1, mib), [device])
    return ledger


def decided(queued: list[Queued], ledger: Ledger) -> tuple[list[Placement], dict[str, str]]:
    """The placements, and the words for each wait."""
    decision = pack(queued, ledger)
    return list(decision.placements), {gang_id: wait.reason for gang_id, wait in decision.waits.items()}


def carry_out(ledger: Ledger, queued: list[Queued]) -> list[Queued]:
    """Place what fits; what is left of the queue, with the passes counted."""
    placements, _ = decided(queued, ledger)
    for placement in placements:
        ledger.place(placement.gang, placement.devices)
    counts = passed_over(queued, {placement.gang.id for placement in placements})
    return [replace(q, passed_over=counts[q.id]) for q in queued if q.id in counts]


def devices_of(ledger: Ledger, gang: Gang) -> list[str]:
    """Devices of the gang among d0 … d5, which may have vanished."""
    return [device for device in map("d{}".format, range(6)) if gang.id in ledger.gangs_on(device)]


def without(ledger: Ledger, device_id: str) -> Ledger:
    """The ledger of the next round, when the device has vanished: every gang is entered again."""
    rest = Ledger(Cluster(tuple(d for d in ledger.devices if d.id != device_id)), ledger.max_gangs_per_device)
    for gang in ledger.gangs:
        rest.restore(gang, devices_of(ledger, gang))
    return rest


def test_small_gangs_share_the_fullest_device_that_fits_while_a_gang_waits() -> None:
    placements, waits = decided(queue((1, 30), (1, 30), (4, 90)), ledger_with(3, ("d1", 20), ("d2", 80)))
    assert [p.devices for p in placements] == [("d1",), ("d1",)]
    assert [*waits] == ["2/1"]
    assert placements[0].reason == (
        "on the fullest device with enough room, on node n0: d1 (46 of 96 MiB left), shared with other trials"
    )


def test_gangs_spread_over_idle_devices_when_none_waits() -> None:
    placements, waits = decided(queue((1, 30), (1, 30), (1, 30)), ledger_with(3, ("d1", 20)))
    assert [p.devices for p in placements] == [("d0",), ("d2",), ("d0",)]
    assert not waits
    assert placements[0].reason == (
        "on the device with the fewest gangs, as no other trial waited, on node n0: d0 (66 of 96 MiB left)"
    )


def test_gangs_do_not_spread_where_one_would_then_wait() -> None:
    demands = queue((1, 40), (1, 40), (1, 90))
    placements, waits = decided(demands, ledger_with(2))
    assert [p.devices for p in placements] == [("d0",), ("d0",), ("d1",)]
    assert not waits


def test_a_gang_spreads_onto_the_node_with_the_fewest_gangs() -> None:
    (placement,), _ = decided(queue((2, 10)), ledger_with(4, ("d0", 5), per_node=2))
    assert placement.devices == ("d2", "d3")


@given(st.lists(st.integers(1, 96), max_size=6), st.integers(1, 6), st.integers(1, 4))
def test_no_gang_shares_a_device_while_one_is_idle_and_none_waits(mibs: list[int], num: int, max_gangs: int) -> None:
    ledger = Ledger(cluster(num), max_gangs)
    placements, waits = decided(queue(*((1, mib) for mib in mibs)), ledger)
    used = [placement.devices[0] for placement in placements]
    spread = not placements or placements[0].reason.startswith("on the device with the fewest gangs")
    if not waits and spread:
        assert len(set(used)) == min(num, len(used))


def test_a_gang_goes_to_one_node_even_where_fuller_devices_lie_on_two() -> None:
    ledger = ledger_with(4, ("d0", 50), ("d2", 40), per_node=2)
    ledger.place(Gang("big", 1, 90), ["d1"])
    (placement,), _ = decided(queue((2, 40)), ledger)
    assert set(placement.devices) == {"d2", "d3"}
    assert "on node n1" in placement.reason


def test_a_gang_wider_than_a_node_spans_as_few_nodes_as_possible() -> None:
    ledger = ledger_with(6, ("d0", 90), ("d2", 1), per_node=2)
    (placement,), _ = decided(queue((4, 50)), ledger)
    assert set(placement.devices) == {"d2", "d3", "d4", "d5"}
    assert "across 2 nodes" in placement.reason


def test_a_gang_waits_for_a_node_if_that_is_sooner_than_it_would_end_across_two() -> None:
    ledger = ledger_with(4, ("d0", 96), ("d2", 96), max_gangs=1, per_node=2)
    wide = [Queued("wide", (Shape(2, 90, 100.0),))]
    soon = pack(wide, ledger, {"held0": 30.0, "held1": 60.0})
    assert not soon.placements and soon.waits["wide"].blocked is Blocked.OWN_RESERVATION
    two = [*wide, replace(wide[0], id="later", study=1)]
    later = pack(two, ledger, {"held0": 30.0, "held1": 60.0}).waits["later"]
    assert later.blocked is Blocked.FRAGMENTED and "but on more nodes than it needs" in later.reason
    for left in ({"held0": 300.0, "held1": 300.0}, {}):
        assert [placement.devices for placement in pack(wide, ledger, left).placements] == [("d1", "d3")]
    late = [replace(wide[0], passed_over=PASSES_BEFORE_RESERVATION)]
    assert pack(late, ledger, {"held0": 30.0, "held1": 60.0}).placements
    narrow = [Queued("n", (Shape(1, 90, 120.0), Shape(2, 90, 100.0)))]
    assert [placement.choice for placement in pack(narrow, ledger, {"held0": 30.0, "held1": 60.0}).placements] == [0]


def test_a_gang_that_does_not_fit_whole_holds_nothing_and_says_what_is_missing() -> None:
    ledger = ledger_with(4, ("d0", 80), ("d1", 80))
    placements, waits = decided(queue((4, 40)), ledger)
    assert not placements
    assert [*waits.values()] == [f"needs 40 MiB on 4 devices at once; {BUSY}"]


@pytest.mark.parametrize(
    ("ledger", "demand", "reason"),
    [
        (ledger_with(0), (1, 1), "the cluster has no devices now"),
        (
            ledger_with(2),
            (4, 10),
            "needs 10 MiB on 4 devices at once, but only 2 of 2 devices in the cluster offer that much",
        ),
        (
            ledger_with(2),
            (1, 97),
            "needs 97 MiB on 1 device at once, but none of 2 devices in the cluster offers that much",
        ),
        (ledger_with(1, ("d0", 60)), (1, 40), f"needs 40 MiB on 1 device at once; {BUSY}"),
        (ledger_with(1, ("d0", 6), max_gangs=1), (1, 40), f"needs 40 MiB on 1 device at once; {BUSY}"),
    ],
)
def test_every_wait_says_why(ledger: Ledger, demand: tuple[int, int], reason: str) -> None:
    _, waits = decided(queue(demand), ledger)
    assert [*waits.values()] == [reason]


def test_a_reason_stays_the_same_when_only_free_memory_changes() -> None:
    """Each new reason of a waiting trial is a write to the database."""
    fuller, emptier = ledger_with(2, ("d0", 90), ("d1", 70)), ledger_with(2, ("d0", 60), ("d1", 90))
    demands = queue((1, 50), (2, 60), (4, 10))
    assert decided(demands, fuller)[1] == decided(demands, emptier)[1]


def test_later_gangs_pass_a_blocked_one_and_each_pass_is_counted() -> None:
    ledger = ledger_with(2, ("d0", 80), ("d1", 90))
    queued = queue((2, 40), (1, 10), (1, 90), (1, 6))
    placements, waits = decided(queued, ledger)
    assert [p.gang.id for p in placements] == ["1/1", "3/1"]
    assert [*waits] == ["0/1", "2/1"]
    assert passed_over(queued, {p.gang.id for p in placements}) == {"0/1": 2, "2/1": 1}


def test_age_counts_and_not_the_place_in_the_queue() -> None:
    young, old = Queued("young", (Shape(1, 10),), arrival=7), Queued("old", (Shape(2, 40),), 3, arrival=2)
    assert passed_over([young, old], {"young"}) == {"old": 4}
    assert passed_over([replace(young, arrival=1), old], {"young"}) == {"old": 3}, "an older one may go first"


def test_of_two_starved_gangs_the_older_one_goes_first() -> None:
    many = PASSES_BEFORE_RESERVATION
    queued = [Queued("a", (Shape(1, 60),), many + 5, arrival=9), Queued("b", (Shape(1, 60),), many, arrival=4)]
    assert [p.gang.id for p in decided(queued, ledger_with(1))[0]] == ["b"]


def test_a_gang_passed_over_too_often_keeps_devices_for_itself() -> None:
    ledger = ledger_with(3, ("d0", 80), ("d1", 80), ("d2", 20), ("d2", 70))
    patient = Queued("old/1", (Shape(2, 90),), PASSES_BEFORE_RESERVATION - 1)
    starved = Queued("old/1", (Shape(2, 90),), PASSES_BEFORE_RESERVATION, name="trial 3 of study 1")
    small = Queued("new/1", (Shape(1, 10),))
    assert [p.gang.id for p in decided([patient, small], ledger)[0]] == ["new/1"]
    placements, waits = decided([starved, small], ledger)
    assert not placements
    first, second = waits.values()
    assert first.endswith("passed over 8 times, so d0, d1 are now kept for it")
    assert second == (
        "needs 10 MiB on 1 device at once; what has that much free is kept for trial 3 of study 1, which needs 90 MiB "
        "on 2 devices at once"
    )
    large = Queued("large/1", (Shape(1, 90),))
    assert pack([starved, large], ledger).waits["large/1"].blocked is not Blocked.RESERVED, "it has no room there"
    assert not decided([small, starved], ledger)[0], "wherever it stands in the queue"
    ledger.release("held0")
    ledger.release("held1")
    assert [p.gang.id for p in decided([starved, small], ledger)[0]] == ["old/1"]


def test_gangs_start_beside_one_that_devices_are_kept_for_if_it_waits_for_no_more_ends() -> None:
    starved = Queued("old/1", (Shape(2, 70),), PASSES_BEFORE_RESERVATION)
    small = [Queued(f"new{n}", (Shape(1, 12),), arrival=n) for n in range(4)]
    ledger = ledger_with(2, ("d0", 60), ("d1", 60), ("d1", 10))
    placements, waits = decided([starved, *small], ledger)
    assert [(p.gang.id, p.devices) for p in placements] == [("new0", ("d1",)), ("new1", ("d0",)), ("new2", ("d0",))]
    assert "kept for" in waits["new3"], "d0 has 12 MiB left now, and 2 once the other can start"
    for placement in placements:
        ledger.place(placement.gang, placement.devices)
    ledger.release("held0", "held1")
    assert [(p.gang.id, p.devices) for p in decided([starved], ledger)[0]] == [("old/1", ("d0", "d1"))]
    full = ledger_with(1, ("d0", 60), ("d0", 1), max_gangs=3)
    alone = Queued("old/1", (Shape(1, 70),), PASSES_BEFORE_RESERVATION)
    assert [p.gang.id for p in decided([alone, small[0]], full)[0]] == ["new0"]
    full.release("held0")
    crowded = ledger_with(1, ("d0", 30), ("d0", 1), max_gangs=2)
    assert not decided([alone, small[0]], crowded)[0], "three gangs would share the device"
    shrunk = ledger_with(1)
    for n in range(3):
        shrunk.restore(Gang(f"held{n}", 1, 40), ["d0"])
    assert not decided([alone, small[0]], shrunk)[0], "more is reserved than the device has now"


def test_a_gang_passed_over_too_often_gets_the_devices_that_are_free_first_and_short_ones_use_them_before() -> None:
    ledger = ledger_with(3, ("d0", 96), ("d1", 96))
    starved = Queued("old/1", (Shape(2, 50, 500.0),), PASSES_BEFORE_RESERVATION)
    short, long = Queued("short/1", (Shape(1, 50, 9.0),)), Queued("long/1", (Shape(1, 50, 99.0),))
    ends = {"held0": 10_000.0, "held1": 10.0}
    decision = pack([starved, long, short], ledger, ends)
    assert [(placement.gang.id, placement.devices) for placement in decision.placements] == [("short/1", ("d2",))]
    assert decision.kept_devices == ("d1", "d2"), "d0 needs no other end than d1, but thousands of seconds"
    late = pack([starved, short], ledger, {**ends, "held0": 0.0})
    assert not late.placements, "predictions were wrong, so nothing may start where devices are kept"


def test_a_gang_too_large_for_the_whole_cluster_reserves_nothing() -> None:
    impossible = Queued("old/1", (Shape(3, 10),), 10 * PASSES_BEFORE_RESERVATION)
    placements, _ = decided([impossible, Queued("new/1", (Shape(1, 10),))], ledger_with(2))
    assert [p.gang.id for p in placements] == ["new/1"]


def test_one_reservation_at_a_time() -> None:
    ledger = ledger_with(2, ("d0", 90), ("d1", 90))
    old = [Queued(f"old{n}", (Shape(1, 92),), PASSES_BEFORE_RESERVATION) for n in range(2)]
    placements, waits = decided([*old, Queued("new", (Shape(1, 5),))], ledger)
    assert [p.devices for p in placements] == [("d1",)]
    first, second = waits.values()
    assert "kept for it" in first
    assert "kept for it" not in second


def test_packing_leaves_the_ledger_alone() -> None:
    ledger = ledger_with(2, ("d0", 50))
    decided(queue((2, 40), (1, 10)), ledger)
    assert [gang.id for gang in ledger.gangs] == ["held0"]
    assert ledger.free_mib("d1") == 96


def test_a_gang_that_holds_devices_cannot_be_queued() -> None:
    with pytest.raises(AssertionError, match="already holds devices"):
        decided([Queued("held0", (Shape(1, 1),))], ledger_with(1, ("d0", 5)))


def test_64_devices_and_500_queued_gangs_take_milliseconds() -> None:
    big = Cluster(tuple(Device(f"d{n}", f"n{n // 8}", n % 8, "v", 80_000) for n in range(64)))
    queued = [Queued(f"{n}/1", (Shape(2 ** (n % 4), 9_000 + 37 * n),)) for n in range(500)]
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        placements, waits = decided(queued, Ledger(big, 4))
        best = min(best, time.perf_counter() - began)
    assert len(placements) + len(waits) == 500 and len(placements) > 50
    assert best < 0.1, f"{best * 1e3:.1f} ms"  # about 4 ms on an idle core


demands = st.tuples(st.sampled_from([1, 1, 1, 2, 3, 4]), st.integers(1, 110))
steps = st.one_of(
    st.tuples(st.just("queue"), demands),
    st.tuples(st.just("release"), st.integers(0, 20)),
    st.tuples(st.just("fail"), st.integers(0, 5)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=40), st.integers(1, 6), st.integers(1, 3), st.integers(1, 4))
def test_no_history_over_subscribes_splits_a_gang_or_leaves_waiting_what_fits(
    history: list[tuple[str, object]], num_devices: int, max_gangs: int, per_node: int
) -> None:
    ledger = Ledger(cluster(num_devices, per_node=per_node), max_gangs)
    waiting: list[Queued] = []
    for number, (kind, detail) in enumerate(history):
        if kind == "queue":
            assert isinstance(detail, tuple)
            waiting.append(Queued(f"{number}/1", (Shape(*detail),)))
        elif kind == "release" and ledger.gangs:
            assert isinstance(detail, int)
            ledger.release(ledger.gangs[detail % len(ledger.gangs)].id)
        elif kind == "fail":
            ledger = without(ledger, f"d{detail}")
        _, waits = decided(waiting, ledger)
        assert decided(waiting, ledger) == decided(waiting, ledger), "the same round twice"
        assert all(waits.values())
        waiting = carry_out(ledger, waiting)

        for device in ledger.devices:
            on = ledger.gangs_on(device.id)
            assert sum(on.values()) + ledger.free_mib(device.id) == device.capacity_mib
            assert len(on) <= max_gangs
        for gang in ledger.gangs:
            held = devices_of(ledger, gang)
            assert len(held) == gang.num_ranks, "it holds its devices until it is released, those that are gone too"
            assert all(ledger.gangs_on(device)[gang.id] == gang.mib_per_rank for device in held)
        if all("kept for it" not in reason for reason in waits.values()):
            for queued in waiting:
                room = [device for device in ledger.devices if ledger.fits(queued.gang(), device.id)]
                assert len(room) < queued.gang().num_ranks, f"{queued.gang()} fits {room} and waits"


@settings(max_examples=100, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 6), st.integers(1, 5), st.integers(1, 3), st.booleans())
def test_no_gang_that_the_empty_cluster_could_take_waits_for_ever(
    random: Random, longest: int, num_devices: int, max_gangs: int, unfair: bool
) -> None:
    """Gangs end within ``longest`` rounds, and in every round new small ones arrive, ``unfair``: ahead in the queue."""
    ledger = Ledger(cluster(num_devices), max_gangs)
    ends: dict[str, int] = {}
    waiting = [Queued(f"first{n}", (Shape(1, random.randint(1, 60)),)) for n in range(2 * num_devices)]
    waiting.append(Queued("patient", (Shape(num_devices, 96),)))
    # Something ends, and so passes, at least every ``longest`` rounds; after the last pass all that run end once.
    for rounds in range(longest * (PASSES_BEFORE_RESERVATION + 2 * num_devices + 2)):
        for gang_id in [gang_id for gang_id, end in ends.items() if end <= rounds]:
            ledger.release(gang_id)
            del ends[gang_id]
        small = [(f"{rounds}.{n}", Shape(1, random.randint(1, 30))) for n in range(num_devices * max_gangs)]
        arrived = [Queued(name, (shape,), arrival=rounds + 1) for name, shape in small]
        waiting = arrived + waiting if unfair else waiting + arrived
        waiting = carry_out(ledger, waiting)
        if any(gang.id == "patient" for gang in ledger.gangs):
            return
        for gang in ledger.gangs:
            ends.setdefault(gang.id, rounds + random.randint(1, longest))
    pytest.fail(f"still waiting: {waiting[0]}")
