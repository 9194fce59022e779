"""What a role, a token and a user together allow."""

from __future__ import annotations

from itertools import product

import pytest

from scamp_service.access.model import EVERYTHING, Access, Role

READ, SUBMIT, ADMIN = Role.VIEWER, Role.EDITOR, Role.ADMIN


@pytest.mark.parametrize(("held", "needed"), tuple(product(Role, Role)))
def test_a_role_includes_those_before_it(held: Role, needed: Role) -> None:
    order = [READ, SUBMIT, ADMIN]
    assert held.includes(needed) is (order.index(held) >= order.index(needed))


@pytest.mark.parametrize(("held", "most"), tuple(product(Role, Role)))
def test_a_token_allows_the_lesser_of_what_it_and_its_user_may(held: Role, most: Role) -> None:
    access = Access("anna", roles={"vision": held}, most=most)
    for needed in Role:
        assert access.may(needed, "vision") is (held.includes(needed) and most.includes(needed))
        assert not access.may(needed, "speech")


def test_a_token_for_one_project_opens_no_other() -> None:
    access = Access("anna", roles={"vision": ADMIN, "speech": ADMIN}, project="vision")
    assert access.may(ADMIN, "vision") and not access.may(READ, "speech")
    assert access.projects == ["vision"]
    admin = Access("root", is_admin=True, project="vision")
    assert admin.may(ADMIN, "vision") and not admin.may(READ, "speech")
    assert admin.projects == ["vision"] and not admin.sees_all and not admin.may_manage


def test_only_an_unlimited_admin_manages() -> None:
    assert EVERYTHING.may_manage and EVERYTHING.projects is None
    reader = Access("root", is_admin=True, most=READ)
    assert reader.sees_all and not reader.may_manage and not reader.may(SUBMIT, "vision")
    assert Access("nobody").projects == []
