"""A database that lacks tables, columns or indexes gets them when it is opened, with their defaults."""

from __future__ import annotations

import sqlalchemy as sa

from scamp_service.store import schema
from scamp_service.store.additions import additions
from scamp_service.store.store import Store
from tests.scamp_service.store.trials import new_trial


def test_a_database_gets_what_it_lacks_and_keeps_what_it_has(store: Store) -> None:
    trial_id = new_trial(store)
    before, database = store.trials.get(trial_id), store._database
    if database.sqlite and not database.path:
        return  # a database in memory is always new
    inside = "scamp_trials"
    with database.write() as connection:
        for index in ("ix_scamp_trials_repeats", "ix_scamp_trials_family"):
            connection.exec_driver_sql(f"DROP INDEX {index}")
        for column in ("repeats", "origin", "family", "judged_step", "resumes", "noise_scale", "parent_id"):
            connection.exec_driver_sql(f"ALTER TABLE {inside} DROP COLUMN {column}")
        connection.exec_driver_sql("DROP TABLE scamp_usage")
    opened = Store(database.url.render_as_string(hide_password=False))
    try:
        assert opened.trials.get(trial_id) == before
        assert opened.usage.of_holders(1.0) == {}
        with opened._database.read() as connection:
            assert additions(connection) == []
            indexes = {index["name"] for index in sa.inspect(connection).get_indexes(inside)}
        assert indexes >= {index.name for index in schema.trials.indexes}
    finally:
        opened.close()
