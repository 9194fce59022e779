"""PostgreSQL for tests: a temporary cluster of the installed binaries."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

from scamp_service.store import schema
from scamp_service.store.store import Store
from tests.waiting import PATIENCE_SECONDS, until

_numbers = count()


@contextmanager
def postgres() -> Iterator[PostgresServer]:
    """A server for as long as the context lasts."""
    directory = Path(tempfile.mkdtemp(prefix="scamp-pg-", dir="/tmp"))  # a socket's path may not exceed 107 characters
    server = None
    try:
        server = PostgresServer(directory)
        yield server
    finally:
        if server:
            server.stop()
        shutil.rmtree(directory, ignore_errors=True)


def find_postgres() -> Path | None:
    """The directory of PostgreSQL's server binaries, if they are installed."""
    candidates = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    on_path = shutil.which("initdb")
    if on_path:
        candidates.append(Path(on_path).resolve().parent)
    return next((path for path in candidates if (path / "initdb").exists() and (path / "postgres").exists()), None)


class PostgresServer:
    """A cluster that listens on a Unix socket in its own directory only, and never syncs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        binaries = find_postgres()
        assert binaries, "tests that use this are marked postgres"
        as_user = _unprivileged(directory)
        initdb: list[str | Path] = [
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
        subprocess.run(initdb, check=True, capture_output=True, cwd=directory, timeout=PATIENCE_SECONDS, **as_user)
        options: list[str | Path] = ["-F", "-k", directory, "-c", "listen_addresses=", "-c", "max_connections=200"]
        self._command = [binaries / "postgres", "-D", directory / "data", *options]
        self._as_user = as_user
        self._migrated = ""
        self.start()

    def start(self) -> None:
        """Start the server, also after it was killed, and wait until it answers."""
        self.log = (self.directory / "log").open("ab")
        self.process = subprocess.Popen(
            self._command, stdout=self.log, stderr=self.log, cwd=self.directory, **self._as_user
        )
        self._wait()

    def migrated_database(self) -> str:
        """The URL of an empty study database; the same one every time, for to create one takes longer than a test."""
        if not self._migrated:
            self._migrated = self.create_database()
            Store(self._migrated).close()
        tables = ", ".join(f'"{table}"' for table in schema.metadata.tables)
        with psycopg.connect(self._migrated) as connection:
            connection.execute(f"TRUNCATE {tables} RESTART IDENTITY")
        return self._migrated

    def create_database(self, encoding: str = "") -> str:
        """The URL of a new database without tables."""
        name = f"scamp_{next(_numbers)}"
        with psycopg.connect(
            host=str(self.directory), user="postgres", dbname="postgres", autocommit=True
        ) as connection:
            options = f"ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0" if encoding else ""
            connection.execute(f'CREATE DATABASE "{name}" {options}')
        return f"postgresql://postgres@/{name}?host={self.directory}"

    def stop(self) -> None:
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(PATIENCE_SECONDS)
        self.log.close()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop all of the server's processes for as long as the context lasts."""
        pid = self.process.pid
        pids = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def _wait(self) -> None:
        def answers() -> bool:
            try:
                psycopg.connect(host=str(self.directory), user="postgres", dbname="postgres").close()
                return True
            except psycopg.OperationalError:
                assert self.process.poll() is None, (self.directory / "log").read_text()
                return False

        until(answers, "PostgreSQL")


def _unprivileged(directory: Path) -> dict[str, Any]:
    """PostgreSQL refuses to run as root: give it the directory and another user."""
    if os.geteuid() != 0:
        return {}
    accounts = {entry.pw_name: entry for entry in pwd.getpwall()}
    user = accounts.get("postgres") or accounts["nobody"]
    os.chown(directory, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
