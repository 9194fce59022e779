"""How a study database is opened, brought up to date, and what it says when it cannot be used."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import optuna
import psycopg
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy.pool import NullPool

from scamp_service.errors import InvalidInput, Unavailable
from scamp_service.lifecycle import StudyState, TrialState, WaitsFor
from scamp_service.store import database, schema
from scamp_service.store.store import Store
from scamp_service.store.tallies import tally_study

ROOT = Path(__file__).resolve().parents[3]
SPEC = {"name": "digits"}


def url_of(path: Path) -> str:
    return f"sqlite:///{path / 'data' / 'scamp.db'}"


def test_migrations_make_the_tables_that_the_code_expects(shared_url: str, monkeypatch: Any) -> None:
    make_old(shared_url, monkeypatch, "0001", "")
    store = Store(shared_url)
    with store._database.write() as connection:
        options = {"compare_type": True, "version_table": schema.VERSION_TABLE}
        assert compare_metadata(MigrationContext.configure(connection, opts=options), schema.metadata) == []
        upgraded = names_in(connection)
    store.close()
    assert all("scamp_" in name or name in ("uq_trials_study_number", "uq_logs_line") for name in upgraded), upgraded


def names_in(connection: sa.Connection) -> set[str]:
    """Names of tables, indexes and sequences, which no other program can use in the same database."""
    if connection.dialect.name == "sqlite":
        query = "SELECT name FROM sqlite_master"
    else:
        query = "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace"
    return set(connection.exec_driver_sql(query).scalars())


def test_an_upgraded_database_has_the_same_names_as_a_new_one(shared_url: str, monkeypatch: Any) -> None:
    make_old(shared_url, monkeypatch, "0010", "")
    upgraded = Store(shared_url)
    with upgraded._database.read() as connection:
        names = names_in(connection)
    with upgraded._database.write() as connection:
        for table in (schema.version, *reversed(schema.metadata.sorted_tables)):
            connection.execute(sa.schema.DropTable(table))
    upgraded.close()
    new = Store(shared_url)
    with new._database.read() as connection:
        assert names_in(connection) == names
    new.close()


def test_the_newest_migration_is_the_one_that_the_code_names() -> None:
    config = Config()
    config.set_main_option("script_location", str(database.MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_heads() == [schema.REVISION]


_OF_0001 = """
INSERT INTO studies (id, name, state, spec, reason, created_at, body_sha256)
 VALUES (1, 's', 'RUNNING', '{}', '', 1, '');
INSERT INTO trials (id, study_id, number, state, attempt, params, reason, structure, plan_reason, predicted_bytes,
 reserved_mib, measured_bytes, extra_bytes, num_lost, num_oom, judged_step, step, created_at)
 VALUES (1, 1, 0, 'RUNNING', 2, '{}', '', 's', '', 130, 2, 120, 30, 0, 1, 0, 0, 1),
 (2, 1, 1, 'WAITING', 1, '{}', '', 's', '', 100, 1, 120, 30, 0, 1, 0, 0, 1);
INSERT INTO attempts (trial_id, attempt, token, state, plan, devices, mib_per_rank, predicted_bytes, measured_bytes,
 outcome, detail, placement_reason, checkpoint_step, created_at, objective_seq) VALUES
 (1, 1, 't', 'ENDED', '{"micro_batch": 8}', '["a"]', 1, 100, 120, 'OUT_OF_MEMORY', '', '', -1, 1, -1),
 (1, 2, 'u', 'RUNNING', '{"micro_batch": 8}', '["a"]', 2, 130, 100, NULL, '', '', -1, 1, -1),
 (2, 1, 'v', 'ENDED', '{"micro_batch": 8}', '["a"]', 1, 100, 120, 'OUT_OF_MEMORY', '', '', -1, 1, -1);
