"""Studies with policies of their own share a cluster."""

from __future__ import annotations

import pytest

from placement.model import Cluster, Device, Gang, Queued, Shape
from placement.packing.by_study import by_study
from placement.packing.ledger import Ledger
from placement.packing.packer import pack
from placement.packing.turns import PASSES_BEFORE_RESERVATION


def ledger(count: int = 4) -> Ledger:
    return Ledger(Cluster(tuple(Device(f"d{n}", "n0", n, "gpu", 100) for n in range(count))), 1)


def trial(name: str, study: int, passed_over: int = 0, ranks: tuple[int, ...] = (1, 2)) -> Queued:
    shapes = tuple(Shape(number, 50, 100.0 / number) for number in ranks)
    return Queued(name, shapes, passed_over=passed_over, study=study)


def test_each_study_is_placed_by_its_own_policy() -> None:
    policy = by_study({2: "static-2"}, pack)
    decision = policy([trial("a", 2), trial("b", 1, ranks=(1,)), trial("c", 1, ranks=(1,))], ledger(), {})
    ranks = {placement.gang.id: placement.gang.num_ranks for placement in decision.placements}
    assert ranks == {"a": 2, "b": 1, "c": 1}
    assert not decision.waits


def test_the_policy_of_the_first_trial_decides_first_and_the_ledger_stays_as_it_was() -> None:
    book, policy = ledger(2), by_study({2: "static-2"}, pack)
    first = policy([trial("a", 2), trial("b", 1)], book, {})
    second = policy([trial("b", 1), trial("a", 2)], book, {})
    assert [placement.gang.id for placement in first.placements] == ["a"] and list(first.waits) == ["b"]
    assert [placement.gang.id for placement in second.placements] == ["b"] and list(second.waits) == ["a"]
    assert not book.gangs and book.find(2, 100)


def test_no_policy_takes_devices_that_another_one_keeps() -> None:
    book = ledger(2)
    book.place(Gang("x", 1, 50), ["d0"])
    blocked = trial("a", 1, PASSES_BEFORE_RESERVATION, ranks=(2,))
    decision = by_study({2: "min-degree"}, pack)([blocked, trial("b", 2)], book, {})
    assert not decision.placements and set(decision.kept_devices) == {"d0", "d1"}
    assert book.find(1, 50) == ("d1",), "given back"


def test_a_name_that_no_policy_has_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown policy 'fair'"):
        by_study({1: "fair"}, pack)
