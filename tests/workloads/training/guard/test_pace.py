"""Checks come early and where code takes another path, and otherwise take a small share of the time."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from workloads.training.guard.pace import MOST_PATHS, MOST_SHARE, Pace, path_of


def checks(num_steps: int, workload: SimpleNamespace, seconds: float = 1.5) -> list[int]:
    """Steps after which a training is checked whose step number n sets ``n`` and ``share``; each takes a second."""
    pace, now, checked = Pace(0.0), 0.0, list[int]()
    for step in range(1, num_steps + 1):
        now += 1.0
        workload.step = step - 1
        workload.share = 0.5 if step in workload.of_steps else 0.0
        nodes = 20 if step in workload.longer else 10
        if pace.is_due(path_of(nodes, [workload]), now):
            checked.append(step)
            now += seconds
            pace.end_check(seconds)
    assert pace.seconds <= max(MOST_SHARE * now, (MOST_PATHS + 1) * seconds)
    return checked


def test_the_second_step_is_checked_and_others_in_a_share_of_the_time() -> None:
    checked = checks(10_000, SimpleNamespace(of_steps=(), longer=()))
    assert checked[0] == 2, "counters that begin with 0 have left it"
    assert len(checked) > 50


def test_a_step_on_another_path_is_checked_at_once() -> None:
    assert checks(30, SimpleNamespace(of_steps=(5, 9), longer=(12,))) == [2, 5, 12], "each path once"


def test_code_that_differs_from_step_to_step_is_not_checked_each_time() -> None:
    pace, checked = Pace(0.0), 0
    for nodes in range(100):
        if pace.is_due(path_of(nodes, [SimpleNamespace()]), 0.0):
            checked += 1
            pace.end_check(1.0)
    assert checked == MOST_PATHS - 1


def test_an_attribute_that_is_set_for_one_step_is_seen_in_code_that_differs_from_step_to_step() -> None:
    pace, checked = Pace(0.0), list[int]()
    for step in range(1, 101):
        weights = torch.ones(3) if step != 60 else torch.arange(3.0)
        if pace.is_due(path_of(step, [SimpleNamespace(weights=weights)]), 0.0):
            checked.append(step)
            pace.end_check(1.0)
    assert checked == [2, 3, 4, 5, 6, 60]


def test_an_attempt_that_resumes_is_checked_in_its_first_step() -> None:
    pace = Pace(0.0, resumes=True)
    assert [pace.is_due(path_of(nodes, [SimpleNamespace()]), 0.0) for nodes in (10, 10, 20)] == [True, True, True]
    pace.end_check(1.0)
    assert not pace.is_due(path_of(10, [SimpleNamespace()]), 0.0)


def test_weights_in_a_tensor_are_another_path_once_they_are_not_all_equal() -> None:
    tensors = [torch.zeros(4), torch.ones(4), 2 * torch.ones(4), torch.arange(4.0), torch.arange(4.0) + 1]
    paths = [path_of(10, [SimpleNamespace(weights=weights)]) for weights in tensors]
    assert [paths.index(path) for path in paths] == [0, 1, 1, 3, 3]
