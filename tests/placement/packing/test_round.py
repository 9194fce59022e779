"""Gangs start where idle ranks are ready, if such devices are equal to those that the policy has chosen."""

from __future__ import annotations

from random import Random

import pytest

from placement.model import Cluster, Device, Gang, Queued, Ready, Shape
from placement.packing.ledger import Ledger
from placement.packing.policies import POLICIES, policy_named
from placement.packing.policy import Decision
from placement.packing.reasons import WHERE_READY
from placement.packing.round import readiest

CLEAN, MINE, THEIRS = frozenset({None}), frozenset({"mine"}), frozenset({"theirs"})


def ledger(ready: Ready, devices: int = 4, per_node: int = 4, max_gangs: int = 2) -> Ledger:
    every = (Device(f"d{n}", f"n{n // per_node}", n % per_node, "v", 96) for n in range(devices))
    return Ledger(Cluster(tuple(every)), max_gangs, ready)


@pytest.mark.parametrize(
    ("ready", "device"),
    [
        pytest.param({"d2": MINE, "d1": CLEAN, "d3": THEIRS}, "d2", id="the same code"),
        pytest.param({"d0": CLEAN, "d1": CLEAN, "d3": MINE | CLEAN}, "d3", id="the same code rather than none"),
        pytest.param({"d1": THEIRS, "d3": CLEAN}, "d3", id="no code rather than another"),
        pytest.param({"d0": CLEAN, "d1": CLEAN}, "d0", id="no better one"),
        pytest.param({"d1": THEIRS}, "d0", id="none"),
        pytest.param({}, "d0", id="nothing known"),
    ],
)
def test_of_equal_devices_the_one_with_the_most_suitable_idle_rank_is_taken(ready: Ready, device: str) -> None:
    assert readiest(ledger(ready), ["d0"], "mine") == (device,)


def test_a_gang_keeps_devices_with_ranks_and_gets_each_other_one_once() -> None:
    assert readiest(ledger({"d1": MINE, "d3": MINE}), ["d0", "d1", "d2"], "mine") == ("d3", "d1", "d2")


def test_a_device_that_the_policy_would_not_take_as_well_is_left_alone() -> None:
    unlike = [
        Device("d0", "n", 0, "v", 96),
        Device("smaller", "n", 1, "v", 90),
        Device("kind", "n", 2, "w", 96),
        Device("shared", "n", 3, "v", 96),
        Device("far", "m", 4, "v", 96),
        Device("kept", "n", 5, "v", 96),
    ]
    book = Ledger(Cluster(tuple(unlike)), 4, {device.id: MINE for device in unlike[1:]})
    book.restore(Gang("a", 1, 1), ["shared"])
    book.keep(["kept"])
    assert readiest(book, ["d0"], "mine") == ("d0",)
    book.give_back(["kept"])
    assert readiest(book, ["d0"], "mine") == ("kept",)


def test_a_rank_that_a_placed_gang_takes_is_ready_for_no_other_until_that_one_is_released() -> None:
    book = ledger({"d0": MINE, "d1": MINE})
    book.restore(Gang("runs", 1, 10), ["d0"])
    assert book.ready_on("d0") == MINE
    book.place(Gang("new", 1, 10), ["d0"])
    assert not book.ready_on("d0") and book.ready_on("d1") == MINE
    book.release("new")
    assert book.ready_on("d0") == MINE


def test_the_reason_says_that_a_rank_is_ready_only_where_it_made_a_difference() -> None:
    queue = [Queued(str(n), (Shape(1, 60),), arrival=n, code="mine") for n in range(2)]
    first, second = policy_named("pack")(queue, ledger({"d1": MINE}), {}).placements
    assert (first.devices, second.devices) == (("d1",), ("d0",))
    assert first.reason.startswith(
        f"on the device with the fewest gangs, as no other trial waited{WHERE_READY}, on node n0"
    )
    assert WHERE_READY not in second.reason


@pytest.mark.parametrize("policy", [*POLICIES, "static-2"])
@pytest.mark.parametrize("seed", range(20))
def test_idle_ranks_change_only_which_of_equal_devices_a_gang_gets(policy: str, seed: int) -> None:
    draws = Random(seed)
    devices = [f"d{n}" for n in range(8)]
    running = [(Gang(f"r{n}", 1, draws.choice((20, 40))), [draws.choice(devices)]) for n in range(4)]
    queue = [
        Queued(str(n), (Shape(draws.choice((1, 1, 2, 4)), draws.choice((20, 40, 60)), 9.0),), arrival=n, code="mine")
        for n in range(8)
    ]
    ready = {device: draws.choice((MINE, CLEAN, THEIRS)) for device in draws.sample(devices, 4)}

    def decided(ready: Ready) -> Decision:
        book = ledger(ready, len(devices))
        for gang, where in running:
            if book.fits(gang, where[0]):
                book.restore(gang, where)
        decision = policy_named(policy)(queue, book, {})
        for placement in decision.placements:
            book.place(placement.gang, placement.devices)  # asserts that it fits
        return decision

    without, with_ranks = decided({}), decided(ready)
    assert chosen(without) == chosen(with_ranks)
    assert {name: wait.blocked for name, wait in without.waits.items()} == {
        name: wait.blocked for name, wait in with_ranks.waits.items()
    }


def chosen(decision: Decision) -> list[tuple[Gang, int]]:
    return [(placement.gang, placement.choice) for placement in decision.placements]
