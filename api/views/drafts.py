"""Views of a study that is being written: its space as a form shows it, and what of it fits."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from api.views.view import View
from scamp_service.study.spaces.space import Categorical, Ordinal, Range


class ParameterView(View):
    """A parameter of a space. Numbers are texts as they may stand in a study: 1 is an integer, 1.0 is not."""

    name: str
    kind: Annotated[
        Literal["float", "int", "choice", "ordinal", "other"],
        Field(description="other: blocks, and those with a condition or a prior"),
    ]
    low: str
    high: str
    step: Annotated[str, Field(description="empty: none")]
    log: bool
    values: Annotated[str, Field(description="the values of a list, with commas between them")]


class DraftView(View):
    """A valid study that was not submitted."""

    name: str
    workload: str
    project: str
    parameters: list[ParameterView]


class RanksView(View):
    """The candidates whose plans have this number of ranks."""

    num_ranks: int
    num_candidates: int
    reserved_mib: Annotated[float, Field(description="median of the MiB that are reserved for a rank")]


class PartView(View):
    """Candidates with some values of a parameter, from `first` to `last`."""

    name: str
    first: Any
    last: Any
    num_candidates: int
    num_fitting: int


class ScreeningView(View):
    """Random candidates of a space, how many of them fit, and on how many ranks."""

    num_candidates: int
    num_fitting: int
    num_refused: Annotated[int, Field(description="candidates that the workload refuses")]
    why_refused: Annotated[str, Field(description="for the first of them; empty: none is")]
    num_devices: int
    largest_mib: Annotated[int, Field(description="MiB that the largest device offers")]
    ranks: list[RanksView]
    parts: list[PartView]


def parameter_view(name: str, dimension: Any) -> ParameterView:
    """View of one dimension of a space."""
    shown: dict[str, Any] = {"kind": "other", "low": "", "high": "", "step": "", "log": False, "values": ""}
    if not getattr(dimension, "when", None) and getattr(dimension, "prior", None) is None:
        match dimension:
            case Range(low=low, high=high, step=step, log=log):
                kind = "int" if dimension.integer else "float"
                texts = {"low": json.dumps(low), "high": json.dumps(high), "step": json.dumps(step) if step else ""}
                shown |= {"kind": kind, "log": log, **texts}
            case Categorical(choice=values):
                shown |= {"kind": "choice", "values": _listed(values)}
            case Ordinal(ordinal=values):
                shown |= {"kind": "ordinal", "values": _listed(values)}
    return ParameterView(name=name, **shown)


def _listed(values: list[Any]) -> str:
    return json.dumps(values, ensure_ascii=False)[1:-1]
