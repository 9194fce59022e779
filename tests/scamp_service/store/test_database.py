"""How a study database is opened, brought up to date, and what it says when it cannot be used."""

from __future__ import annotations

import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import psycopg
import pytest
import sqlalchemy as sa
from alembic.config import Config
from alembic.script import ScriptDirectory
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy.pool import NullPool

from scamp_service.errors import InvalidInput, Unavailable
from scamp_service.lifecycle import StudyState
from scamp_service.store import database, schema
from scamp_service.store.store import Store
from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[3]
SPEC = {"name": "digits"}


def url_of(path: Path) -> str:
    return f"sqlite:///{path / 'data' / 'scamp.db'}"


NEXT = """
import sqlalchemy as sa
from alembic import op
revision, down_revision, branch_labels, depends_on = "9000", "{newest}", None, None
def upgrade():
    op.add_column("scamp_studies", sa.Column("colour", sa.String(20)))
"""


@pytest.fixture
def next_version(tmp_path: Path, monkeypatch: Any) -> None:
    """The code of a later version, which has one more migration."""
    folder = tmp_path / "migrations"
    shutil.copytree(database.MIGRATIONS, folder)
    (folder / "versions" / "9000_next.py").write_text(NEXT.format(newest=schema.REVISION))
    monkeypatch.setattr(database, "MIGRATIONS", folder)
    monkeypatch.setattr(schema, "REVISION", "9000")


def test_a_later_version_upgrades_the_database_and_keeps_its_studies(
    shared_url: str, request: pytest.FixtureRequest
) -> None:
    first = Store(shared_url)
    study = first.studies.create(SPEC, now=1.0)
    first.close()
    request.getfixturevalue("next_version")
    second = Store(shared_url)
    assert second.studies.page() == [study]
    with second._database.read() as connection:
        assert connection.exec_driver_sql("SELECT colour FROM scamp_studies").scalars().all() == [None]
        assert connection.execute(sa.select(schema.version.c.version_num)).scalars().all() == ["9000"]
    second.close()


def test_all_that_a_database_holds_has_the_prefix(shared_url: str) -> None:
    store = Store(shared_url)
    with store._database.read() as connection:
        names = names_in(connection)
    store.close()
    assert all("scamp_" in name or name in ("uq_trials_study_number", "uq_logs_line") for name in names), names


def names_in(connection: sa.Connection) -> set[str]:
    """Names of tables, indexes and sequences, which no other program can use in the same database."""
    if connection.dialect.name == "sqlite":
        query = "SELECT name FROM sqlite_master"
    else:
        query = "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace"
    return set(connection.exec_driver_sql(query).scalars())


