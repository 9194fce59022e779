"""What a study with one-shot search may say, and in which order its trials come."""

from __future__ import annotations

from typing import Any

import pytest

from scamp_service.errors import InvalidInput
from scamp_service.study.one_shot import OneShot
from scamp_service.study.parse import parse_study

STUDY: dict[str, Any] = {
    "name": "s",
    "workload": "cells.py:Digits",
    "objective": {"metric": "accuracy"},
    "space": {"width": {"ordinal": [8, 16]}},
    "search": {"sampler": "random", "one_shot": {"candidates": 5, "best": 2}},
    "stopping": {"rule": "none"},
    "budget": {"trials": 8, "steps": 10},
}


def test_each_part_of_the_search_waits_for_the_one_before() -> None:
    one_shot = OneShot(candidates=5, best=2)
    assert one_shot.num_trials == 8
    assert [number for number in range(9) if one_shot.waits(number)] == [1, 6]
    assert [one_shot.num_until_wait(number) for number in (0, 1, 4, 6, 7)] == [1, 5, 2, 2, 1]
    assert parse_study(STUDY).search.inherits


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"stopping": {"rule": "asha"}}, "set stopping to {rule: none}"),
        ({"search": {**STUDY["search"], "sampler": "grid"}}, "grid search ends by itself"),
        (
            {"search": {**STUDY["search"], "sampler": {"name": "evolution", "inherit": True}}},
            "remove the option inherit",
        ),
        ({"objective": {"metric": "train_loss"}}, "train_loss cannot be the objective"),
        ({"budget": {"trials": 8, "target": 0.9}}, "budget.target cannot be used"),
        ({"fixed": {"supernet": False}}, "one_shot sets this parameter itself"),
        ({"budget": {"trials": 7}}, "must be at least 8: the supernet, 5 candidates and the best 2, trained alone"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        parse_study({**STUDY, **changes})
