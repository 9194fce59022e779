"""Stores to test on: SQLite in a file and in memory, and PostgreSQL: a temporary cluster of the installed binaries."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from scamp_service.store import schema
from scamp_service.store.store import Store
from tests.conftest import find_postgres

_numbers = count()


class PostgresServer:
    """A cluster that listens on a Unix socket in its own directory only, and never syncs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        binaries = find_postgres()
        assert binaries, "tests that use this are marked postgres"
        as_user = _unprivileged(directory)
        initdb = [
            binaries / "initdb",
            "-D",
            directory / "data",
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
        ]
        subprocess.run(initdb, check=True, capture_output=True, cwd=directory, timeout=60, **as_user)
        options = ["-F", "-k", directory, "-c", "listen_addresses=", "-c", "max_connections=200"]
        self.log = (directory / "log").open("wb")
        self.process = subprocess.Popen(
            [binaries / "postgres", "-D", directory / "data", *options],
            stdout=self.log,
            stderr=self.log,
            cwd=directory,
            **as_user,
        )
        self._wait()
        self._migrated = ""

    def migrated_database(self) -> str:
        """The URL of an empty study database; the same one every time, for to create one takes longer than a test."""
        if not self._migrated:
            self._migrated = self.create_database()
            Store(self._migrated).close()
        tables = ", ".join(f'"{table}"' for table in schema.metadata.tables)
        with psycopg.connect(self._migrated) as connection:
            connection.execute(f"TRUNCATE {tables} RESTART IDENTITY")  # type: ignore[arg-type]
        return self._migrated

    def create_database(self) -> str:
        """The URL of a new database without tables."""
        name = f"scamp_{next(_numbers)}"
        with psycopg.connect(
            host=str(self.directory), user="postgres", dbname="postgres", autocommit=True
        ) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')  # type: ignore[arg-type]
        return f"postgresql://postgres@/{name}?host={self.directory}"

    def stop(self) -> None:
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(timeout=30)
        self.log.close()

    def _wait(self) -> None:
        end = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(host=str(self.directory), user="postgres", dbname="postgres").close()
                return
            except psycopg.OperationalError:
                assert self.process.poll() is None, (self.directory / "log").read_text()
                assert time.monotonic() < end, (self.directory / "log").read_text()
                time.sleep(0.05)


def _unprivileged(directory: Path) -> dict[str, Any]:
    """PostgreSQL refuses to run as root: give it the directory and another user."""
    if os.geteuid() != 0:
        return {}
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    user = known.get("postgres") or known["nobody"]
    os.chown(directory, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    directory = Path(tempfile.mkdtemp(prefix="scamp-pg-", dir="/tmp"))  # a socket's path may not exceed 107 characters
    server = None
    try:
        server = PostgresServer(directory)
        yield server
    finally:
        if server:
            server.stop()
        shutil.rmtree(directory, ignore_errors=True)


_POSTGRES = pytest.param("postgresql", marks=pytest.mark.postgres)


@pytest.fixture(params=["file", "memory", _POSTGRES])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store, on each database in turn."""
    match request.param:
        case "postgresql":
            opened = Store(request.getfixturevalue("postgres_server").migrated_database())
        case "file":
            opened = Store(f"sqlite:///{tmp_path / 'data' / 'scamp.db'}")
        case _:
            opened = Store("sqlite://")
    yield opened
    opened.close()


@pytest.fixture(params=["file", _POSTGRES])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database that several processes can open; it has no tables yet."""
    if request.param == "file":
        return f"sqlite:///{tmp_path / 'data' / 'scamp.db'}"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.create_database()
