"""Users and roles: the first is an admin, an admin always stays, names are given once; every change is recorded."""

from __future__ import annotations

import pytest

from scamp_service.access.model import Actor, Role, UserKind
from scamp_service.errors import Conflict, InvalidInput, NotFound
from scamp_service.store.store import Store


def test_the_first_user_is_a_person_and_an_admin(store: Store) -> None:
    for kind, is_admin in ((UserKind.PERSON, False), (UserKind.SERVICE, True)):
        with pytest.raises(InvalidInput, match="first user"):
            store.users.create("anna", kind, is_admin=is_admin, now=1.0)
    assert not store.users.exist()
    user, secret = store.users.create("anna", is_admin=True, now=1.0)
    access = store.tokens.access_of(secret, now=2.0)
    assert access is not None and access.may_manage and access.name == user.name == "anna"
    assert store.users.exist()


def test_a_name_is_given_once_and_names_only(store: Store) -> None:
    store.users.create("anna", is_admin=True, now=1.0)
    with pytest.raises(Conflict, match="already"):
        store.users.create("anna", now=2.0)
    for name in ("", "a b", "-a", "a/b", "ä", "x" * 101):
        with pytest.raises(InvalidInput, match="no name"):
            store.users.create(name, now=2.0)


def test_an_admin_always_stays(store: Store) -> None:
    store.users.create("anna", is_admin=True, now=1.0)
    with pytest.raises(Conflict, match="last admin"):
        store.users.change("anna", is_admin=False, now=2.0)
    with pytest.raises(Conflict, match="last admin"):
        store.users.change("anna", is_disabled=True, now=2.0)
    store.users.create("bob", is_admin=True, now=2.0)
    assert store.users.change("anna", is_disabled=True, now=3.0).disabled_at == 3.0
    with pytest.raises(Conflict, match="last admin"):
        store.users.change("bob", is_admin=False, now=4.0)
    assert store.users.change("anna", is_disabled=False, now=5.0).disabled_at is None


def test_a_role_replaces_another_and_goes(store: Store) -> None:
    _, secret = store.users.create("anna", is_admin=True, now=1.0)
    _, secret = store.users.create("bob", now=1.0)
    for role in (Role.VIEWER, Role.ADMIN):
        store.users.grant("bob", "vision", role)
        assert store.users.members("vision") == [("bob", "vision", role)]
        access = store.tokens.access_of(secret, now=2.0)
        assert access is not None and access.roles == {"vision": role}
    store.users.grant("bob", "vision", None)
    assert store.users.members() == []
    with pytest.raises(NotFound, match="no user"):
        store.users.grant("eve", "vision", Role.VIEWER)


def test_what_an_actor_changes_is_recorded_and_nothing_else(store: Store) -> None:
    acting = store.acting(Actor("anna", "192.0.2.1"))
    acting.users.create("anna", is_admin=True, password="hash", now=1.0)
    acting.users.change("anna", password="another", now=2.0)
    with pytest.raises(Conflict):
        acting.users.change("anna", is_admin=False, now=2.0)
    store.users.create("bob", now=3.0)
    entries = store.audit.page()
    assert [(entry.action, entry.actor, entry.address) for entry in entries] == [
        ("change user", "anna", "192.0.2.1"),
        ("create user", "anna", "192.0.2.1"),
    ]
    assert entries[0].detail == {"user": "anna", "password": "***"}
    assert store.audit.page(actor="bob") == []
    assert store.audit.page(after=entries[0].id) == entries[1:]
