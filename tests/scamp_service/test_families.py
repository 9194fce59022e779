from __future__ import annotations

from dataclasses import replace

from estimators.model import MIB
from estimators.residuals import Ending
from scamp_service.families import family, runs
from scamp_service.lifecycle import Outcome
from tests.scamp_service.test_decide import attempt

PARAMS = {"width": 64, "lr": 1e-3, "optimizer": "adamw", "flash": True, "batch": 64, "spike_mib": 0}
SEARCHED = {"width", "lr", "optimizer", "flash"}
OWN = family("vit_digits", None, PARAMS, SEARCHED)


def test_numbers_that_are_searched_leave_the_family_as_it_is() -> None:
    assert family("vit_digits", None, {**PARAMS, "width": 128, "lr": 5e-3}, SEARCHED) == OWN


def test_what_chooses_another_path_through_the_code_is_another_family() -> None:
    changed = [{"optimizer": "sgd"}, {"flash": False}, {"spike_mib": 24}, {"batch": 32}]
    others = {family("vit_digits", None, {**PARAMS, **change}, SEARCHED) for change in changed}
    others |= {family("stdlib_gpt", None, PARAMS, SEARCHED), family("vit_digits", "0" * 64, PARAMS, SEARCHED)}
    assert len(others | {OWN}) == 7


def test_the_order_of_parameters_does_not_matter() -> None:
    assert family("vit_digits", None, dict(reversed(PARAMS.items())), SEARCHED) == OWN


def test_an_attempt_is_told_in_the_words_of_the_estimators() -> None:
    row = attempt(extra_bytes=3 * MIB, measured_bytes=19 * MIB, outcome=Outcome.OUT_OF_MEMORY)
    (run,) = runs([row])
    assert (run.traced_bytes, run.extra_bytes, run.reserved_bytes) == (17 * MIB, 3 * MIB, 24 * MIB)
    assert (run.device_kinds, run.measured_bytes, run.ending) == (("virtual",), 19 * MIB, Ending.OUT_OF_MEMORY)
    outcomes = [None, *Outcome]
    told = {outcome: runs([replace(row, outcome=outcome)])[0].ending for outcome in outcomes}
    assert [outcome for outcome, ending in told.items() if ending is Ending.FINISHED] == [Outcome.DONE]
    assert [outcome for outcome, ending in told.items() if ending is Ending.OUT_OF_MEMORY] == [Outcome.OUT_OF_MEMORY]
