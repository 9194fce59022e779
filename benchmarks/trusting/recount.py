"""Fills the kept numbers of studies whose trials and attempts a benchmark has inserted at once."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby

import sqlalchemy as sa

from scamp_service.model import Attempt
from scamp_service.store import queries as sql
from scamp_service.store import schema
from scamp_service.store.rows import select_trials, trial_of, values_of
from scamp_service.store.tallies import measure_trial
from tests.recounted import tally_study


def recount(connection: sa.Connection) -> None:
    """Write the tallies and what was measured for every study. Both tables must be empty."""
    for study_id in connection.execute(sa.select(schema.studies.c.id)).scalars().all():
        rows = connection.execute(select_trials().where(schema.trials.c.study_id == study_id)).all()
        trials = values_of(trial_of, rows)
        attempts = values_of(Attempt, connection.execute(sql.STUDY_ATTEMPTS, {"study_id": study_id}).all())
        counted = tally_study(trials, attempts)
        tallies = [{"study_id": study_id, "name": name, "num": num} for name, num in counted.tallies.items()]
        measured = [
            {"trial_id": trial_id, "study_id": study_id, **asdict(measure_trial(trial_attempts))}
            for trial_id, trial_attempts in groupby(attempts, key=lambda attempt: attempt.trial_id)
        ]
        for table, values in ((schema.tallies, tallies), (schema.measured, measured)):
            if values:
                connection.execute(sa.insert(table), values)
