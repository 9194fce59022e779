"""View of a study's lineage: which trials continue from others, and what was changed in each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from api.views.view import View
from scamp_service.lifecycle import Origin, TrialState
from scamp_service.study.objective import Objective
from scamp_service.study.spaces.parameter_axes import MISSING, leaves_in, value_at

MOST_CHANGES = 20
"""Changed parameters that are named for one trial."""


class ChangeView(View):
    """A parameter of a copy that differs from its parent's."""

    name: str
    before: Annotated[Any, Field(description="value of the parent; null also if it does not have the parameter")]
    after: Any


class DescendantView(View):
    """A trial that continues from another one, or from which others do."""

    number: int
    state: TrialState
    origin: Annotated[
        Origin, Field(description="BRANCH is a copy, which continues to train; others began with the parent's weights")
    ]
    value: float | None
    step: Annotated[int, Field(description="step of its last evaluation")]
    parent_number: Annotated[int | None, Field(description="trial that it continues from; null: it began anew")]
    parent_step: Annotated[int | None, Field(description="step of the parent at which it began")]
    changes: list[ChangeView]


class LineageView(View):
    """Families of trials: each is followed by those that continue from it. The family with the best trial is first."""

    num_trials: Annotated[int, Field(description="trials with a parent or children; more than `items` if thinned")]
    items: Annotated[list[DescendantView], Field(description="the best trials and all ancestors of each")]


COLUMNS = ("state", "origin", "value", "step", "parent_number", "parent_step")
"""Columns of a trial that a lineage shows, besides its number."""


def chosen(trials: Sequence[Any], objective: Objective, most: int) -> tuple[int, list[Any]]:
    """Number of related trials, and about ``most`` of them in the order of the view: the best with their ancestors.

    Families come by their best trial. A parent that does not exist any more counts as none.
    """
    by_number = {trial.number: trial for trial in trials}
    parents = {trial.number: trial.parent_number for trial in trials if trial.parent_number in by_number}
    related = {*parents, *(number for number in parents.values() if number is not None)}

    def rank(number: int) -> tuple[bool, float, int]:
        value = by_number[number].value
        is_known = value is not None and math.isfinite(value)
        return not is_known, objective.key(value) if is_known and value is not None else 0.0, number

    kept = set[int]()
    for number in sorted(related, key=rank):
        line = _line(number, parents)
        if kept and len(kept) + len(line - kept) > most:
            continue
        kept |= line
    return len(related), [by_number[number] for number in _in_families(kept, parents, rank)]


def _line(number: int, parents: Mapping[int, int | None]) -> set[int]:
    """A trial and all its ancestors."""
    line = set[int]()
    at: int | None = number
    while at is not None and at not in line:
        line.add(at)
        at = parents.get(at)
    return line


def _in_families(members: set[int], parents: Mapping[int, int | None], rank: Any) -> list[int]:
    children: dict[int, list[int]] = {}
    for number in sorted(members):
        if (parent := parents.get(number)) is not None:
            children.setdefault(parent, []).append(number)
    best = {number: rank(number) for number in members}
    for number in sorted(members, reverse=True):  # a copy has a larger number than its parent
        if (parent := parents.get(number)) is not None:
            best[parent] = min(best[parent], best[number])
    ordered = list[int]()
    waiting = sorted((number for number in members if parents.get(number) is None), key=best.__getitem__, reverse=True)
    while waiting:
        number = waiting.pop()
        ordered.append(number)
        waiting += reversed(children.get(number, []))
    return ordered


def lineage_view(num: int, relatives: Sequence[Any], params: Mapping[int, Mapping[str, Any]]) -> LineageView:
    """View of these trials; ``params`` are their parameters by number."""
    return LineageView(
        num_trials=num,
        items=[
            DescendantView(
                number=relative.number,
                **{name: getattr(relative, name) for name in COLUMNS},
                changes=_changes(params.get(relative.parent_number), params.get(relative.number))
                if relative.parent_number is not None
                else [],
            )
            for relative in relatives
        ],
    )


def _changes(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[ChangeView]:
    if before is None or after is None:
        return []
    names = dict.fromkeys((*leaves_in(before), *leaves_in(after)))
    pairs = ((name, value_at(before, name), value_at(after, name)) for name in names)
    return [
        ChangeView(name=name, before=None if old is MISSING else old, after=None if new is MISSING else new)
        for name, old, new in pairs
        if old is not new and old != new
    ][:MOST_CHANGES]
