"""The table of a study's trials, as the dashboard shows it and downloads have it: ``Store.table``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import make_dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple

import numpy as np

from scamp_service.errors import InvalidInput
from scamp_service.lifecycle import TrialState
from scamp_service.model import Json
from scamp_service.store import queries as sql
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


class Ordered(NamedTuple):
    """Numbers of the first trials in an order, and how many trials there are."""

    numbers: list[int]
    num_trials: int


class TrialTable(Part):
    """Chosen trials of a study in their order, and some columns of them."""

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
        rows = self.columns(study_id, order.columns, states=states, where=where)
        if by.startswith(PARAMETER):
            self._expect_parameter(study_id, by.removeprefix(PARAMETER))
        return Ordered(sorted_numbers(order, rows, descending)[:limit], len(rows))

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
        numbers = self._values(sql.sorted_numbers(by, descending, by_state), limit=most, **filters)
        if chosen is not None:
            return Ordered([number for number in numbers if number in chosen][:limit], len(chosen))
        num = self._value(sql.num_trials(by_state), **filters) if len(numbers) == most else len(numbers)
        return Ordered(numbers, num)

    def series(self, study_id: int, *, states: Iterable[TrialState] | None = None, where: str = "") -> Series:
        """The trials of the study that have begun or ended and repeat no other one, chosen as by ``order``."""
        with self._database.read() as connection:
            rows = connection.execute(sql.SERIES, {"study_id": study_id}).cursor.fetchall()  # without a value of each
        columns = np.array(rows, float).reshape(-1, 4).T
        series = Series(columns[0].astype(int), columns[1], columns[2].astype(int), columns[3] > 0)
        if states is None and not where.strip():
            return series
        return series[np.isin(series.number, list(self._chosen(study_id, states, where)))]

    def params(self, study_id: int, numbers: Sequence[int]) -> dict[int, Json]:
        """The parameters of the trials with these numbers, by number."""
        parts = (self._rows(sql.PARAMS, study_id=study_id, numbers=some) for some in in_parts(numbers))
        return {row.number: row.params for rows in parts for row in rows}

    def relatives(self, study_id: int) -> Sequence[Any]:
        """Rows of the trials that continue from others of the study, and of those, by number; no repeats."""
        return self._rows(sql.RELATIVES, study_id=study_id)

    def _chosen(self, study_id: int, states: Iterable[TrialState] | None, where: str) -> set[int]:
        """Numbers of the trials in these states for which ``where`` is true."""
        return {row.number for row in self.columns(study_id, (), states=states, where=where)}

    def _expect_parameter(self, study_id: int, name: str) -> None:
        """Raise ``InvalidInput`` if neither the study's space nor any trial has this parameter."""
        spec = self._spec(study_id)
        names = {*axes_of(spec.get("space", {})), *spec.get("space", {}), *spec.get("fixed", {})}
        if name in names:
            return
        every = [row.params for row in self.columns(study_id, ("params",))]
        if all(value_at(params, name) is MISSING for params in every):
            names.update(leaf for params in every for leaf in leaves_in(params))
            close = get_close_matches(name, names, 1, 0.5)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise InvalidInput(f"no trial has a parameter {name[:100]!r}{hint}")

    def columns(
        self, study_id: int, names: Sequence[str], *, states: Iterable[TrialState] | None = None, where: str = ""
    ) -> list[Any]:
        """Rows with the number and at least these columns of the study's trials, by number.

        They are chosen as by ``order``.
        """
        spec = self._spec(study_id) if where.strip() else {}
        choice = TrialFilter(where, objective_quantities(Objectives.of_spec(spec))) if spec else None
        read = tuple(dict.fromkeys(("number", *names, *(choice.columns if choice else ()))))
        filters: dict[str, Any] = {} if states is None else {"states": list(states)}
        rows: list[Any] = list(self._rows(sql.ordering(read, states is not None), study_id=study_id, **filters))
        if "params" in read:
            row_of: Any = make_dataclass("TrialColumns", read, slots=True)
            every = load_json(f"[{','.join(row.params for row in rows)}]")  # faster than each alone
            rows = [
                row_of(**{**dict(zip(read, row, strict=True)), "params": params})
                for row, params in zip(rows, every, strict=True)
            ]
        if choice is None:
            return rows
        parameters = [*spec.get("space", {}), *spec.get("fixed", {})]  # whether a trial has them or not
        matches = choice.matches(rows, parameters)
        return [row for row, is_match in zip(rows, matches, strict=True) if is_match]

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
