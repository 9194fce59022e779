"""A run counts as right or missed by what it was predicted and what it reserved."""

from __future__ import annotations

import json

import pytest

from benchmarks.estimating.oom import CAPS_PERCENT, Case, Result, figures, run_under
from benchmarks.running.process import last_line
from estimators.model import MIB

PEAK, RESERVED = 100 * MIB, 110 * MIB
CAPS = [PEAK * percent // 100 for percent in CAPS_PERCENT] + [RESERVED]


def ends(dies_below: int) -> list[str]:
    """How a model ends at each cap that really needs this percentage of the traced peak."""
    return ["OutOfMemory" if cap < PEAK * dies_below // 100 else "" for cap in CAPS]


def test_a_run_that_needs_what_was_predicted_is_right_at_every_cap() -> None:
    values = figures([Result(PEAK, RESERVED, CAPS, ends(100), used=False)])
    assert values["oom_decisions"] == 6 and values["oom_right_pct"] == 100
    assert values["oom_missed"] == values["oom_inside_missed"] == values["oom_reserved_missed"] == 0
    assert values["oom_reserved_needless"] == 3  # it lives at 100, 103 and 106 %; the margin refuses these


def test_a_run_that_needs_a_little_more_is_missed_at_the_peak_alone() -> None:
    values = figures([Result(PEAK, RESERVED, CAPS, ends(102), used=False)])
    assert values["oom_right_pct"] == 100 and values["oom_missed"] == 0
    assert values["oom_inside_missed"] == 1 and values["oom_reserved_missed"] == 0


def test_a_run_that_dies_of_what_was_reserved_is_missed_by_both_decisions_and_shown_in_bold() -> None:
    result = Result(PEAK, RESERVED, CAPS, ends(200), used=False)
    values = figures([result])
    assert values["oom_missed"] == 3 and values["oom_right_pct"] == 50
    assert values["oom_reserved_missed"] == 2  # at 110 %, which is what is reserved, and as reserved
    assert result.row()[2:] == ["dies"] * 3 + ["**dies**"] * 5


def test_new_and_used_ranks_have_figures_of_their_own() -> None:
    values = figures(
        [Result(PEAK, RESERVED, CAPS, ends(200), used=False), Result(PEAK, RESERVED, CAPS, ends(100), used=True)]
    )
    assert (values["oom_missed"], values["oom_new_missed"], values["oom_used_missed"]) == (3, 3, 0)


@pytest.mark.full
def test_real_steps_end_by_the_cap_and_the_next_run_is_not_touched_by_it() -> None:
    case = Case("vit_digits", 64, {"depth": 4, "width": 96})  # 34 MiB
    assert run_in_fork(case, [12 * MIB, 64 * MIB, 12 * MIB]) == ["OutOfMemory", "", "OutOfMemory"]


def run_in_fork(case: Case, caps: list[int]) -> list[str]:
    """How the case ends at each cap; in a fork, as warming up a rank changes the process for good."""
    order = json.dumps({"case": case.to_json(), "caps": caps, "used": False})
    answer: list[str] = json.loads(last_line("-m", run_under.__module__, order, seconds=300))
    return answer
