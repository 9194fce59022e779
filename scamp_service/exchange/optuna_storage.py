"""The study database as a storage of Optuna: studies of ScaMP can be loaded, plotted and extended by its tools.

Other programs add trials of their own, which they run; those of ScaMP can be read, but not changed. Studies that Optuna
creates are stored beside ScaMP's and shown on its pages. ``docs/decisions/0016-optuna-storage.md`` has the mapping.
"""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, check_distribution_compatibility, distribution_to_json
from optuna.exceptions import DuplicatedStudyError, UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.storages._base import DEFAULT_STUDY_NAME_PREFIX
from optuna.storages._heartbeat import BaseHeartbeat
from optuna.study import StudyDirection
from optuna.study._frozen import FrozenStudy
from optuna.trial import FrozenTrial, TrialState

from scamp_service.errors import Conflict, NotFound
from scamp_service.exchange.frozen_trials import FROM_OPTUNA
from scamp_service.exchange.imported import spec_of_others
from scamp_service.exchange.known_trials import KnownTrials, copy_of
from scamp_service.exchange.new_trials import new_trial_of
from scamp_service.lifecycle import StudyState
from scamp_service.model import Study
from scamp_service.settings import Settings
from scamp_service.store.parts.external import METRIC, Changes, NewTrial
from scamp_service.store.store import Store
from scamp_service.study.objectives import Objectives

WRITE_SECONDS = 0.05
"""Parameters and attributes of a running trial are written within this time, so that many are one transaction."""

StaleCallback = Callable[["optuna.Study", FrozenTrial], None]


