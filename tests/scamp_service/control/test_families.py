from __future__ import annotations

from scamp_service.control.families import family

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
