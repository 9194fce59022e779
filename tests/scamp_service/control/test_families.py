"""Candidates that run the same code belong to one family, whatever their numbers."""

from __future__ import annotations

from typing import Any

from estimators.model import Candidate
from scamp_service.control.families import family

PARAMS = {"width": 64, "lr": 1e-3, "optimizer": "adamw", "flash": True, "batch": 64, "spike_mib": 0}
SEARCHED = {"width", "lr", "optimizer", "flash"}


def of(params: dict[str, Any], workload: str = "vit_digits", code: str | None = None) -> str:
    return family(Candidate(workload, code, params), SEARCHED)


OWN = of(PARAMS)


def test_numbers_that_are_searched_leave_the_family_as_it_is() -> None:
    assert of({**PARAMS, "width": 128, "lr": 5e-3}) == OWN


def test_what_chooses_another_path_through_the_code_is_another_family() -> None:
    changed: list[dict[str, Any]] = [{"optimizer": "sgd"}, {"flash": False}, {"spike_mib": 24}, {"batch": 32}]
    others = {of({**PARAMS, **change}) for change in changed}
    others |= {of(PARAMS, "stdlib_gpt"), of(PARAMS, code="0" * 64)}
    assert len(others | {OWN}) == 7


def test_numbers_inside_lists_and_repeated_blocks_are_searched_too() -> None:
    def layers(*blocks: Any) -> str:
        return of({**PARAMS, "width": [64, 64], "lr": None, "flash": list(blocks)})

    narrow = layers({"op": "conv", "width": 8})
    assert narrow == layers({"op": "conv", "width": 16})
    others = {layers({"op": "skip", "width": 8}), layers({"op": "conv"}, {"op": "conv"}), layers()}
    assert len(others | {narrow}) == 4


def test_the_order_of_parameters_does_not_matter() -> None:
    assert of(dict(reversed(PARAMS.items()))) == OWN
