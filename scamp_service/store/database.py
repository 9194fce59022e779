"""Opens the database, keeps its schema up to date, and provides transactions. ``store`` has the reads and writes.

SQLite: write-ahead log, synced on every commit, one writer at a time (``BEGIN IMMEDIATE``, so that no transaction fails
half-way on a lock). PostgreSQL: read committed. A database that cannot be used now raises ``Unavailable``.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.pool import StaticPool
from sqlalchemy.util import LRUCache

from scamp_service.errors import InvalidInput, Unavailable
from scamp_service.store import schema
from scamp_service.store.additions import additions

BUSY_SECONDS = 30.0
"""How long a transaction waits for the lock of another."""

MIGRATIONS = Path(__file__).parent / "migrations"

# Keys of PostgreSQL's advisory locks: two arbitrary numbers.
_SCHEMA_LOCK, _EVENTS_LOCK = 0x5CA301, 0x5CA302


class _CompiledStatements(LRUCache[tuple[Any, ...], Any]):
    """Compiled statements of all databases of this process, which SQLAlchemy keeps for each: to compile one takes
    longer than to run it, and simulations open hundreds of databases."""

    def get(self, key: tuple[Any, ...], default: Any = None) -> Any:
        return super().get(_by_name(key), default)

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:
        super().__setitem__(_by_name(key), compiled)


def _by_name(key: tuple[Any, ...]) -> tuple[Any, ...]:
    dialect, *statement = key
    return dialect.name, *statement


_SHARED = {"compiled_cache": _CompiledStatements(500)}


class Database:
    """A study database on SQLite or PostgreSQL. Threads and processes may share it."""

    def __init__(self, url: str, *, may_change: bool = True) -> None:
        """Open the database, and create or upgrade its schema, if this ``may_change`` it.

        Raises ``InvalidInput`` for any other URL, and ``Unavailable`` when the database cannot be used or was written
        by another version of ScaMP whose schema this one does not know.
        """
        self.url = _parse(url)
        self.sqlite = self.url.get_backend_name() == "sqlite"
        self.path = _file(self.url)
        # Waiting for a mutex is fair and cheap. SQLite's own waiting (sleep and retry) is neither.
        self._write_mutex = threading.Lock() if self.sqlite else nullcontext()
        self._read_mutex = self._write_mutex if self.sqlite and not self.path else nullcontext()
        self.engine = self._open_sqlite() if self.sqlite else self._open_postgresql()
        self._reader = self.engine if self.sqlite else self.engine.execution_options(isolation_level="AUTOCOMMIT")
        self._shared = threading.local()  # the connection of the ``reading`` that this thread is in
        self._kept: sa.Connection | None = None  # SQLite has one writer at a time, which reuses this connection
        try:
            if may_change:
                self._prepare_schema()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all connections."""
        with self._write_mutex:
            if self._kept is not None:
                self._kept.close()
                self._kept = None
            self.engine.dispose()

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """One transaction: everything in the block is committed at its end, or nothing is."""
        with self._write_mutex, self._explained():
            self._expect_file()
            if not self.sqlite:
                with self.engine.begin() as connection:
                    yield connection
                return
            with self._keep() as connection, connection.begin():
                # Python's own transaction control is off (see _configure_sqlite), so BEGIN is up to us.
                driver: Any = connection.connection.driver_connection
                driver.execute("BEGIN IMMEDIATE")
                yield connection

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A connection to read from: each statement in the block sees what was committed when the statement began."""
        if (shared := getattr(self._shared, "connection", None)) is not None:
            with self._explained():
                self._expect_file()
                yield shared
            return
        with self._read_mutex, self._explained():
            self._expect_file()
            if self.sqlite and not self.path:
                with self._keep() as connection, connection.begin():
                    yield connection
            else:
                with self._reader.connect() as connection:
                    yield connection

    def rows(self, statement: sa.Select[Any], **values: Any) -> Sequence[Any]:
        """The rows of a statement with these parameters."""
        with self.read() as connection:
            return connection.execute(statement, values).all()

    def now(self) -> float:
        """Seconds since the epoch by the one clock of all hosts: that of PostgreSQL. SQLite is on one host anyway."""
        return time.time() if self.sqlite else float(self.rows(_CLOCK)[0].now)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Let all reads of this thread in the block share one connection: to get one takes longer than most reads.

        They see the same as without it. Writes in the block have a connection of their own.
        """
        if self.sqlite and not self.path:  # it has one connection for everything, which each read locks
            yield
            return
        with self.read() as connection:
            self._shared.connection = connection
            try:
                yield
            finally:
                self._shared.connection = None

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sa.exc.DBAPIError, sa.exc.TimeoutError, sqlite3.Error) as error:
            raise self._explain(error) from error

    def _expect_file(self) -> None:
        """Raise ``Unavailable`` if the file was removed or replaced: open connections would use a deleted one."""
        if self.sqlite and self.path and _identity(self.path) != self._identity:
            raise Unavailable(
                f"the study database {self.path} was removed or replaced while ScaMP was using it, and nothing was "
                "changed: stop ScaMP, put the file back with those next to it (-wal, -shm), and start ScaMP again"
            )

    def _keep(self) -> AbstractContextManager[sa.Connection]:
        if self._kept is None:
            self._kept = self.engine.connect()
        return nullcontext(self._kept)

    def order_commits(self, connection: sa.Connection) -> None:
        """Exclude other transactions that call this until this one commits, so that row ids grow in commit order.

        Call it after the last update of a row; otherwise two transactions could wait for each other.
        """
        if not self.sqlite:
            connection.execute(_TAKE_LOCK, {"key": _EVENTS_LOCK})

    # --- opening ---------------------------------------------------------------------------------------------------

    def _open_sqlite(self) -> sa.Engine:
        if self.path:
            self._create_file(self.path)
            self._identity = _identity(self.path)
            engine = sa.create_engine(
                self.url, pool_size=16, max_overflow=48, pool_timeout=BUSY_SECONDS, execution_options=_SHARED
            )
        else:
            engine = sa.create_engine(
                self.url, poolclass=StaticPool, connect_args={"check_same_thread": False}, execution_options=_SHARED
            )
        event.listen(engine, "connect", _configure_sqlite)
        return engine

    def _open_postgresql(self) -> sa.Engine:
        url = self.url.set(query={**_PATIENCE, **self.url.query, "client_encoding": "utf8"})
        engine = sa.create_engine(
            url,
            pool_size=16,
            max_overflow=48,
            pool_timeout=BUSY_SECONDS,
            pool_pre_ping=True,
            execution_options=_SHARED,
        )
        event.listen(engine, "connect", _configure_postgresql)
        return engine

    def _create_file(self, path: Path) -> None:
        """Create the file for its owner alone, as it holds users' code. SQLite gives -wal and -shm the same mode."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except OSError as error:
            if os.path.isfile(path):
                return
            raise Unavailable(
                f"the study database {path} cannot be created ({error.strerror}); make its directory writable for this "
                "user, or choose another one with SCAMP_DATA_DIR"
            ) from error

    def outlook(self, lock_seconds: float) -> str:
        """Say what opening the database does to its schema, without doing it.

        Raises ``Unavailable`` for what keeps it from being opened or written to. Waits at most ``lock_seconds`` for the
        lock of SQLite.
        """
        with self.read() as connection:
            revision = self._expect_usable(connection)
            if self.sqlite:
                connection.exec_driver_sql(f"PRAGMA busy_timeout={int(lock_seconds * 1000)}")
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                connection.exec_driver_sql("ROLLBACK")
            if revision is None:
                return "its tables are made at the first start"
            if revision != schema.REVISION:
                return f"its schema is upgraded from {revision} to {schema.REVISION} at the next start"
            return f"schema {revision}"

    def has_tables(self) -> bool:
        """Whether its schema is that of this version."""
        with self.read() as connection:
            return _revision(connection) == schema.REVISION

    # --- schema ----------------------------------------------------------------------------------------------------

    def _prepare_schema(self) -> None:
        """Create or upgrade the schema. When several processes do so at once, one works and the others wait for it."""
        if not self.path and self.sqlite:
            with self.read() as connection:
                _create(connection)
            return
        with self.read() as connection:
            if _revision(connection) == schema.REVISION and not additions(connection):
                return
        with self._locked(), self.write() as connection:
            if not self.sqlite:
                connection.execute(_TAKE_LOCK, {"key": _SCHEMA_LOCK})
            revision = self._expect_usable(connection)
            if revision == schema.REVISION:
                for statement in additions(connection):
                    connection.exec_driver_sql(statement)
            elif revision is None:
                _create(connection)
            else:
                _migrate(connection)

    def _expect_usable(self, connection: sa.Connection) -> str | None:
        """The revision of the schema; None if there is none yet. Raises ``Unavailable`` if this ScaMP cannot use it."""
        self._expect_unicode(connection)
        revision = _revision(connection)
        if revision is None:
            self._expect_free_names(connection)
        elif revision != schema.REVISION and revision not in _known_revisions():
            raise Unavailable(
                f"the study database {self.name} was written by a newer ScaMP, or before its first release (its "
                f"schema is {revision}, and this version supports up to {schema.REVISION}); upgrade ScaMP, or "
                "choose another database with SCAMP_DATABASE_URL"
            )
        return revision

    def _expect_unicode(self, connection: sa.Connection) -> None:
        """Raise ``Unavailable`` for a PostgreSQL that cannot store every text; SQL_ASCII takes our UTF-8 as it is."""
        encoding = "UTF8" if self.sqlite else connection.exec_driver_sql("SHOW server_encoding").scalar_one()
        if encoding not in ("UTF8", "SQL_ASCII"):
            raise Unavailable(
                f"the database {self.name} has the encoding {encoding}, which lacks most characters: create one with "
                "createdb -E UTF8 -T template0 NAME, and name it with SCAMP_DATABASE_URL"
            )

    def _expect_free_names(self, connection: sa.Connection) -> None:
        """Raise ``Unavailable`` if a table of another program has a name that one of ours is about to get."""
        names = set(sa.inspect(connection).get_table_names())
        if taken := sorted(names & {schema.VERSION_TABLE, *schema.metadata.tables}):
            raise Unavailable(
                f"the database {self.name} has tables that ScaMP did not create and whose names it needs: "
                f"{', '.join(taken)}; choose another database with SCAMP_DATABASE_URL"
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold a lock file, and switch to the write-ahead log.

        Without the lock, switching fails at once when another process does the same, whatever the busy timeout is
        (measured: 3 of 200 files that 4 processes opened at once).
        """
        if not self.path:
            yield
            return
        with open(f"{self.path}.lock", "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with self.read() as connection:
                connection.exec_driver_sql("PRAGMA journal_mode=WAL")
            yield

    # --- errors ----------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Its file, or its URL without the password."""
        return str(self.path) if self.path else self.url.render_as_string(hide_password=True)

    def _explain(self, error: Exception) -> Exception:
        """``Unavailable`` with advice for a failure of the database; the error itself when our own SQL is wrong."""
        text = str(getattr(error, "orig", error) or error).strip()
        ours = (sa.exc.IntegrityError, sa.exc.DataError, sa.exc.ProgrammingError)
        is_ours = isinstance(error, ours) and "connection option" not in text  # such options are part of the URL
        if is_ours or "syntax error" in text or "no such column" in text:
            return error
        otherwise = _ANY_FILE if self.sqlite else _ANY_SERVER
        advice = next((advice for sign, advice in _ADVICE if sign in text.lower()), otherwise)
        return Unavailable(f"the study database {self.name} cannot be used, and nothing was changed: {advice} ({text})")


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a file; None if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


_PATIENCE = {
    "connect_timeout": "10",
    # A network that drops packets is noticed after this long; otherwise a request waits for hours.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "25000",
}
"""Options of connections to PostgreSQL, unless its URL has others: seconds, and milliseconds for the last."""

_CLOCK = sa.select(sa.extract("epoch", sa.func.clock_timestamp()).label("now"))
_TAKE_LOCK = sa.text("SELECT pg_advisory_xact_lock(:key)")

_ADVICE = (
    ("full", "its disk is full; free some space"),
    ("no space left", "its disk is full; free some space"),
    ("readonly", "it is read-only; make its file and directory writable for this user"),
    ("read-only", "it is read-only; point SCAMP_DATABASE_URL at the primary server"),
    ("lock", "another process has locked it and does not let go; end that process"),
    ("unable to open", "make its directory exist and be writable for this user"),
    ("malformed", "it is damaged; restore a copy or move it away"),
    ("not a database", "the file is not a database; choose another one with SCAMP_DATABASE_URL"),
    ("disk i/o error", "its disk fails or is full, or its files were removed; see the kernel's log, then start again"),
    ("foreign key mismatch", "a table of another program refers to one of ScaMP's in a wrong way; drop that table"),
    ("no such table", "its tables were removed; restore a copy or move it away"),
    ("queuepool", "there are too many requests at once; try again"),
)
_URLS = "sqlite:///PATH or postgresql://HOST/NAME"
_ANY_FILE = "check this file, its folder and its disk"
_ANY_SERVER = "check that it is running and that SCAMP_DATABASE_URL is correct"


def _parse(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError) as error:  # the latter for a port that is no number
        raise InvalidInput(f"not a database URL: {error}; write {_URLS}") from error
    if parsed.drivername in ("postgres", "postgresql"):
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise InvalidInput(f"ScaMP cannot use {parsed.drivername}; write {_URLS}")
    if parsed.get_backend_name() == "sqlite" and "?" in url and parsed.query.keys() != {"timeout"}:
        raise InvalidInput(
            f"{url.partition('?')[2]!r} is no option of a SQLite database; write {_URLS}, and in "
            "PATH %3F for ? and %25 for %"
        )
    return parsed


def expect_shared_database(url: str) -> None:
    """Raise ``InvalidInput`` unless processes with any working directory can share the database of this URL."""
    parsed = _parse(url)
    file = _file(parsed)
    if parsed.get_backend_name() == "sqlite" and (file is None or not file.is_absolute()):
        raise InvalidInput("several processes share the database: write sqlite:////PATH, with an absolute path")


def _file(url: sa.URL) -> Path | None:
    """The file of a SQLite database; None for SQLite in memory and for PostgreSQL."""
    path = url.database if url.get_backend_name() == "sqlite" else None
    return None if path in (None, "", ":memory:") else Path(path)


def _configure_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    # Python's own transaction control begins deferred transactions, and none before SELECT:
    # https://docs.sqlalchemy.org/en/21/dialects/sqlite.html#pysqlite-serializable
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout={int(BUSY_SECONDS * 1000)}")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")