"""


def test_a_study_of_the_first_schema_is_kept_and_its_predictions_are_split(shared_url: str, monkeypatch: Any) -> None:
    make_old(shared_url, monkeypatch, "0001", _OF_0001)
    store = Store(shared_url)
    (first, second), (healing,) = store.attempts(1), store.attempts(2)
    assert [attempt.prediction.traced_bytes for attempt in (first, second, healing)] == [100, 100, 100]
    assert (first.device_kinds, store.trial(1).family, store.families(1)) == ((), "", [])
    assert store.trial_counts(1) == {TrialState.RUNNING: 1, TrialState.WAITING: 1}
    assert store.counted(1) == tally_study(store.trials(1), store.study_attempts(1))
    assert store.counted(1).num_oom == 2
    store.close()


def make_old(url: str, monkeypatch: Any, revision: str, statements: str) -> None:
    """A database as the version with this schema would have left it, after these statements."""
    config = Config()
    config.set_main_option("script_location", str(database.MIGRATIONS))
    engine = engine_of(url)
    with engine.begin() as connection, monkeypatch.context() as patch:
        patch.setattr(schema, "VERSION_TABLE", "alembic_version" if revision < "0011" else schema.VERSION_TABLE)
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        for statement in statements.split(";")[:-1]:
            connection.exec_driver_sql(statement)
    engine.dispose()


def engine_of(url: str) -> sa.Engine:
    """The database as another program opens it, before there is a store."""
    parsed = database._parse(url)
    if parsed.get_backend_name() == "sqlite":
        Path(parsed.database or "").parent.mkdir(mode=0o700, exist_ok=True)
    return sa.create_engine(parsed)


_OF_0005 = """
INSERT INTO studies (id, name, state, spec, reason, created_at, body_sha256)
 VALUES (1, 's', 'RUNNING', '{}', '', 1, '');
INSERT INTO trials (id, study_id, number, state, attempt, params, reason, structure, plan, plan_reason, predicted_bytes,
 reserved_mib, measured_bytes, extra_bytes, bias_bytes, learned_bytes, family, num_lost, num_oom, passed_over,
 judged_step, step, created_at)
 VALUES (1, 1, 0, 'QUEUED', 0, '{}', '', 's', '{"micro_batch": 8}', '', 130, 2, 0, 0, 0, 0, '', 0, 0, 0, 0, 0, 1);
INSERT INTO comparisons (trial_id, options) VALUES (1, '[]');
"""


def test_a_trial_that_was_planned_before_steps_of_pipelines_were_kept_has_none(
    shared_url: str, monkeypatch: Any
) -> None:
    make_old(shared_url, monkeypatch, "0005", _OF_0005)
    store = Store(shared_url)
    assert (store.options(1), store.pipeline(1)) == ([], None)
    store.close()


_OF_0030 = """
INSERT INTO scamp_studies (id, name, state, spec, reason, created_at, finished_at, body_sha256, warnings)
 VALUES (1, 's', 'COMPLETED', '{}', '', 10, 70, '', '[]'), (2, 's', 'RUNNING', '{}', '', 10, NULL, '', '[]'),
 (3, 's', 'RUNNING', '{}', '', 10, NULL, '', '[]');
