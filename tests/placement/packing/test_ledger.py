"""The ledger refuses whatever would over-subscribe a device, and keeps facts about devices that are gone."""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest

from placement.model import Cluster, Device, Gang, Shape
from placement.packing.ledger import Ledger


def ledger(num_devices: int = 2, mib: int = 96, max_gangs: int = 2) -> Ledger:
    return Ledger(Cluster(tuple(Device(f"d{n}", "n0", n, "v", mib) for n in range(num_devices))), max_gangs)


def test_a_gang_holds_its_mib_on_every_device_until_it_is_released() -> None:
    book = ledger(3)
    book.place(Gang("1/1", 2, 40), ["d2", "d0"])
    assert [book.free_mib(d) for d in ("d0", "d1", "d2")] == [56, 96, 56]
    assert book.gangs_on("d0") == book.gangs_on("d2") == {"1/1": 40} and not book.gangs_on("d1")
    book.release("1/1")
    assert [book.free_mib(d) for d in ("d0", "d1", "d2")] == [96, 96, 96]
    assert book.gangs == () and not book.gangs_on("d0")


@pytest.mark.parametrize(
    ("gang", "devices", "complaint"),
    [
        (Gang("b", 1, 57), ["d0"], "which has 56 MiB free"),
        (Gang("b", 2, 10), ["d0"], "has 2 ranks"),
        (Gang("b", 2, 10), ["d1", "d1"], "different devices"),
        (Gang("b", 1, 10), ["d7"], "0 MiB free"),
        (Gang("a", 1, 10), ["d1"], "already placed"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(gang: Gang, devices: list[str], complaint: str) -> None:
    book = ledger()
    book.place(Gang("a", 1, 40), ["d0"])
    with pytest.raises(AssertionError, match=complaint):
        book.place(gang, devices)
    assert (book.free_mib("d0"), book.free_mib("d1")) == (56, 96)
    assert [held.id for held in book.gangs] == ["a"]


def test_no_more_gangs_than_allowed_share_a_device() -> None:
    book = ledger(max_gangs=2)
    book.place(Gang("a", 1, 1), ["d0"])
    book.place(Gang("b", 1, 1), ["d0"])
    assert not book.is_open("d0") and not book.fits(Gang("c", 1, 1), "d0")
    with pytest.raises(AssertionError):
        book.place(Gang("c", 1, 1), ["d0"])


def test_releasing_what_is_not_held_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="holds nothing"):
        ledger().release("9/1")


def test_an_open_attempt_on_a_vanished_device_can_be_entered_after_a_restart() -> None:
    book = ledger()
    book.restore(Gang("a", 2, 50), ["d1", "gone"])
    assert book.free_mib("d1") == 46
    assert book.gangs_on("gone") == {"a": 50}
    assert book.free_mib("gone") == 0 and not book.is_open("gone")
    assert [device.id for device in book.devices] == ["d0", "d1"]
    book.release("a")
    assert book.gangs_on("gone") == {}


def test_a_device_that_shrank_under_a_live_gang_takes_no_other() -> None:
    book = ledger(mib=40, max_gangs=2)
    book.restore(Gang("a", 1, 50), ["d0"])
    assert book.free_mib("d0") == 0
    assert not book.fits(Gang("b", 1, 1), "d0")


def test_restoring_still_demands_a_whole_gang() -> None:
    with pytest.raises(AssertionError, match="has 2 ranks"):
        ledger().restore(Gang("a", 2, 50), ["gone"])


def test_at_least_one_gang_per_device() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Ledger(Cluster(), 0)


@pytest.mark.parametrize("seed", range(40))
def test_ranks_of_unlike_shares_get_devices_wherever_there_are_any(seed: int) -> None:
    draws = Random(seed)
    sizes = [draws.randint(20, 100) for _ in range(5)]
    devices = [Device(f"d{n}", "n0", n, draws.choice(["fast", "slow"]), mib) for n, mib in enumerate(sizes)]
    book = Ledger(Cluster(tuple(devices)), 2)
    for device in draws.sample(devices, 2):
        book.place(Gang(f"on {device.id}", 1, draws.randint(1, device.capacity_mib)), [device.id])
    mibs = tuple(draws.randint(5, 90) for _ in range(draws.randint(2, 4)))
    free = [book.free_mib(device.id) for device in devices]
    is_possible = any(all(a <= b for a, b in zip(mibs, order, strict=False)) for order in permutations(free, len(mibs)))
    shape = Shape(len(mibs), max(mibs), mibs=mibs, samples=mibs)
    chosen_devices = book.find_uneven(shape, {"fast": 1.0, "slow": 0.4})
    assert (chosen_devices is not None) == is_possible
    if chosen_devices is not None:
        gang = Gang("a", len(mibs), max(mibs), mibs)
        book.place(gang, chosen_devices)
        assert [book.gangs_on(device)["a"] for device in chosen_devices] == list(mibs)
        book.release("a")
        assert [book.free_mib(device.id) for device in devices] == free
    assert book.could_hold(shape) == any(
        all(a <= b for a, b in zip(mibs, order, strict=False)) for order in permutations(sizes, len(mibs))
    )


def test_a_small_share_takes_the_slowest_device_on_which_it_ends_in_time() -> None:
    devices = [Device(f"d{n}", "n", n, kind, 100) for n, kind in enumerate(("fast",) * 4 + ("slow",) * 2)]
    ledger = Ledger(Cluster(tuple(devices)), 1)
    shares = Shape(4, 50, mibs=(50, 50, 40, 40), samples=(6, 6, 3, 3))
    assert ledger.find_uneven(shares, {"fast": 1.0, "slow": 0.5}) == ("d0", "d1", "d4", "d5")
    assert ledger.find_uneven(shares, {"fast": 1.0, "slow": 0.25}) == ("d0", "d1", "d2", "d3")
