"""The table of a study's trials, as the dashboard shows it and downloads have it: ``Store.table``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import compress
from typing import Any, NamedTuple

import numpy as np

from scamp_service.errors import InvalidInput
from scamp_service.lifecycle import TrialState
from scamp_service.model import Json
from scamp_service.store import queries as sql
from scamp_service.store.database import Database
from scamp_service.store.parts.part import Part, in_parts, no_study
from scamp_service.store.rows import Score
from scamp_service.store.schema import load_json
from scamp_service.store.table.order import PARAMETER, VALUES, SortOrder, order_of, sorted_numbers
from scamp_service.store.table.series import Series
from scamp_service.store.table.trial_filter import TrialFilter, objective_quantities
from scamp_service.study.objectives import Objectives
from scamp_service.study.spaces.parameter_axes import MISSING, axes_of, leaves_in, value_at

MOST_TRIALS = 2**31 - 1
"""More trials than any study has."""
MOST_KEPT = 8
"""Studies whose series are kept: 25 bytes for each trial."""
MOST_SORTED_APART = 1000
"""So many trials are sorted without the others of their study."""


class Ordered(NamedTuple):
    """Numbers of the first trials in an order, and how many trials there are."""

    numbers: list[int]
    num_trials: int


class TrialTable(Part):
    """Chosen trials of a study in their order, and some columns of them."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._kept_series: dict[int, tuple[int, Series]] = {}

    def order(
        self,
        study_id: int,
        by: str,
        *,
        descending: bool = False,
        states: Iterable[TrialState] | None = None,
        where: str = "",
        limit: int | None = None,
    ) -> Ordered:
        """Numbers of the study's trials in the order of a column; with ``limit`` only so many of the first.

        It is one of ``table.order.By``, ``params.NAME``, or ``values.N`` for one of several objectives.

        ``states`` keeps only these states, and the expression ``where`` those for which it is true (see
        ``trial_filter``). Raises ``InvalidInput``.
        """
        states = None if states is None else list(states)
        if by in sql.SORTS:
            return self._ordered(study_id, by, descending, states, where, limit)
        order = self._order(study_id, by)
        columns = self.columns(study_id, order.columns, states=states, where=where)
        if by.startswith(PARAMETER):
            self._expect_parameter(study_id, by.removeprefix(PARAMETER))
        return Ordered(sorted_numbers(order, columns, descending)[:limit], len(columns["number"]))

    def _ordered(
        self,
        study_id: int,
        by: str,
        descending: bool,
        states: Sequence[TrialState] | None,
        where: str,
        limit: int | None,
    ) -> Ordered:
        """The order by a column that the database orders by."""
        chosen = self._chosen(study_id, states, where) if where.strip() else None
        most = limit if limit is not None and chosen is None else MOST_TRIALS
        by_state = states is not None
        filters: dict[str, Any] = {"study_id": study_id} | ({"states": states} if by_state else {})
        if chosen is not None and len(chosen) <= MOST_SORTED_APART:
            filters["numbers"] = list(chosen)
        statement = sql.sorted_numbers(by, descending, frozenset(filters))
        numbers = self._values(statement, limit=most, **filters)
        if chosen is not None:
            return Ordered([number for number in numbers if number in chosen][:limit], len(chosen))
        num = self._value(sql.num_trials(by_state), **filters) if len(numbers) == most else len(numbers)
        return Ordered(numbers, num)

    def series(self, study_id: int, *, states: Iterable[TrialState] | None = None, where: str = "") -> Series:
        """The trials of the study that have begun or ended and repeat no other one, chosen as by ``order``."""
        series = self._whole_series(study_id)
        if states is None and not where.strip():
            return series
        return series[np.isin(series.number, list(self._chosen(study_id, states, where)))]

    def _whole_series(self, study_id: int) -> Series:
        """The series of all trials, which is kept until the study's next event: several charts ask for it at once."""
        last_event = self._value(sql.LAST_EVENT_OF_STUDY, study_id=study_id)  # what changes meanwhile has another one
        kept_event, series = self._kept_series.get(study_id, (None, None))
        if series is None or kept_event != last_event:
            with self._database.read() as connection:
                rows = connection.execute(sql.SERIES, {"study_id": study_id}).cursor.fetchall()  # no value of each
            columns = np.array(rows, float).reshape(-1, 4).T
            series = Series(columns[0].astype(int), columns[1], columns[2].astype(int), columns[3] > 0)
            others = [item for item in self._kept_series.items() if item[0] != study_id][1 - MOST_KEPT :]
            self._kept_series = dict([*others, (study_id, (last_event, series))])  # at once, for other threads
        return series

    def params(self, study_id: int, numbers: Sequence[int]) -> dict[int, Json]:
        """The parameters of the trials with these numbers, by number."""
        parts = (self._rows(sql.PARAMS, study_id=study_id, numbers=some) for some in in_parts(numbers))
        return {row.number: row.params for rows in parts for row in rows}

    def relatives(self, study_id: int) -> Sequence[Any]:
        """Rows of the trials that continue from others of the study, and of those, by number; no repeats."""
        return self._rows(sql.RELATIVES, study_id=study_id)

    def _chosen(self, study_id: int, states: Iterable[TrialState] | None, where: str) -> set[int]:
        """Numbers of the trials in these states for which ``where`` is true."""
        return set(self.columns(study_id, (), states=states, where=where)["number"])

    def _expect_parameter(self, study_id: int, name: str) -> None:
        """Raise ``InvalidInput`` if neither the study's space nor any trial has this parameter."""
        spec = self._spec(study_id)
        names = {*axes_of(spec.get("space", {})), *spec.get("space", {}), *spec.get("fixed", {})}
        if name in names:
            return
        every = self.columns(study_id, ("params",))["params"]
        if all(value_at(params, name) is MISSING for params in every):
            names.update(leaf for params in every for leaf in leaves_in(params))
            close = get_close_matches(name, names, 1, 0.5)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise InvalidInput(f"no trial has a parameter {name[:100]!r}{hint}")

    def columns(
        self, study_id: int, names: Sequence[str], *, states: Iterable[TrialState] | None = None, where: str = ""
    ) -> dict[str, Sequence[Any]]:
        """The number and at least these columns of the study's trials, by number: item i of each is of the same trial.

        They are chosen as by ``order``.
        """
        choice = self._filter(study_id, where) if where.strip() else None
        read = tuple(dict.fromkeys(("number", *names, *(choice.columns if choice else ()))))
        filters: dict[str, Any] = {} if states is None else {"states": list(states)}
        rows = self._rows(sql.ordering(read, states is not None), study_id=study_id, **filters)
        columns: dict[str, Sequence[Any]] = dict(
            zip(read, zip(*rows, strict=True) if rows else [()] * len(read), strict=True)
        )
        if "params" in read:
            columns["params"] = load_json(f"[{','.join(columns['params'])}]")  # faster than each alone
        if choice is None:
            return columns
        is_chosen = choice.matches(columns)
        return {name: list(compress(values, is_chosen)) for name, values in columns.items()}

    def _filter(self, study_id: int, where: str) -> TrialFilter:
        spec = self._spec(study_id)
        space = spec.get("space", {})
        parameters = {*space, *spec.get("fixed", {})} if space else None  # whether a trial has them or not
        return TrialFilter(where, objective_quantities(Objectives.of_spec(spec)), parameters)

    def _order(self, study_id: int, by: str) -> SortOrder:
        if not by.startswith(VALUES):
            return order_of(by)
        objectives = Objectives.of_spec(self._spec(study_id))
        place = next((place for place in range(len(objectives.items)) if by == f"{VALUES}{place}"), None)
        if place is None:
            raise InvalidInput(f"there is no objective {by[:100]!r}; the study has {len(objectives.items)}")
        return SortOrder(Score._fields, lambda *columns: objectives.each_of(Score(*columns))[place])

    def _spec(self, study_id: int) -> Json:
        spec: Json | None = self._value(sql.SPEC, id=study_id)
        if spec is None:
            raise no_study(study_id)
        return spec
