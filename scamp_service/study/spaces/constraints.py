"""Constraints between parameters: expressions that every candidate of a study must satisfy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scamp_service.study.spaces.expression import Expression


class ParameterConstraints:
    """The constraints of a study, compiled. Raises ``ValueError`` for one that is not an expression."""

    def __init__(self, sources: Sequence[str]) -> None:
        self._all = []
        for index, source in enumerate(sources):
            try:
                self._all.append(Expression(source))
            except ValueError as error:
                raise ValueError(f"constraints[{index}] {source!r} {error}") from None

    def __len__(self) -> int:
        return len(self._all)

    @property
    def names(self) -> frozenset[str]:
        """The parameters that they name."""
        return frozenset[str]().union(*(expression.names for expression in self._all))

    def broken(self, params: Mapping[str, Any]) -> list[Expression]:
        """The constraints that a candidate breaks: those that are false or have no value, such as ``1 % 0 == 0``.

        One that names a parameter that the candidate does not have holds.
        """
        return [
            expression
            for expression in self._all
            if expression.names <= params.keys() and not _holds(expression, params)
        ]

    def check(self, params: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` if one has no value for this candidate, or another one than true or false."""
        for expression in self._all:
            if expression.names <= params.keys():
                try:
                    value = expression(params)
                except ValueError as error:
                    raise ValueError(f"the constraint {expression.source!r} has no value: {error}") from None
                if not isinstance(value, bool):
                    raise ValueError(f"the constraint {expression.source!r} gives {value!r}, not true or false")


def _holds(expression: Expression, params: Mapping[str, Any]) -> bool:
    try:
        return expression(params) is True
    except ValueError:
        return False
