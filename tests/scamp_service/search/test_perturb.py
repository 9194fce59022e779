"""Parameters of copies: other values of those that may change, all within the space and its constraints."""

from __future__ import annotations

from typing import Any

import pytest

from scamp_service.search.perturb import perturbation_of
from scamp_service.study.parse import parse_study
from scamp_service.study.spec import StudySpec
from tests.studies import study

SPACE = {
    "lr": {"low": 1e-4, "high": 1e-1, "log": True},
    "decay": {"choice": [0.0, 0.1]},
    "batch": {"ordinal": [8, 16, 32]},
    "width": {"low": 8, "high": 64, "step": 8},
}
DONOR = {"lr": 1e-2, "decay": 0.1, "batch": 16, "width": 32, "data": "mnist"}


def spec_of(space: Any = SPACE, constraints: Any = (), **options: Any) -> StudySpec:
    rule = {"rule": "pbt", "mutate": list(space), **options}
    return parse_study(study(space=space, fixed={"data": "mnist"}, constraints=list(constraints), stopping=rule))


def copies(spec: StudySpec, donor: Any = DONOR, count: int = 200) -> list[Any]:
    change = perturbation_of(spec)
    assert change is not None
    assert [change(donor, number) for number in range(5)] == [change(donor, number) for number in range(5)]
    return [change(donor, number) for number in range(count)]


def test_numbers_grow_or_shrink_and_choices_stay_unless_they_are_drawn_anew() -> None:
    children = copies(spec_of(resample=0))
    assert {round(child["lr"], 6) for child in children} == {8e-3, 1.2e-2}
    assert {child["batch"] for child in children} == {8, 32} and {child["decay"] for child in children} == {0.1}
    assert {child["width"] for child in children} == {24, 40} and {child["data"] for child in children} == {"mnist"}
    drawn = copies(spec_of(resample=1))
    assert {child["decay"] for child in drawn} == {0.0, 0.1} and {child["batch"] for child in drawn} == {8, 16, 32}
    assert sum(child["lr"] < 3.16e-3 for child in drawn) == pytest.approx(100, abs=25)  # half of it, on a log scale


def test_only_what_may_change_does_and_nothing_leaves_the_space() -> None:
    spec = parse_study(study(space=SPACE, stopping={"rule": "pbt", "mutate": ["lr"], "factors": [100]}))
    assert {copy["lr"] for copy in copies(spec)} - {1e-1} and all(copy["lr"] <= 1e-1 for copy in copies(spec))
    assert {(copy["batch"], copy["width"]) for copy in copies(spec)} == {(16, 32)}


def test_copies_satisfy_constraints_or_stay_as_they_are() -> None:
    assert all(copy["batch"] <= copy["width"] for copy in copies(spec_of(constraints=["batch <= width"], resample=1)))
    same = copies(spec_of({"width": SPACE["width"]}, ["width == 32"], resample=0), {"width": 32}, 3)
    assert same == [{"width": 32}] * 3


def test_a_study_whose_rules_copy_nothing_has_no_perturbation() -> None:
    assert perturbation_of(parse_study(study())) is None
