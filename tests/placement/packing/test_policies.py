"""Every policy by the same contract, over whole histories; and what is special to each."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.model import Cluster, Device, Placement, Queued, Shape
from placement.packing.elastic import Share, divide, redivide
from placement.packing.ledger import Ledger
from placement.packing.policies import POLICIES, policy_named
from placement.packing.policy import Blocked, Decision, Policy
from tests.shapes import pareto

ALL = [*POLICIES, "static-2"]
LINEAR = (Shape(1, 10, 8.0), Shape(2, 10, 4.0), Shape(4, 10, 2.0))


def cluster(num_devices: int, per_node: int = 4) -> Cluster:
    return Cluster(tuple(Device(f"d{n}", f"n{n // per_node}", n % per_node, "v", 96) for n in range(num_devices)))


def decided(policy: str, queue: list[Queued], ledger: Ledger, left: dict[str, float] | None = None) -> Decision:
    return policy_named(policy)(queue, ledger, left or {})


def drawn(random: Random, name: str, study: int, num_devices: int) -> Queued:
    """A trial with one to three shapes, some of which may be too large for the cluster."""
    seconds, mib, ranks = random.uniform(1, 20), random.randint(1, 96), random.choice((1, 1, 2, 3))
    widths = [ranks * 2**n for n in range(random.randint(1, 3)) if ranks * 2**n <= num_devices] or [num_devices]
    has_seconds = random.random() < 0.8
    shapes = pareto(Shape(width, mib, seconds / width**0.8 if has_seconds else None) for width in widths)
    return Queued(name, shapes, arrival=int(name), study=study)


class History:
    """A cluster over time: trials arrive, start, end early or late, and some of their devices are shared."""

    def __init__(self, policy: Policy, random: Random, num_devices: int, max_gangs: int) -> None:
        self.policy, self.random, self.num_devices = policy, random, num_devices
        ready = {f"d{n}": frozenset({None}) for n in range(1, num_devices, 2)}
        self.ledger = Ledger(cluster(num_devices, random.choice((2, 4))), max_gangs, ready)
        self.waiting: list[Queued] = []
        self.ends: dict[str, float] = {}
        self.log: list[Placement] = []
        self.now, self.number = 0.0, 0

    def arrive(self) -> None:
        self.waiting.append(drawn(self.random, str(self.number), self.random.randint(0, 1), self.num_devices))
        self.number += 1

    def end_next(self) -> None:
        gang, self.now = min(self.ends.items(), key=lambda end: end[1])
        del self.ends[gang]
        self.ledger.release(gang)

    def decide(self) -> Decision:
        before = [dict(self.ledger.gangs_on(device.id)) for device in self.ledger.devices]
        left = {gang: (end - self.now) * 0.9 for gang, end in self.ends.items()}
        decision = self.policy(self.waiting, self.ledger, left)
        assert [dict(self.ledger.gangs_on(device.id)) for device in self.ledger.devices] == before
        assert decision == self.policy(self.waiting, self.ledger, left), "the same state, the same decision"
        started = [placement.gang.id for placement in decision.placements]
        assert sorted([*started, *decision.waits]) == sorted(queued.id for queued in self.waiting)
        by_id = {queued.id: queued for queued in self.waiting}
        for placement in decision.placements:
            shape = by_id[placement.gang.id].shapes[placement.choice]
            assert (placement.gang.num_ranks, placement.gang.mib_per_rank) == (shape.num_ranks, shape.mib_per_rank)
            self.ledger.place(placement.gang, placement.devices)  # asserts: whole, and no device over-subscribed
            self.ends[placement.gang.id] = self.now + (shape.seconds or self.random.uniform(1, 20))
        self.waiting = [queued for queued in self.waiting if queued.id in decision.waits]
        self.log += decision.placements
        return decision

    def fitting(self) -> list[str]:
        """Waiting trials of which some shape would fit now."""
        return [
            queued.id
            for queued in self.waiting
            if any(self.ledger.find(shape.num_ranks, shape.mib_per_rank) for shape in queued.shapes)
        ]


@pytest.mark.parametrize("policy", ALL)
@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 8), st.integers(1, 3))
def test_every_history_keeps_the_contract(policy: str, random: Random, num_devices: int, max_gangs: int) -> None:
    history = History(policy_named(policy), random, num_devices, max_gangs)
    for _ in range(30):
        if history.ends and random.random() < 0.4:
            history.end_next()
        else:
            history.arrive()
        decision = history.decide()
        is_kept = any(wait.blocked is Blocked.OWN_RESERVATION for wait in decision.waits.values())
        if policy == "pack" and not is_kept:
            assert not history.fitting()
    for _ in range(200):
        if not history.ends:
            break
        history.end_next()
        history.decide()
    assert not history.waiting, "each starts in the end"


@pytest.mark.parametrize("policy", ALL)
def test_the_same_seed_gives_the_same_log(policy: str) -> None:
    def log() -> list[Placement]:
        history = History(policy_named(policy), Random(7), 8, 2)
        for _ in range(20):
            history.arrive()
        history.decide()
        while history.ends:
            history.end_next()
            history.decide()
        return history.log

    assert log() == log() and len(log()) == 20


def test_pack_gives_few_trials_more_devices_each() -> None:
    ledger = Ledger(cluster(4), 1)
    (alone,) = decided("pack", [Queued("a", LINEAR)], ledger).placements
    assert alone.choice == 2 and len(alone.devices) == 4
    two = decided("pack", [Queued("a", LINEAR), Queued("b", LINEAR)], ledger)
    assert [placement.choice for placement in two.placements] == [1, 1]


def test_pack_starts_the_longest_of_a_study_first_and_keeps_turns_between_studies() -> None:
    ledger = Ledger(cluster(1), 1)
    short, long = Queued("short", (Shape(1, 10, 1.0),)), Queued("long", (Shape(1, 10, 9.0),))
    assert [placement.gang.id for placement in decided("pack", [short, long], ledger).placements] == ["long"]
    other = Queued("other", (Shape(1, 10, 0.1),), study=1)
    assert [placement.gang.id for placement in decided("pack", [other, short, long], ledger).placements] == ["other"]


def test_pack_keeps_devices_for_a_blocked_gang_and_lets_those_pass_that_end_before() -> None:
    ledger = Ledger(cluster(2), 1)
    ledger.place(Queued("running", (Shape(1, 10),)).gang(), ["d0"])
    wide, quick, slow = (
        Queued("wide", (Shape(2, 10, 50.0),)),
        Queued("quick", (Shape(1, 10, 4.0),)),
        Queued("slow", (Shape(1, 10, 40.0),)),
    )
    first = decided("pack", [wide, slow], ledger, {"running": 5.0})
    assert not first.placements
    assert {gang: wait.blocked for gang, wait in first.waits.items()} == {
        "wide": Blocked.OWN_RESERVATION,
        "slow": Blocked.RESERVED,
    }
    assert first.waits["wide"].reason.endswith("d0, d1 are now kept for it")
    (passing,) = decided("pack", [wide, slow, quick], ledger, {"running": 5.0}).placements
    assert passing.gang.id == "quick"


def test_pack_takes_a_narrower_shape_that_ends_sooner_than_the_wanted_one_could() -> None:
    ledger = Ledger(cluster(2), 1)
    ledger.place(Queued("running", (Shape(1, 10),)).gang(), ["d0"])
    both = Queued("new", (Shape(1, 10, 8.0), Shape(2, 10, 4.5)))
    (placement,) = decided("pack", [both], ledger, {"running": 5.0}).placements
    assert placement.choice == 0
    assert not decided("pack", [both], ledger, {"running": 2.0}).placements


def test_static_gives_all_trials_equally_many_devices_and_lets_none_pass() -> None:
    ledger = Ledger(cluster(4), 4)
    ledger.place(Queued("running", (Shape(1, 10),)).gang(), ["d0"])
    queue = [Queued("a", LINEAR), Queued("wide", (Shape(4, 10, 1.0),)), Queued("b", (Shape(1, 10, 1.0),))]
    decision = decided("static-2", queue, ledger)
    assert [len(placement.devices) for placement in decision.placements] == [2]
    assert [*decision.waits] == ["wide", "b"]
    assert "for devices without other gangs" in decision.waits["wide"].reason, "most of the MiB are free"


def test_min_degree_takes_the_narrowest_shape() -> None:
    (placement,) = decided("min-degree", [Queued("a", LINEAR)], Ledger(cluster(4), 1)).placements
    assert placement.choice == 0


def test_elastic_divides_the_devices_by_what_each_trial_gains() -> None:
    poor = Queued("poor", (Shape(1, 10, 8.0), Shape(2, 10, 7.0)))
    decision = decided("elastic", [poor, Queued("good", LINEAR)], Ledger(cluster(5), 1))
    assert {placement.gang.id: len(placement.devices) for placement in decision.placements} == {"poor": 1, "good": 4}


options = st.dictionaries(st.integers(0, 2), st.tuples(st.integers(1, 4), st.floats(0.1, 9.0)), min_size=1)


@settings(max_examples=80, deadline=None)
@given(st.lists(options, max_size=4), st.integers(1, 8))
def test_no_other_division_of_the_devices_has_a_larger_throughput(
    trials: list[dict[int, tuple[int, float]]], num_devices: int
) -> None:
    choices = divide(trials, num_devices)
    taken = [shape_values[choice] for shape_values, choice in zip(trials, choices, strict=True) if choice is not None]
    assert sum(ranks for ranks, _ in taken) <= num_devices
    first = trials[: len(taken)]
    best = max(
        (
            sum(value for _, value in combination)
            for combination in product(*(shape_values.values() for shape_values in first))
            if sum(ranks for ranks, _ in combination) <= num_devices
        ),
        default=0.0,
    )
    assert sum(value for _, value in taken) == pytest.approx(best)


def test_an_unknown_policy_is_refused_with_the_known_names() -> None:
    with pytest.raises(ValueError, match="choose one of pack, min-degree, elastic, static-N"):
        policy_named("fifo")


def test_running_jobs_become_narrower_so_that_others_start_and_wider_if_that_is_worth_a_restart() -> None:
    wide = Queued("a", (Shape(1, 1, 1000.0), Shape(2, 1, 520.0), Shape(4, 1, 280.0)))
    new = Queued("b", wide.shapes)
    assert redivide([Share(wide)], 4) == [2]
    assert redivide([Share(wide, 2, 0.9, 10.0), Share(new)], 4) == [1, 1]
    assert redivide([Share(wide, 0, 0.9, 10.0)], 4) == [2]
    assert redivide([Share(wide, 0, 0.03, 10.0)], 4) == [0], "it ends in 30 s, and a restart takes 10"
    assert redivide([Share(wide, 2, 0.5, 10.0), *(Share(replace(new, id=f"{n}")) for n in range(5))], 4) == [
        *(0, 0, 0, 0),
        *(None, None),
    ]


def test_a_job_that_no_devices_hold_waits() -> None:
    wide = Queued("a", (Shape(8, 1, 10.0),))
    assert redivide([Share(wide), Share(Queued("b", (Shape(1, 1, 5.0),)))], 4) == [None, 0]


def test_a_static_trial_waits_for_its_number_of_devices_or_for_those_before_it_and_says_which() -> None:
    ledger = Ledger(cluster(4), 4)
    ledger.place(Queued("0", (Shape(1, 10),)).gang(0), ("d0",))
    decision = decided("static-4", [Queued(name, LINEAR, arrival=int(name)) for name in ("1", "2")], ledger)
    assert decision.waits["1"].reason == (
        "needs 10 MiB on 4 devices at once; waits, by its policy, for devices without other gangs"
    )
    assert decision.waits["2"].reason.startswith("waits for the trials before it")


def test_a_static_trial_takes_the_widest_shape_that_a_cluster_which_has_shrunk_can_hold() -> None:
    huge = Queued("0", (Shape(4, 10),), arrival=0)
    decision = decided("static-4", [huge, Queued("1", LINEAR, arrival=1)], Ledger(cluster(2), 4))
    assert [(placement.gang.id, placement.gang.num_ranks) for placement in decision.placements] == [("1", 2)]
    assert decision.waits["0"].blocked is Blocked.TOO_LARGE, "it blocks nobody"


def test_an_elastic_trial_that_has_trained_before_keeps_its_place_before_older_ones_of_its_study() -> None:
    queue = [Queued("0/1", LINEAR, arrival=0), Queued("1/2", LINEAR, arrival=1, resumes=True)]
    decision = decided("elastic", queue, Ledger(cluster(1), 4))
    assert [placement.gang.id for placement in decision.placements] == ["1/2"]


def test_a_placement_says_why_it_has_so_many_devices() -> None:
    reasons = {
        policy: decided(policy, [Queued("0", LINEAR)], Ledger(cluster(4), 4)).placements[0].reason for policy in ALL
    }
    assert "; 4 devices, of plans for 1, 2 or 4: the policy elastic divides the devices" in reasons["elastic"]
    assert "; 1 device, of plans for 1, 2 or 4: the policy min-degree" in reasons["min-degree"]
    assert "; 2 devices, of plans for 1, 2 or 4: the policy static-2 gives each trial 2," in reasons["static-2"]
    assert "; 4 devices, of plans for 1, 2 or 4: so few let all trials end by a common time" in reasons["pack"]
