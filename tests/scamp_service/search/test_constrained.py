"""Candidates satisfy the constraints, whatever the sampler proposes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scamp_service.lifecycle import TrialState as S
from scamp_service.search.constrained import NoCandidate
from scamp_service.search.proposals import Search
from tests.scamp_service.search.studies import CONDITIONAL, hash_value, live, study

RARE = {n: {"low": 1, "high": 64} for n in ("width", "heads", "other")}
"""Pairs of width and heads; one in 400 satisfies the constraints below."""
CONSTRAINTS = ["width % heads == 0", "heads >= 17", "width >= 2 * heads", "other > 3"]


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_rare_candidates_are_found_and_what_is_not_constrained_keeps_its_value(sampler: str) -> None:
    spec = study(RARE, sampler, constraints=CONSTRAINTS)
    for trial in live(Search(spec), lambda t: replace(t, state=S.COMPLETED, value=hash_value(t.params)), 25):
        width, heads, other = trial.params["width"], trial.params["heads"], trial.params["other"]
        assert width % heads == 0
        assert heads >= 17
        assert width >= 2 * heads
        assert other > 3


def test_without_a_broken_constraint_the_sampler_has_the_last_word() -> None:
    plain = Search(study(RARE, "random")).propose([], 0, 40)
    constrained = Search(study(RARE, "random", constraints=["other > 3"])).propose([], 0, 40)
    assert [proposal for proposal in plain if proposal["other"] > 3] == [
        two for before, two in zip(plain, constrained, strict=True) if before["other"] > 3
    ]


def test_what_cannot_be_satisfied_is_refused_with_the_constraint_that_rejects_most() -> None:
    with pytest.raises(NoCandidate, match=r"of some 10010 that were tried none satisfies all; most break 'heads < 0'"):
        Search(study(RARE, "tpe", constraints=["heads < 0", "width > 3"])).propose([], 0, 1)
    proposed = Search(study(RARE, "random", constraints=["width % (heads - 9) == 0"])).propose([], 0, 100)
    assert all(proposal["heads"] != 9 for proposal in proposed), "a constraint without a value is broken"
    start = study(RARE, "random", constraints=["heads > 64 - width"], start_with=[{"width": 0 + 1, "other": 5}])
    assert Search(start).propose([], 0, 1)[0]["heads"] == 64
    with pytest.raises(NoCandidate, match=r"that start_with\[0\] leaves out"):
        Search(study(RARE, "random", constraints=["heads > 64 + width"], start_with=[{"width": 1}])).propose([], 0, 1)


def test_a_grid_has_the_points_that_satisfy_the_constraints_and_exist() -> None:
    space = {
        "optimizer": CONDITIONAL["optimizer"],
        "n": {"ordinal": [1, 2, 4]},
        "momentum": {"choice": [0.0, 0.9], "when": {"optimizer": "sgd"}},
    }
    points = Search(study(space, "grid", constraints=["momentum < 0.5 || n == 4"])).propose([], 0, 100)
    assert len(points) == 3 + 3 + 3 + 1
    assert all(("momentum" in point) == (point["optimizer"] == "sgd") for point in points)
    with pytest.raises(NoCandidate, match="the constraints reject every point of the grid"):
        Search(study({"n": {"ordinal": [1, 2]}}, "grid", constraints=["n > 2"])).propose([], 0, 1)