def test_the_newest_migration_is_the_one_that_the_code_names() -> None:
    config = Config()
    config.set_main_option("script_location", str(database.MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_heads() == [schema.REVISION]


def engine_of(url: str) -> sa.Engine:
    """The database as another program opens it, before there is a store."""
    parsed = database._parse(url)
    if parsed.get_backend_name() == "sqlite":
        Path(parsed.database or "").parent.mkdir(mode=0o700, exist_ok=True)
    return sa.create_engine(parsed)


def test_a_database_is_opened_again_with_all_that_it_holds(shared_url: str) -> None:
    first = Store(shared_url)
    study = first.studies.create(SPEC, now=1.0)
    first.close()
    second = Store(shared_url)
    assert second.studies.page() == [study]
    second.close()


def test_a_database_of_a_newer_version_is_left_alone(shared_url: str) -> None:
    store = Store(shared_url)
    with store._database.write() as connection:
        connection.exec_driver_sql("UPDATE scamp_alembic_version SET version_num = '9999'")
    store.close()
    with pytest.raises(Unavailable, match=r"newer ScaMP.*its schema is 9999.*upgrade ScaMP"):
        Store(shared_url)


@pytest.mark.parametrize("is_new", [True, False])
def test_an_unfinished_migration_leaves_nothing(
    shared_url: str, is_new: bool, monkeypatch: Any, request: pytest.FixtureRequest
) -> None:
    class PowerCut(Exception):
        pass

    def cut(change: Callable[[sa.Connection], None]) -> Callable[[sa.Connection], None]:
        def begin(connection: sa.Connection) -> None:
            change(connection)
            raise PowerCut

        return begin

    if not is_new:
        Store(shared_url).close()
    request.getfixturevalue("next_version")
    engine = engine_of(shared_url)
    before = columns_in(engine)
    with monkeypatch.context() as patch:
        patch.setattr(database, "_migrate", cut(database._migrate))
        patch.setattr(database, "_create", cut(database._create))
        with pytest.raises(PowerCut):
            Store(shared_url)
    assert columns_in(engine) == before
    engine.dispose()
    Store(shared_url).close()


def columns_in(engine: sa.Engine) -> dict[str, set[str]]:
    """The names of all columns of each table."""
    tables = sa.inspect(engine)
    return {name: {column["name"] for column in tables.get_columns(name)} for name in tables.get_table_names()}


def open_in_optuna(url: str) -> Any:
    """Optuna's storage on this database."""
    storage = database._parse(url).render_as_string(hide_password=False)
    return RDBStorage(storage, engine_kwargs={"poolclass": NullPool})


def load_in_optuna(url: str) -> None:
    """Open a database of ours as one of Optuna's. It fails, after tables were created."""
    with pytest.raises((KeyError, RuntimeError, sa.exc.SQLAlchemyError, StorageInternalError)):
        optuna.load_study(study_name="digits", storage=open_in_optuna(url))


def test_optuna_may_keep_its_tables_in_the_same_database(shared_url: str) -> None:
    store = Store(shared_url)
    study = store.studies.create(SPEC, now=1.0)
    load_in_optuna(shared_url)
    optuna.create_study(study_name="theirs", storage=open_in_optuna(shared_url)).add_trial(
        optuna.create_trial(value=0.5)
    )
    assert store.trials.create(study.id, [(0, {})], now=2.0) == 1
    store.close()
    second = Store(shared_url)
    assert second.studies.create(SPEC, now=3.0).id == 2
    second.close()
    assert optuna.load_study(study_name="theirs", storage=open_in_optuna(shared_url)).best_value == 0.5


def test_the_prefix_comes_first_to_a_database_of_optuna(shared_url: str) -> None:
    load_in_optuna(shared_url)
    store = Store(shared_url)
    assert store.studies.create(SPEC, now=1.0).id == 1
    store.close()


@pytest.mark.parametrize("table", ["scamp_trials", "scamp_alembic_version"])
def test_a_table_of_another_program_with_a_name_of_ours_is_said_so(shared_url: str, table: str) -> None:
    engine = engine_of(shared_url)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE {table} (version_num TEXT)")
    before = sa.inspect(engine).get_table_names()
    with pytest.raises(Unavailable, match=f"did not create and whose names it needs: {table}; choose another database"):
        Store(shared_url)
    assert sa.inspect(engine).get_table_names() == before
    engine.dispose()


_OPEN = """
import sys
from scamp_service.store.store import Store
from tests.recounted import tally_study
import alembic.command
print("ready", flush=True); sys.stdin.readline()
store = Store(sys.argv[1])
store.studies.create({"name": sys.argv[2]}, now=1.0)
store.close()
"""


@pytest.mark.full
def test_processes_that_start_at_once_share_one_schema(shared_url: str) -> None:
    command = [sys.executable, "-c", _OPEN, shared_url]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    processes = [subprocess.Popen([*command, name], cwd=ROOT, text=True, **pipes) for name in "abc"]
    try:
        for process in processes:
            assert process.stdout and process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
        errors = [process.communicate(timeout=PATIENCE_SECONDS)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert errors == [""] * 3
    store = Store(shared_url)
    assert sorted(study.name for study in store.studies.page()) == list("abc")
    store.close()


def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    store = Store(url_of(tmp_path))
    store.studies.create(SPEC, now=1.0)
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "data").iterdir()}
    assert modes == dict.fromkeys(["scamp.db", "scamp.db-wal", "scamp.db-shm", "scamp.db.lock"], 0o600)
    store.close()


def test_sqlite_is_durable_and_checks_references(tmp_path: Path) -> None:
    store = Store(url_of(tmp_path))
    for access in (store._database.read, store._database.write):
        with access() as connection:
            settings = {
                name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
                for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
            }
        assert settings == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 30_000}
    with pytest.raises(sa.exc.IntegrityError):
        store.trials.create(7, [(0, {})], now=1.0)
    store.close()


