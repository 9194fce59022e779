"""Tokens: hashed, limited, ended by time, by revoking, and with their user."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from scamp_service.access.model import Role
from scamp_service.errors import InvalidInput, NotFound
from scamp_service.store import schema
from scamp_service.store.store import Store


@pytest.fixture
def team(store: Store) -> Store:
    store.users.create("anna", is_admin=True, now=1.0)
    store.users.create("bob", now=1.0)
    return store


def test_the_database_never_holds_a_secret(team: Store) -> None:
    token, secret = team.tokens.create("bob", "laptop", now=2.0)
    with team._database.read() as connection:
        row = connection.execute(sa.select(schema.tokens).where(schema.tokens.c.id == token.id)).one()
    assert not any(secret in str(value) or secret[6:] in str(value) for value in row)
    assert len(secret) == 49


def test_a_token_is_limited_and_notes_its_use(team: Store) -> None:
    token, secret = team.tokens.create("bob", "ci", Role.EDITOR, "vision", expires_at=100.0, now=2.0)
    access = team.tokens.access_of(secret, now=50.0)
    assert access is not None
    assert (access.name, access.most, access.project) == ("bob", Role.EDITOR, "vision")
    assert team.tokens.get(token.id).last_used_at == 50.0
    team.tokens.access_of(secret, now=60.0)
    assert team.tokens.get(token.id).last_used_at == 50.0  # not at each request
    assert team.tokens.access_of(secret, now=100.0) is None
    for wrong in ("", "scamp_", secret + "x", secret.removeprefix("scamp_"), "scamp_\udcff"):
        assert team.tokens.access_of(wrong, now=50.0) is None


def test_a_token_ends_when_it_is_revoked_or_its_user_disabled(team: Store) -> None:
    (first, secret), (_, other) = (team.tokens.create("bob", name, now=2.0) for name in ("a", "b"))
    session = team.tokens.begin_session(secret, "", expires_at=900.0, now=3.0)
    assert session is not None and team.tokens.access_of(session, now=4.0) == team.tokens.access_of(secret, now=4.0)
    team.tokens.revoke(first.id, now=5.0)
    assert team.tokens.access_of(secret, now=6.0) is None
    assert team.tokens.access_of(session, now=6.0) is None  # it began with that token
    assert team.tokens.access_of(other, now=6.0) is not None
    team.users.change("bob", is_disabled=True, now=7.0)
    assert team.tokens.access_of(other, now=8.0) is None
    with pytest.raises(NotFound, match="may log in"):
        team.tokens.create("bob", "c", now=8.0)


def test_a_session_lasts_no_longer_than_its_token_and_begins_no_other(team: Store) -> None:
    _, secret = team.tokens.create("bob", "short", Role.VIEWER, expires_at=10.0, now=2.0)
    session = team.tokens.begin_session(secret, "", expires_at=900.0, now=3.0)
    assert session is not None
    access = team.tokens.access_of(session, now=9.0)
    assert access is not None and access.most is Role.VIEWER
    assert team.tokens.access_of(session, now=10.0) is None
    assert team.tokens.begin_session(session, "", expires_at=900.0, now=4.0) is None
    assert [token.name for token in team.tokens.every("bob")] == ["first", "short"]


def test_logging_out_ends_a_session_but_no_token(team: Store) -> None:
    _, secret = team.tokens.create("bob", "laptop", now=2.0)
    session = team.tokens.begin_session(secret, "", expires_at=900.0, now=3.0)
    assert session is not None
    for ended in (session, secret):
        team.tokens.log_out(ended, now=4.0)
    assert team.tokens.access_of(session, now=5.0) is None
    assert team.tokens.access_of(secret, now=5.0) is not None


def test_a_new_password_ends_sessions(team: Store) -> None:
    _, session = team.tokens.create("bob", "browser", expires_at=900.0, is_session=True, now=2.0)
    team.users.change("bob", password="hash", now=3.0)
    assert team.tokens.access_of(session, now=4.0) is None


def test_a_token_that_has_expired_is_not_made(team: Store) -> None:
    with pytest.raises(InvalidInput, match="later than now"):
        team.tokens.create("bob", "old", expires_at=1.0, now=2.0)
