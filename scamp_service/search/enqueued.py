"""Candidates that a user adds to a running study, completed like those of ``start_with``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from scamp.shown import first_names
from scamp_service.errors import InvalidInput
from scamp_service.search.constrained import NoCandidate
from scamp_service.search.starts import Starts
from scamp_service.study.objectives import Objectives, Values
from scamp_service.study.parse import parse_study
from scamp_service.study.values import Params


def completed_candidate(spec: Mapping[str, Any], params: Mapping[str, Any], salt: int) -> Params:
    """All parameters of a candidate of a study: those that the user has left out are random, other for each ``salt``.

    Raises ``InvalidInput`` for values that the study's space does not have.
    """
    search = {**spec["search"], "seed": (int(spec["search"].get("seed", 0)) + salt) % 2**31}
    try:
        study = parse_study({**spec, "start_with": [dict(params)], "search": search})
        return Starts(study)[0]
    except InvalidInput as error:
        wrong = str(error).replace("start_with[0].", "").replace("start_with[0]", "the candidate")
        raise InvalidInput(wrong.replace("the study is not valid", "the candidate is not valid")) from None
    except NoCandidate as error:
        raise InvalidInput(str(error).replace("start_with[0]", "the candidate")) from None


def told_results(
    spec: Mapping[str, Any],
    candidates: Sequence[Mapping[str, Any]],
    completed: Sequence[Params],
    values: Sequence[float | Sequence[float]] | None,
) -> Sequence[Values]:
    """The value of each objective of each candidate, from what a user tells; none if nothing is told.

    ``candidates`` are as the user wrote them, and ``completed`` with all parameters. Raises ``InvalidInput``.
    """
    if values is None:
        return ()
    objectives = Objectives.of_spec(spec)
    if len(values) != len(candidates):
        raise InvalidInput(
            f"there are {len(candidates)} candidates and {len(values)} values: give each candidate its values"
        )
    if any(objective.predicted for objective in objectives.items):
        raise InvalidInput("a predicted objective cannot be told: let ScaMP run the candidate")
    for params, every in zip(candidates, completed, strict=True):
        if lacking := sorted(every.keys() - params.keys() - spec["fixed"].keys()):
            raise InvalidInput(f"a result needs all parameters of its candidate; add {first_names(lacking)}")
    results = [tuple(value) if isinstance(value, Sequence) else (value,) for value in values]
    for result in results:
        if len(result) != len(objectives.items) or not all(map(math.isfinite, result)):
            raise InvalidInput(f"a result is a finite number for each of {', '.join(objectives.names)}, got {result}")
    return results