INSERT INTO scamp_events (study_id, time, kind, data) VALUES (2, 15, 'study', '{}'), (2, 30, 'study', '{}');
"""


def test_an_earlier_study_has_run_until_its_end_or_newest_event(shared_url: str, monkeypatch: Any) -> None:
    make_old(shared_url, monkeypatch, "0030", _OF_0030)
    store = Store(shared_url)
    assert [study.ran_seconds for study in store.studies()] == [60.0, 20.0, 0.0]
    store.close()


_OF_0026 = """
INSERT INTO scamp_studies (id, name, state, spec, reason, created_at, body_sha256, warnings)
 VALUES (1, 's', 'RUNNING', '{}', '', 1, '', '[]')"""

_WAITING_AT_0026 = [
    ("WAITING", "waits for its plan, behind the traces of trial 3, which take long", WaitsFor.PLAN),
    ("WAITING", "ran out of memory with 24 MiB per rank", None),
    ("QUEUED", "waits until every candidate is predicted: all objectives are", WaitsFor.PREDICTIONS),
    ("QUEUED", "waits for the quota of its project ''a'': 4 devices at once", WaitsFor.QUOTA),
    ("QUEUED", "fits", None),
    ("PAUSED", "paused at step 10, until it is compared with the others there", WaitsFor.COMPARISON),
    ("PAUSED", "paused at step 10: 0.5 was number 2 of 3", None),
]


def test_what_trials_of_an_earlier_version_wait_for_follows_from_their_reasons(
    shared_url: str, monkeypatch: Any
) -> None:
    names = "study_id, number, state, attempt, params, reason, structure, plan_reason, created_at"
    rows = [
        f"INSERT INTO scamp_trials ({names}, {', '.join(_ZEROS_AT_0026)})"
        f" VALUES (1, {number}, '{state}', 0, '{{}}', '{reason}', '', '', 1, {', '.join('0' * len(_ZEROS_AT_0026))})"
        for number, (state, reason, _) in enumerate(_WAITING_AT_0026)
    ]
    make_old(shared_url, monkeypatch, "0026", ";".join([_OF_0026, *rows, ""]))
    store = Store(shared_url)
    assert [trial.waits_for for trial in store.trials(1)] == [waits_for for _, _, waits_for in _WAITING_AT_0026]
    store.close()


_ZEROS_AT_0026 = (
    *("predicted_bytes", "reserved_mib", "measured_bytes", "extra_bytes", "bias_bytes", "learned_bytes"),
    *("num_lost", "num_oom", "passed_over", "judged_step", "step"),
)


def test_a_database_is_opened_again_with_all_that_it_holds(shared_url: str) -> None:
    first = Store(shared_url)
    study = first.create_study(SPEC, now=1.0)
    first.close()
    second = Store(shared_url)
    assert second.studies() == [study]
    second.close()


def test_a_database_of_a_newer_version_is_left_alone(shared_url: str) -> None:
    store = Store(shared_url)
    with store._database.write() as connection:
        connection.exec_driver_sql("UPDATE scamp_alembic_version SET version_num = '9999'")
    store.close()
    with pytest.raises(Unavailable, match=r"newer ScaMP \(its schema is 9999.*upgrade ScaMP"):
        Store(shared_url)


def test_an_unfinished_migration_leaves_nothing(shared_url: str, monkeypatch: Any) -> None:
    class PowerCut(Exception):
        pass

    migrate, create = database._migrate, database._create

    def cut(*arguments: Any) -> bool:
        (create if len(arguments) == 1 else migrate)(*arguments)
        raise PowerCut

    for old in (False, True):
        if old:
            make_old(shared_url, monkeypatch, "0001", "")
        engine = engine_of(shared_url)
        before = sa.inspect(engine).get_table_names()
        with monkeypatch.context() as patch:
            patch.setattr(database, "_migrate", cut)
            patch.setattr(database, "_create", cut)
            with pytest.raises(PowerCut):
                Store(shared_url)
        assert sa.inspect(engine).get_table_names() == before
        engine.dispose()
    Store(shared_url).close()


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
    study = store.create_study(SPEC, now=1.0)
    load_in_optuna(shared_url)
    optuna.create_study(study_name="theirs", storage=open_in_optuna(shared_url)).add_trial(
        optuna.create_trial(value=0.5)
    )
    assert store.create_trials(study.id, [(0, {})], now=2.0) == 1
    store.close()
    second = Store(shared_url)
    assert second.create_study(SPEC, now=3.0).id == 2
    second.close()
    assert optuna.load_study(study_name="theirs", storage=open_in_optuna(shared_url)).best_value == 0.5


def test_the_prefix_comes_first_to_a_database_of_optuna(shared_url: str) -> None:
    load_in_optuna(shared_url)
    store = Store(shared_url)
    assert store.create_study(SPEC, now=1.0).id == 1
    store.close()


def test_an_old_database_that_optuna_has_broken_is_healed(shared_url: str, monkeypatch: Any) -> None:
    make_old(shared_url, monkeypatch, "0010", _OF_0010)
    load_in_optuna(shared_url)
    store = Store(shared_url)
    assert store.study(1).name == "s"
    assert store.create_study(SPEC, now=1.0).id == 2
    assert store.create_trials(1, [(0, {})], now=2.0) == 1
    optuna.create_study(study_name="theirs", storage=open_in_optuna(shared_url))
    assert store.create_study(SPEC, now=1.0).id == 3
    store.close()


_OF_0010 = """
INSERT INTO studies (name, state, spec, reason, created_at, body_sha256) VALUES ('s', 'RUNNING', '{}', '', 1, '');
"""


def test_rows_of_others_that_make_every_write_fail_are_not_deleted(tmp_path: Path, monkeypatch: Any) -> None:
    url = url_of(tmp_path)
    make_old(url, monkeypatch, "0010", _OF_0010)
    other = sqlite3.connect(tmp_path / "data" / "scamp.db")
    other.execute("CREATE TABLE notes (study INTEGER REFERENCES studies (study_id))")
    other.execute("INSERT INTO notes VALUES (1)")
    other.commit()
    with pytest.raises(Unavailable, match="nothing can be written: notes; move what they hold"):
        Store(url)
    assert other.execute("SELECT name FROM studies").fetchall() == [("s",)], "the upgrade has not begun"
    other.execute("DELETE FROM notes")
    other.commit()
    other.close()
    Store(url).close()


@pytest.mark.parametrize(
    ("table", "old"), [("scamp_trials", False), ("scamp_trials", True), ("scamp_alembic_version", False)]
)
def test_a_table_of_another_program_with_a_name_of_ours_is_said_so(
    shared_url: str, monkeypatch: Any, table: str, old: bool
) -> None:
    if old:
        make_old(shared_url, monkeypatch, "0010", "")
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
from scamp_service.store.tallies import tally_study
import alembic.command
print("ready", flush=True); sys.stdin.readline()
store = Store(sys.argv[1])
store.create_study({"name": sys.argv[2]}, now=1.0)
store.close()
"""


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
        errors = [process.communicate(timeout=60)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert errors == [""] * 3
    store = Store(shared_url)
    assert sorted(study.name for study in store.studies()) == list("abc")
    store.close()


def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    store = Store(url_of(tmp_path))
    store.create_study(SPEC, now=1.0)
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
        store.create_trials(7, [(0, {})], now=1.0)
    store.close()


def test_a_full_disk_is_said_so_and_no_half_transaction_stays(tmp_path: Path, monkeypatch: Any) -> None:
    configure = database._configure_sqlite

    def small(connection: sqlite3.Connection, record: object) -> None:
        configure(connection, record)
        connection.execute("PRAGMA max_page_count=60")

    monkeypatch.setattr(database, "_configure_sqlite", small)
    store = Store(url_of(tmp_path))
    study = store.create_study(SPEC, now=1.0)
    with pytest.raises(Unavailable, match=r"nothing was changed: its disk is full; free some space"):
        store.create_trials(study.id, [(number, {"text": "x" * 1000}) for number in range(1000)], now=2.0)
    assert store.trials(study.id) == [] and len(store.events()) == 1
    assert store.move_study(study.id, [StudyState.RUNNING], StudyState.STOPPING, now=3.0), "small things still fit"
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
        store.create_study(SPEC, now=1.0)
    assert store.studies() == []
    store.close()


def test_a_database_that_another_one_holds_is_waited_for_and_then_said_so(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.2)
    store = Store(url_of(tmp_path))
    holder = sqlite3.connect(tmp_path / "data" / "scamp.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="another process has locked it"):
        store.create_study(SPEC, now=1.0)
    assert store.studies() == [], "readers do not wait"
    holder.execute("ROLLBACK")
    holder.close()
    assert store.create_study(SPEC, now=1.0).id == 1
    store.close()


@pytest.mark.parametrize("happens", ["removed", "replaced"])
def test_nothing_is_accepted_into_a_file_that_was_removed(tmp_path: Path, happens: str) -> None:
    store = Store(url_of(tmp_path))
    store.create_study(SPEC, now=1.0)
    (tmp_path / "data" / "scamp.db").rename(tmp_path / "away.db")
    if happens == "replaced":
        (tmp_path / "data" / "scamp.db").touch()
    for use in (lambda: store.create_study(SPEC, now=1.0), store.studies):
        with pytest.raises(Unavailable, match="was removed or replaced while ScaMP was using it"):
            use()
    (tmp_path / "away.db").rename(tmp_path / "data" / "scamp.db")
    assert len(store.studies()) == 1 and store.create_study(SPEC, now=1.0).id == 2
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
    name = store.create_study({**SPEC, "name": "学習 ≤ Ü 🙂"}, now=1.0).name
    assert name == store.study(1).name == "学習 ≤ Ü 🙂"
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
    store.create_study(SPEC, now=1.0)
    with psycopg.connect(url) as other:
        lost = other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchall()
    assert (True,) in lost
    assert store.create_study(SPEC, now=2.0).id == 2
    store.close()


def test_reads_in_a_block_share_a_connection_and_see_what_is_written_meanwhile(tmp_path: Path) -> None:
    store = Store(url_of(tmp_path))
    taken: list[Any] = []
    sa.event.listen(store._database.engine, "checkout", lambda *args: taken.append(args))
    with store.reading():
        assert store.studies() == []
        study = store.create_study(SPEC, now=1.0)
        assert [row.id for row in store.studies()] == [study.id]
    store.close()
    assert len(taken) <= 2, "one to read, and at most one to write"