def test_a_full_disk_is_said_so_and_no_half_transaction_stays(tmp_path: Path, monkeypatch: Any) -> None:
    configure = database._configure_sqlite

    def small(connection: sqlite3.Connection, record: object) -> None:
        configure(connection, record)
        connection.execute("PRAGMA max_page_count=120")

    monkeypatch.setattr(database, "_configure_sqlite", small)
    store = Store(url_of(tmp_path))
    study = store.studies.create(SPEC, now=1.0)
    with pytest.raises(Unavailable, match=r"nothing was changed: its disk is full; free some space"):
        store.trials.create(study.id, [(number, {"text": "x" * 1000}) for number in range(1000)], now=2.0)
    assert store.trials.page(study.id) == [] and len(store.events.page()) == 1
    assert store.studies.move(study.id, [StudyState.RUNNING], StudyState.STOPPING, now=3.0), "small things still fit"
    store.close()


@pytest.mark.parametrize("words", ["disk I/O error", "no such table: scamp_trials", "something new"])
def test_no_file_gets_the_advice_for_a_server(tmp_path: Path, words: str) -> None:
    store = Store(url_of(tmp_path))
    said = str(store._database._explain(sa.exc.OperationalError("", {}, sqlite3.OperationalError(words))))
    store.close()
    assert words in said
    assert "running" not in said
    assert "SCAMP_DATABASE_URL" not in said


def test_a_read_only_database_is_said_so(tmp_path: Path, monkeypatch: Any) -> None:
    Store(url_of(tmp_path)).close()
    configure = database._configure_sqlite

    def read_only(connection: sqlite3.Connection, record: object) -> None:
        configure(connection, record)
        connection.execute("PRAGMA query_only=ON")

    monkeypatch.setattr(database, "_configure_sqlite", read_only)
    store = Store(url_of(tmp_path))
    with pytest.raises(Unavailable, match="read-only; make its file and directory writable"):
        store.studies.create(SPEC, now=1.0)
    assert store.studies.page() == []
    store.close()


