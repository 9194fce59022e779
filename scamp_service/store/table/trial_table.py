"""The table of a study's trials, as the dashboard shows it and downloads have it: ``Store.table``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import make_dataclass
from difflib import get_close_matches
from typing import Any

from scamp_service.errors import InvalidInput
from scamp_service.lifecycle import TrialState
from scamp_service.model import Json
from scamp_service.store import queries as sql
from scamp_service.store.parts.part import Part, no_study
from scamp_service.store.rows import Score
from scamp_service.store.schema import load_json
from scamp_service.store.table.order import PARAMETER, VALUES, SortOrder, order_of, sorted_numbers
from scamp_service.store.table.trial_filter import TrialFilter, objective_quantities
from scamp_service.study.objectives import Objectives
from scamp_service.study.spaces.parameter_axes import MISSING, axes_of, leaves_in, value_at


class TrialTable(Part):
    """Chosen trials of a study in their order, and some columns of them."""

    def numbers(
        self,
        study_id: int,
        by: str,
        *,
        descending: bool = False,
        states: Iterable[TrialState] | None = None,
        where: str = "",
    ) -> list[int]:
        """Numbers of the study's trials in the order of a column.

        It is one of ``table.order.By``, ``params.NAME``, or ``values.N`` for one of several objectives.

        ``states`` keeps only these states, and the expression ``where`` those for which it is true (see
        ``trial_filter``). Raises ``InvalidInput``.
        """
        order = self._order(study_id, by)
        rows = self.columns(study_id, order.columns, states=states, where=where)
        if by.startswith(PARAMETER):
            self._expect_parameter(study_id, by.removeprefix(PARAMETER))
        return sorted_numbers(order, rows, descending)

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

        They are chosen as by ``numbers``.
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