def _configure_postgresql(connection: Any, _record: object) -> None:
    connection.execute(f"SET lock_timeout = '{BUSY_SECONDS:.0f}s'")
    connection.commit()


def _revision(connection: sa.Connection) -> str | None:
    """The revision of the schema; None if the database holds none of our tables."""
    if not sa.inspect(connection).has_table(schema.VERSION_TABLE):
        return None
    return connection.execute(sa.select(schema.version.c.version_num)).scalar()


def _create(connection: sa.Connection) -> None:
    """Create all tables."""
    for statement in _definitions(connection.engine.url.drivername):
        connection.exec_driver_sql(statement)
    connection.execute(sa.insert(schema.version), {"version_num": schema.REVISION})


@cache
def _definitions(driver: str) -> list[str]:
    """The statements that create all tables. Simulations open hundreds of databases."""
    statements: list[str] = []

    def keep(statement: sa.ExecutableDDLElement, *_: object, **__: object) -> None:
        statements.append(str(statement.compile(dialect=engine.dialect)))

    engine = sa.create_mock_engine(f"{driver}://", keep)
    schema.metadata.create_all(engine, checkfirst=False)
    schema.version.create(engine, checkfirst=False)
    return statements


def _known_revisions() -> set[str]:
    """The revisions of schemas that can be upgraded."""
    from alembic.script import ScriptDirectory

    return {script.revision for script in ScriptDirectory.from_config(_alembic()).walk_revisions()}


def _migrate(connection: sa.Connection) -> None:
    """Upgrade the schema to the newest."""
    from alembic import command

    config = _alembic()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _alembic() -> Any:
    from alembic.config import Config  # imported here: it takes 0.1 s, and most starts have nothing to migrate

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config
