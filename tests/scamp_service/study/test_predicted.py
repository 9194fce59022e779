"""Bounds on what is predicted, as words for users and as numbers for samplers."""

from __future__ import annotations

import pytest

from scamp_service.study.parse import parse_study
from scamp_service.study.predicted import Bound, PredictedBounds
from tests.studies import refusal, study

BOUNDS = PredictedBounds(peak_mib=Bound(max=80), parameters=Bound(min=1000, max=2000), step_seconds=Bound(max=0.5))
KNOWN = {"peak_mib": 60.0, "reserved_mib": 64, "step_seconds": None, "ranks": 1, "parameters": 1500}


def test_an_excess_is_a_share_of_its_bound_and_what_is_not_known_has_none() -> None:
    assert BOUNDS.excesses(KNOWN) == {
        "predicted.peak_mib.max": -0.25,
        "predicted.parameters.max": -0.25,
        "predicted.parameters.min": -0.5,
    }
    assert BOUNDS.why_not(KNOWN) == "" and PredictedBounds().excesses(KNOWN) == {}


def test_what_is_exceeded_is_said_with_its_value_and_its_bound() -> None:
    assert BOUNDS.why_not({**KNOWN, "peak_mib": 100.0, "parameters": 500}) == (
        "its predicted peak_mib is 100, and the study wants at most 80; "
        "its predicted parameters is 500, and the study wants at least 1000"
    )
    assert PredictedBounds(peak_mib=Bound(max=0)).excesses(KNOWN) == {"predicted.peak_mib.max": 60.0}


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"peak_mib": 80}, "predicted.peak_mib: must be a mapping of min, max (got 80)"),
        ({"peak": {"max": 3}}, "predicted.peak: unknown key; did you mean peak_mib?"),
        ({"peak_mib": {"mx": 3}}, "predicted.peak_mib.mx: unknown key; did you mean max?"),
        ({"ranks": {}}, "predicted.ranks: give min, max or both"),
        ({"ranks": {"min": 4, "max": 3}}, "min (4) must not exceed max (3)"),
    ],
)
def test_mistakes_are_named_with_their_place(bounds: object, words: str) -> None:
    assert words in refusal(study(predicted=bounds))
    assert parse_study(study()).predicted == PredictedBounds()
