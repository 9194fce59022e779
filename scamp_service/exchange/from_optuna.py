"""Reads studies from a database of Optuna's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import optuna
import sqlalchemy as sa
from optuna.storages import RDBStorage

from scamp_service.errors import InvalidInput
from scamp_service.exchange.conversions import space_of_distributions
from scamp_service.exchange.imported import Imported
from scamp_service.exchange.new_trials import new_trial_of
from scamp_service.lifecycle import TrialState

NOT_ENDED = "had not ended when the study was imported"


def read_optuna(url: str, study_name: str | None = None) -> Iterator[Imported]:
    """The studies in a database of Optuna, or the one with this name. Nothing in it is changed.

    Raises ``InvalidInput`` if the URL is not that of such a database, or has no such study.
    """
    storage = _open(url)
    try:
        summaries = [summary for summary in storage.get_all_studies() if study_name in (None, summary.study_name)]
        if not summaries:
            raise InvalidInput(
                f"there is no study {study_name!r} in this database" if study_name else "this database has no studies"
            )
        for study in summaries:
            trials = storage.get_all_trials(study._study_id, deepcopy=False)
            distributions = {
                name: distribution for trial in trials for name, distribution in trial.distributions.items()
            }
            new = []
            for trial in trials:
                if trial.state.is_finished():
                    new.append(new_trial_of(trial))
                else:
                    ended = replace(new_trial_of(trial), state=TrialState.CANCELLED, reason=NOT_ENDED)
                    new.append(replace(ended, finished_at=ended.started_at))
            yield Imported(
                study.study_name,
                "optuna",
                [direction.name.lower() for direction in study.directions],
                new,
                space=space_of_distributions(distributions),
                user_attributes=study.user_attrs,
                system_attributes=study.system_attrs,
            )
    except sa.exc.SQLAlchemyError as error:
        raise InvalidInput(f"the database cannot be read: {error}") from None
    finally:
        storage.engine.dispose()


def _open(url: str) -> RDBStorage:
    try:
        parsed = sa.make_url(url)
        if parsed.drivername in ("postgres", "postgresql"):
            parsed = parsed.set(drivername="postgresql+psycopg")
        if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").is_file():
            raise InvalidInput(f"there is no file {parsed.database}")  # otherwise it would be created
        engine = sa.create_engine(parsed)
        tables = set(sa.inspect(engine).get_table_names())
        engine.dispose()
        if not tables >= {"studies", "trials", "trial_params", "version_info"}:
            raise InvalidInput("the database has no tables of Optuna")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        return RDBStorage(parsed.render_as_string(hide_password=False), skip_table_creation=True)
    except (sa.exc.SQLAlchemyError, RuntimeError, ModuleNotFoundError) as error:
        raise InvalidInput(f"the database cannot be opened: {error}") from None
