"""How the database runs the statements; what they return is tested in ``parts``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from scamp_service.store import queries, schema

GROWING = {"scamp_trials", "scamp_attempts", "scamp_metrics", "scamp_logs", "scamp_events"} | {
    "scamp_measured",
    "scamp_comparisons",
    "scamp_blobs",
}


def statements() -> dict[str, sa.Select[Any]]:
    """Every statement of the module, by its name and arguments."""
    by_name = {
        name: statement
        for name, statement in vars(queries).items()
        if name.isupper() and isinstance(statement, sa.Select)
    }
    for flag in (False, True):
        by_name[f"trials_page({flag})"] = queries.trials_page(flag)
        by_name[f"events({flag})"] = queries.events(flag)
        by_name[f"ordering(value, {flag})"] = queries.ordering(("value",), flag)
        for direction in ("maximize", "minimize"):
            by_name[f"best_trial({direction}, {flag})"] = queries.best_trial(direction, flag)
    for column in ("peak_error_pct", "step_error_pct", "least_excess_pct"):
        by_name |= {f"errors({column})[{number}]": statement for number, statement in enumerate(queries.errors(column))}
    return by_name


@pytest.fixture(scope="module")
def sqlite() -> Iterator[sa.Connection]:
    """Empty tables. The planner of SQLite does not look at their size, unlike that of PostgreSQL."""
    engine = sa.create_engine("sqlite://")
    schema.metadata.create_all(engine)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def plan(connection: sa.Connection, statement: sa.Select[Any]) -> str:
    text = re.sub(r"\(__\[POSTCOMPILE_\w+\]\)", "(0, 1)", str(statement.compile(connection)))
    rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", (0,) * text.count("?")).all()
    return " | ".join(row[3] for row in rows)


@pytest.mark.parametrize("name", statements())
def test_no_statement_reads_a_whole_table_that_grows(name: str, sqlite: sa.Connection) -> None:
    query_plan = plan(sqlite, statements()[name])
    assert not GROWING & set(re.findall(r"SCAN (\w+)", query_plan)), query_plan


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("FAMILY_RUNS", "ix_scamp_trials_family"),  # ten times a second, among a hundred thousand trials
        ("ALL_LIVE_TRIALS", "ix_scamp_trials_state"),
        ("OPEN_OF_STUDY", "ix_scamp_attempts_state"),  # not all attempts of the study
        ("best_trial(maximize, True)", "ix_scamp_trials_best"),
        ("best_trial(minimize, True)", "ix_scamp_trials_best"),
        ("CURVE", "ix_scamp_metrics_trial_step (trial_id=? AND step>?)"),
        ("LOGS", "ix_scamp_logs_trial (trial_id=? AND id>?)"),
        ("events(True)", "ix_scamp_events_study (study_id=? AND id>?)"),
        ("errors(peak_error_pct)[1]", "COVERING INDEX ix_scamp_measured_peak_error_pct"),
    ],
)
def test_an_index_answers(name: str, index: str, sqlite: sa.Connection) -> None:
    assert index in plan(sqlite, statements()[name])


def test_statements_are_built_once() -> None:
    """SQLAlchemy caches what it has compiled by the statement."""
    assert queries.trials_page(True) is queries.trials_page(True) is not queries.trials_page(False)
    assert queries.best_trial("maximize", True) is queries.best_trial("maximize", True)