class ScampStorage(BaseStorage, BaseHeartbeat):
    """An Optuna storage on a study database of ScaMP. Threads may share it; each process opens its own.

    ``url`` is that of the database: ``sqlite:////PATH/scamp.db`` or ``postgresql://HOST/NAME``; by default that of the
    service on this machine. The three other options are those of Optuna's ``RDBStorage``. Raises ``Unavailable`` when
    the database cannot be used.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        heartbeat_interval: int | None = None,
        grace_period: int | None = None,
        heartbeat_stale_trial_callback: StaleCallback | None = None,
    ) -> None:
        self._options = (url or Settings().url, heartbeat_interval, grace_period, heartbeat_stale_trial_callback)
        self._open()

    def _open(self) -> None:
        self._store = Store(self._options[0])
        self._external = self._store.external
        weakref.finalize(self, self._store.close)
        self._lock = threading.RLock()
        self._known: dict[int, KnownTrials] = {}
        self._places: dict[int, tuple[int, int]] = {}  # trial → its study and number
        self._begun: dict[int, FrozenTrial] = {}  # running trials of this process, with all their changes
        self._unwritten: dict[int, Changes] = {}  # those of a moment: they are written together
        self._timer: threading.Timer | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._options = state["_options"]
        self._open()

    def close(self) -> None:
        """Write what is not written yet, and close the connections to the database."""
        self._write_changes()
        self._store.close()

    def remove_session(self) -> None:
        """Close the connections to the database; they are opened again when needed."""
        self.close()

    # --- studies -----------------------------------------------------------------------------------------------

    def create_new_study(self, directions: Sequence[StudyDirection], study_name: str | None = None) -> int:
        """Create a study whose trials other programs run, and return its id."""
        name = f"{DEFAULT_STUDY_NAME_PREFIX}{uuid.uuid4()}" if study_name is None else study_name
        spec = spec_of_others(name, [direction.name.lower() for direction in directions])
        try:
            return self._external.create_study(name, spec, now=time.time())
        except Conflict as error:
            raise DuplicatedStudyError(str(error)) from None

    def delete_study(self, study_id: int) -> None:
        """Delete a study that has ended or is of other programs. Raises ``Conflict`` while ScaMP runs it."""
        with _as_optuna():
            self._external.study_state(study_id)
        self._store.requests.delete(study_id, now=time.time())
        with self._lock:
            self._known.pop(study_id, None)
            self._places = {trial: place for trial, place in self._places.items() if place[0] != study_id}

    def set_study_user_attr(self, study_id: int, key: str, value: Any) -> None:
        """Set an attribute of a user."""
        with _as_optuna():
            self._external.set_study_attribute(study_id, key, value, is_system=False)

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        """Set an attribute of Optuna's own."""
        with _as_optuna():
            self._external.set_study_attribute(study_id, key, value, is_system=True)

    def get_study_id_from_name(self, study_name: str) -> int:
        """The id of a study: the oldest with this name, or ``NAME #ID`` for others with it."""
        if studies := self._external.studies_named(study_name):
            return studies[0]
        numbered = re.fullmatch(r"(.*) #(\d+)", study_name, re.DOTALL)
        if numbered and int(numbered[2]) in self._external.studies_named(numbered[1]):
            return int(numbered[2])
        raise KeyError(f"there is no study {study_name!r}")

    def get_study_name_from_id(self, study_id: int) -> str:
        """The name of a study, with its id if an older one has the same."""
        name = self._study(study_id).name
        return name if self._external.studies_named(name)[:1] == [study_id] else f"{name} #{study_id}"

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        """Whether each objective is minimized or maximized."""
        return directions_of(self._study(study_id).spec)

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        """Attributes of users; a study of ScaMP also has its state and workload."""
        study = self._study(study_id)
        return {**_about(study), **self._external.study_attributes(study_id, is_system=False)}

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        """Attributes of Optuna's own, such as the names of the objectives."""
        study = self._study(study_id)
        return {**_metric_names(study), **self._external.study_attributes(study_id, is_system=True)}

    def get_all_studies(self) -> list[FrozenStudy]:
        """All studies, by id."""
        summaries, names = [], set[str]()
        for study in self._external.every_study():
            name = f"{study.name} #{study.id}" if study.name in names else study.name
            names.add(study.name)
            summaries.append(
                FrozenStudy(
                    study_name=name,
                    direction=None,
                    directions=directions_of(study.spec),
                    user_attrs={**_about(study), **self._external.study_attributes(study.id, is_system=False)},
                    system_attrs={**_metric_names(study), **self._external.study_attributes(study.id, is_system=True)},
                    study_id=study.id,
                )
            )
        return summaries

    # --- trials: writes ----------------------------------------------------------------------------------------

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """Create a trial that other programs run, with the next number of the study, and return its id."""
        new = NewTrial(FROM_OPTUNA[TrialState.RUNNING]) if template_trial is None else new_trial_of(template_trial)
        with _as_optuna():
            (trial_id,) = self._external.create_trials(study_id, [new], now=time.time())
        if template_trial is None:
            with self._lock:
                self._begun[trial_id] = self._read(trial_id)
        return trial_id

    def set_trial_param(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: BaseDistribution
    ) -> None:
        """Set a parameter of a trial. Raises ``ValueError`` if the study knows it with another kind of distribution."""
        with self._lock, _as_optuna():
            known_distribution = self._known_of(self._place(trial_id)[0], param_name)
            if (first := known_distribution.distributions.get(param_name)) is not None:
                try:
                    check_distribution_compatibility(first, distribution)
                except ValueError:
                    self.check_trial_is_updatable(trial_id, self.get_trial(trial_id).state)
                    raise
            value, number = distribution.to_external_repr(param_value_internal), float(param_value_internal)
            new = Changes({param_name: (value, number, distribution_to_json(distribution))})
            with self._changing(trial_id, new) as trial:
                if trial:
                    trial._params[param_name], trial._distributions[param_name] = value, distribution
            known_distribution.distributions.setdefault(param_name, distribution)

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        """Move a trial, and set its values if there are any; False if somebody else has begun it."""
        with self._lock, _as_optuna():
            changes = self._unwritten.pop(trial_id, None)
            moved = self._external.move_trial(trial_id, FROM_OPTUNA[state], values, changes, now=time.time())
            if state is TrialState.RUNNING:
                if moved:
                    self._begun[trial_id] = self._read(trial_id)
            else:
                self._begun.pop(trial_id, None)
            return moved

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        """Store the objective at a step."""
        with self._lock, _as_optuna():
            metric, value = self._known_of(self._place(trial_id)[0]).metric, float(intermediate_value)
            changes = self._unwritten.pop(trial_id, None)
            begun = self._begun.pop(trial_id, None)
            self._external.report(trial_id, step, value, changes, metric=metric, now=time.time())
            if begun:
                self._begun[trial_id] = changed = copy_of(begun)
                changed.intermediate_values[step] = value

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Set an attribute of a user."""
        with self._lock, _as_optuna(), self._changing(trial_id, Changes({}, {(False, key): value})) as trial:
            if trial:
                trial._user_attrs[key] = value

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Set an attribute of Optuna's own."""
        with self._lock, _as_optuna(), self._changing(trial_id, Changes({}, {(True, key): value})) as trial:
            if trial:
                trial._system_attrs[key] = value

    @contextmanager
    def _changing(self, trial_id: int, changes: Changes) -> Iterator[FrozenTrial | None]:
        """A copy of a trial that this process runs, to be changed: it is written with its next changes, or soon.

        None for any other trial: its ``changes`` are written at once.
        """
        trial = self._begun.get(trial_id)
        if trial is None:
            self._external.change_trial(trial_id, changes)
            yield None
            return
        json.dumps(list(changes.attributes.values()))  # raises here what the database would raise later
        changed = copy_of(trial)
        yield changed
        self._begun[trial_id] = changed
        unwritten = self._unwritten.setdefault(trial_id, Changes())
        unwritten.params.update(changes.params)
        unwritten.attributes.update(changes.attributes)
        if self._timer is None:
            self._timer = threading.Timer(WRITE_SECONDS, self._write_changes)
            self._timer.start()

    def _write_changes(self) -> None:
        """Write the changes of running trials that are not written yet."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, unwritten, self._unwritten = None, self._unwritten, {}
            for trial_id, changes in unwritten.items():
                try:
                    self._external.change_trial(trial_id, changes)
                except (NotFound, Conflict):  # somebody else has deleted or ended it
                    self._begun.pop(trial_id, None)

    # --- trials: reads -----------------------------------------------------------------------------------------

    def get_trial_id_from_study_id_trial_number(self, study_id: int, trial_number: int) -> int:
        """The id of the trial with this number."""
        with _as_optuna():
            return self._store.trials.numbered(study_id, trial_number).id

    def get_trial_number_from_id(self, trial_id: int) -> int:
        """The number of a trial in its study."""
        with _as_optuna():
            return self._place(trial_id)[1]

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """One trial."""
        with self._lock, _as_optuna():
            if (begun := self._begun.get(trial_id)) is not None:
                return begun
            study_id, number = self._place(trial_id)
            known_trials = self._known.get(study_id)
            ended = known_trials.ended(number) if known_trials else None
            return self._read(trial_id) if ended is None else ended

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """The trials of a study by number; ``states`` keeps only these states."""
        with self._lock, _as_optuna():
            known_trials = self._known_of(study_id)
            known_trials.refresh()
            known_trials.overlay(self._begun[trial_id] for trial_id in self._unwritten)
            trials = known_trials.in_states(states)
        return [copy_of(trial) for trial in trials] if deepcopy else trials

    # --- heartbeats --------------------------------------------------------------------------------------------

    def record_heartbeat(self, trial_id: int) -> None:
        """Note that this process still runs the trial."""
        self._external.record_heartbeat(trial_id)

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        _, interval, grace, _ = self._options
        assert interval is not None
        return self._external.stale_trials(study_id, 2.0 * interval if grace is None else grace)

    def get_heartbeat_interval(self) -> int | None:
        """Seconds between two heartbeats; None for none."""
        return self._options[1]

    def get_heartbeat_stale_trial_callback(self) -> StaleCallback | None:
        """Optuna calls this for a trial whose process has died."""
        return self._options[3]

    # --- shared ------------------------------------------------------------------------------------------------

    def _study(self, study_id: int) -> Study:
        with _as_optuna():
            return self._store.studies.get(study_id)

    def _place(self, trial_id: int) -> tuple[int, int]:
        if trial_id not in self._places:
            self._places[trial_id] = self._external.place_of(trial_id)
        return self._places[trial_id]

    def _known_of(self, study_id: int, param_name: str | None = None) -> KnownTrials:
        """Knowledge of a study; read again if its parameter ``param_name`` is not known."""
        known_trials = self._known.get(study_id)
        if known_trials is None:
            study = self._study(study_id)
            known_trials = self._known[study_id] = KnownTrials(self._store, study)
        if param_name is not None and param_name not in known_trials.distributions:
            known_trials.refresh()
        return known_trials

    def _read(self, trial_id: int) -> FrozenTrial:
        return self._known_of(self._place(trial_id)[0]).read(trial_id)


# --- specs -----------------------------------------------------------------------------------------------------------


def directions_of(spec: Mapping[str, Any]) -> list[StudyDirection]:
    """Optuna's direction of each objective."""
    return [StudyDirection[objective.direction.upper()] for objective in Objectives.of_spec(spec).items]


def _about(study: Study) -> dict[str, Any]:
    if study.state is StudyState.EXTERNAL or "directions" in study.spec:
        return {}
    return {"scamp:state": study.state.value, "scamp:workload": study.spec.get("workload", "")}


def _metric_names(study: Study) -> dict[str, Any]:
    names = Objectives.of_spec(study.spec).names
    has_none = names == (METRIC,) or ("directions" in study.spec and len(names) > 1)
    return {} if has_none else {"study:metric_names": list(names)}


@contextmanager
def _as_optuna() -> Iterator[None]:
    """Raise the errors of the store as those that Optuna expects."""
    try:
        yield
    except NotFound as error:
        raise KeyError(str(error)) from None
    except Conflict as error:
        raise UpdateFinishedTrialError(str(error)) from None