def test_a_database_that_another_one_holds_is_waited_for_and_then_said_so(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.2)
    store = Store(url_of(tmp_path))
    holder = sqlite3.connect(tmp_path / "data" / "scamp.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="another process has locked it"):
        store.studies.create(SPEC, now=1.0)
    assert store.studies.page() == [], "readers do not wait"
    holder.execute("ROLLBACK")
    holder.close()
    assert store.studies.create(SPEC, now=1.0).id == 1
    store.close()


@pytest.mark.parametrize("happens", ["removed", "replaced"])
def test_nothing_is_accepted_into_a_file_that_was_removed(tmp_path: Path, happens: str) -> None:
    store = Store(url_of(tmp_path))
    store.studies.create(SPEC, now=1.0)
    (tmp_path / "data" / "scamp.db").rename(tmp_path / "away.db")
    if happens == "replaced":
        (tmp_path / "data" / "scamp.db").touch()
    for use in (lambda: store.studies.create(SPEC, now=1.0), store.studies.page):
        with pytest.raises(Unavailable, match="was removed or replaced while ScaMP was using it"):
            use()
    (tmp_path / "away.db").rename(tmp_path / "data" / "scamp.db")
    assert len(store.studies.page()) == 1 and store.studies.create(SPEC, now=1.0).id == 2
    store.close()


def test_a_file_that_is_no_database_is_said_so(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("to do: " * 1000)
    with pytest.raises(Unavailable, match=r"notes\.txt.*not a database; choose another"):
        Store(f"sqlite:///{path}")
    assert path.read_text() == "to do: " * 1000
    for impossible in (tmp_path, path / "scamp.db"):
        with pytest.raises(Unavailable, match=r"cannot be created.*SCAMP_DATA_DIR"):
            Store(f"sqlite:///{impossible}")


@pytest.mark.parametrize("url", ["mysql://localhost/x", "postgresql://h:port/x", "nonsense", ""])
def test_a_url_of_another_kind_is_bad_input(url: str) -> None:
    with pytest.raises(InvalidInput, match="postgresql://HOST/NAME"):
        Store(url)


@pytest.mark.parametrize("path", ["a?b/scamp.db", "file:scamp.db?uri=true&mode=rw"])
def test_a_path_with_a_question_mark_in_a_url_is_refused_before_it_names_another_file(
    path: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=r"in PATH %3F for \?"):
        Store(f"sqlite:///{tmp_path}/{path}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["", "&no_such_option=1"])
def test_a_server_that_is_away_is_said_so_without_the_password(option: str, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="check that it is running and that SCAMP_DATABASE_URL is correct") as caught:
        Store(f"postgresql://me:secret@/scamp?host={tmp_path}{option}")
    assert "secret" not in str(caught.value)


@pytest.mark.postgres
@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_any_postgresql_url_works(scheme: str, postgres_server: Any) -> None:
    url = postgres_server.create_database().replace("postgresql", scheme, 1)
    Store(url).close()


@pytest.mark.postgres
def test_a_server_without_an_encoding_stores_every_text(postgres_server: Any) -> None:
    store = Store(postgres_server.create_database("SQL_ASCII"))
    name = store.studies.create({**SPEC, "name": "学習 ≤ Ü 🙂"}, now=1.0).name
    assert name == store.studies.get(1).name == "学習 ≤ Ü 🙂"
    store.close()


@pytest.mark.postgres
def test_a_server_whose_encoding_lacks_characters_is_refused_with_what_to_do(postgres_server: Any) -> None:
    with pytest.raises(Unavailable, match=r"has the encoding LATIN1.* createdb -E UTF8 -T template0 NAME"):
        Store(postgres_server.create_database("LATIN1"))


@pytest.mark.postgres
def test_a_network_that_drops_packets_is_noticed_within_a_minute_unless_the_url_says_otherwise(
    postgres_server: Any,
) -> None:
    for option, milliseconds in (("", "25000"), ("&tcp_user_timeout=9000", "9000")):
        store = Store(postgres_server.create_database() + option)
        with store._database.read() as connection:
            options: Any = connection.connection.driver_connection.info.get_parameters()  # type: ignore[union-attr]
        assert options["tcp_user_timeout"] == milliseconds and options["connect_timeout"] == "10"
        assert int(options["keepalives_idle"]) + 3 * int(options["keepalives_interval"]) < 60
        store.close()


@pytest.mark.postgres
def test_a_store_outlives_the_loss_of_its_connections(postgres_server: Any) -> None:
    url = postgres_server.create_database()
    store = Store(url)
    store.studies.create(SPEC, now=1.0)
    with psycopg.connect(url) as other:
        lost = other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchall()
    assert (True,) in lost
    assert store.studies.create(SPEC, now=2.0).id == 2
    store.close()


def test_reads_in_a_block_share_a_connection_and_see_what_is_written_meanwhile(tmp_path: Path) -> None:
    store = Store(url_of(tmp_path))
    taken: list[Any] = []
    sa.event.listen(store._database.engine, "checkout", lambda *args: taken.append(args))
    with store.reading():
        assert store.studies.page() == []
        study = store.studies.create(SPEC, now=1.0)
        assert [row.id for row in store.studies.page()] == [study.id]
    store.close()
    assert len(taken) <= 2, "one to read, and at most one to write"
