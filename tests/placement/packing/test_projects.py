"""Projects share devices by their weights and quotas."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.model import Cluster, Device, Queued, Shape
from placement.packing.ledger import Ledger
from placement.packing.packer import pack
from placement.packing.projects import NO_QUOTA, OVER_QUOTA, Claim, Project, Quota, Usage, admit
from placement.packing.turns import PASSES_BEFORE_RESERVATION, passed_over

NOTHING = Usage()


def claims(*rows: tuple[int, int, str]) -> list[Claim]:
    """(study, ranks, project) of each."""
    return [Claim(number, study, ranks, project) for number, (study, ranks, project) in enumerate(rows)]


def test_inside_a_project_studies_take_turns_and_the_one_with_the_fewest_running_is_first() -> None:
    waiting = claims((1, 1, "a"), (1, 1, "a"), (1, 1, "a"), (2, 1, "a"), (2, 1, "a"))
    assert admit(waiting, NOTHING, {}).order == [0, 3, 1, 4, 2]
    assert admit(waiting, Usage(of_study=Counter({1: 1})), {}).order == [3, 0, 4, 1, 2]


def test_projects_share_devices_by_weight() -> None:
    waiting = claims(*[(1, 1, "a")] * 6, *[(2, 1, "b")] * 6)
    order = admit(waiting, NOTHING, {"b": Project(weight=2.0)}).order
    assert Counter(number >= 6 for number in order[:6]) == {True: 4, False: 2}
    busy = Usage(devices=Counter({"b": 4}))
    assert [number < 6 for number in admit(waiting, busy, {}).order[:4]] == [True] * 4


def test_a_higher_priority_comes_first() -> None:
    waiting = [Claim(0, 1, 1), Claim(1, 2, 1, "b", priority=5), Claim(2, 2, 1, "b")]
    assert admit(waiting, Usage(devices=Counter({"b": 9})), {}).order == [1, 0, 2]


def test_a_quota_keeps_trials_waiting_with_the_reason_and_those_behind_do_not_pass() -> None:
    waiting = claims((1, 1, "a"), (1, 8, "a"), (1, 3, "a"), (1, 1, "a"), (2, 4, "b"))
    quotas = {"a": Project(devices=4)}
    order = admit(waiting, Usage(devices=Counter({"a": 1})), quotas)
    assert order.order == [4, 0]  # b holds less
    assert order.over_quota[1] == f"{OVER_QUOTA} project 'a': it needs 8 devices, and may never use more than 4 at once"
    assert order.over_quota[2] == order.over_quota[3] == f"{OVER_QUOTA} project 'a': 4 devices at once"
    limited = admit(waiting, Usage(trials=Counter({"b": 2})), {"b": Project(trials=2)})
    assert limited.over_quota == {4: f"{OVER_QUOTA} project 'b': 2 trials at once"}


def test_once_the_mib_hours_of_a_project_are_used_up_no_trial_of_it_starts() -> None:
    waiting, quotas = claims((1, 1, "a"), (2, 1, "b")), {"a": Project(mib_hours=500)}
    assert admit(waiting, Usage(mib_hours={"a": 499.9}), quotas).order == [0, 1]
    order = admit(waiting, Usage(mib_hours={"a": 500.0, "b": 900.0}), quotas)
    assert order.order == [1]
    assert order.over_quota == {0: f"{OVER_QUOTA} project 'a': its 500 MiB·hours in all are used up"}


def test_quotas_of_a_person_hold_over_all_projects_and_the_reason_says_who_holds_what() -> None:
    waiting = [Claim(0, 1, 2, "a", owner="bob"), Claim(1, 2, 1, "a", owner="ada"), Claim(2, 3, 1, "b", owner="bob")]
    held = Usage(devices=Counter({"a": 3, "user bob": 3}), holdings={"user bob": Counter({7: 2, 9: 1})})
    order = admit(waiting, held, {}, {"bob": Quota(devices=4)})
    words = f"{OVER_QUOTA} owner 'bob': 4 devices at once (study 7 holds 2, study 9 holds 1)"
    assert (order.order, order.over_quota) == ([2, 1], {0: words})
    both = admit(waiting, held, {"b": Project(trials=1)}, {"bob": Quota(device_hours=10), "ada": Quota(trials=1)})
    assert both.order == [2, 0, 1]
    used = Usage(device_hours={"user bob": 10.0})
    order = admit(waiting, used, {}, {"bob": Quota(device_hours=10)})
    assert order.order == [1] and order.over_quota[2].endswith("its 10 device-hours of this month are used up")


def test_a_project_has_a_weight_and_quotas_that_make_sense() -> None:
    with pytest.raises(ValueError, match="above 0"):
        Project(weight=0)
    with pytest.raises(ValueError, match="at least 1"):
        Project(devices=0)
    with pytest.raises(ValueError, match="above 0"):
        Project(mib_hours=0)


PROJECTS = st.fixed_dictionaries(
    {
        name: st.builds(
            Project,
            weight=st.floats(0.1, 10),
            devices=st.none() | st.integers(1, 6),
            trials=st.none() | st.integers(1, 3),
        )
        for name in "ab"
    }
)
WAITING = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 8), st.sampled_from("abc"), st.integers(0, 1)), max_size=20
)


@given(WAITING, PROJECTS, st.integers(8, 16))
def test_quotas_hold_and_no_feasible_trial_waits_for_ever(
    waiting: list[tuple[int, int, str, int]], projects: dict[str, Project], num_devices: int
) -> None:
    """In each round all that run end, and a small trial of the highest priority arrives in each project."""
    left = {n: Claim(n, study, ranks, name, priority) for n, (study, ranks, name, priority) in enumerate(waiting)}
    feasible = {
        n
        for n, claim in left.items()
        if claim.num_ranks <= (projects.get(claim.project, NO_QUOTA).devices or num_devices)
    }
    cluster = Cluster(tuple(Device(f"n/{n}", "n", n, "virtual", 10) for n in range(num_devices)))
    for arrived in range(2 * (len(waiting) + 1) + PASSES_BEFORE_RESERVATION):
        small = {1000 + 3 * arrived + n: Claim(1000 + 3 * arrived + n, 1, 1, name, 1) for n, name in enumerate("abc")}
        left |= small
        order = admit([*left.values()], NOTHING, projects)
        assert sorted([*order.order, *order.over_quota]) == sorted(left)
        for name, project in projects.items():
            rank_counts = [left[number].num_ranks for number in order.order if left[number].project == name]
            assert project.devices is None or sum(rank_counts) <= project.devices
            assert project.trials is None or len(rank_counts) <= project.trials
        every = [
            Queued(str(claim.id), (Shape(claim.num_ranks, 10),), claim.passed_over, claim.id, claim.study)
            for claim in left.values()
        ]
        by_id = {queued.id: queued for queued in every}
        started = {
            placement.gang.id for placement in pack([by_id[str(n)] for n in order.order], Ledger(cluster, 1)).placements
        }
        counts = passed_over(every, started)
        left = {n: replace(claim, passed_over=counts[str(n)]) for n, claim in left.items() if str(n) not in started}
    assert not feasible & left.keys()
