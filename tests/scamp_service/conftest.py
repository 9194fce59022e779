"""Stores to test on: SQLite in a file, and PostgreSQL; simulations have theirs in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scamp_service.store.store import Store
from tests.services.postgres import PostgresServer, postgres


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with postgres() as server:
        yield server


_POSTGRES = pytest.param("postgresql", marks=pytest.mark.postgres)


@pytest.fixture(params=["file", _POSTGRES])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store, on each database in turn."""
    if request.param == "file":
        opened = Store(f"sqlite:///{tmp_path / 'data' / 'scamp.db'}")
    else:
        opened = Store(request.getfixturevalue("postgres_server").migrated_database())
    yield opened
    opened.close()


@pytest.fixture(params=["file", _POSTGRES])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database that several processes can open; it has no tables yet."""
    if request.param == "file":
        return f"sqlite:///{tmp_path / 'data' / 'scamp.db'}"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.create_database()
