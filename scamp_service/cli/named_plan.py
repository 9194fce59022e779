"""One plan that a user names, and what a rank of each of its stages needs: text in, a table or JSON out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, get_type_hints

from rich.table import Table

from estimators.devices.kind import DeviceKind
from estimators.model import MIB, Plan, Prediction
from scamp_service.cli.estimate_table import COLUMNS
from scamp_service.errors import InvalidInput


def plan_of(text: str) -> Plan:
    """Of ``tp=2,micro_batch=8``: the fields of a plan. Raises ``InvalidInput`` where that is none."""
    try:
        given = dict(part.split("=", 1) for part in text.replace(" ", "").split(","))
        return Plan.from_json({name: _value(name, value) for name, value in given.items()})
    except (TypeError, ValueError, KeyError) as error:
        known = ", ".join(_TYPES)
        raise InvalidInput(f"no plan: {text!r} ({error}); write micro_batch=8,tp=2 or others of {known}") from None


def stages_json(
    params: dict[str, Any], plan: Plan, stages: Sequence[Prediction], kind: DeviceKind | None
) -> dict[str, Any]:
    """``parts`` are bytes of the peak by category; ``device`` is a GPU, and whether ScaMP has measured one."""
    costs = [
        {"peak_bytes": cost.peak_bytes, "reserved_mib": cost.reserved_mib, "parts": dict(cost.parts)} for cost in stages
    ]
    device = {"name": kind.name, "verified": kind.verified} if kind else None
    return {"params": params, "plan": plan.to_json(), "device": device, "stages": costs}


def stages_table(stages: Sequence[Prediction]) -> Table:
    """MiB of one rank of each stage by category."""
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 0, 0, 1))
    for heading in ["stage", *COLUMNS, "peak", "reserve"]:
        table.add_column(heading, justify="right")
    for stage, cost in enumerate(stages):
        parts = [f"{sum(cost.parts.get(name, 0) for name in names) / MIB:.1f}" for names in COLUMNS.values()]
        table.add_row(str(stage), *parts, f"{cost.peak_bytes / MIB:.1f}", str(cost.reserved_mib))
    return table


def caveat(kind: DeviceKind | None) -> str:
    """What to say beside such a price; empty on virtual devices."""
    if kind is None:
        return ""
    found = "`scamp calibrate` and others found" if kind.verified else "others found"
    return (
        f"unverified: ScaMP has not held such peaks against a {kind.name}. They are a replay of PyTorch's allocator; "
        f"the reservation adds what {found} CUDA and NCCL to take."
    )


_TYPES: dict[str, type] = {item.name: get_type_hints(Plan)[item.name] for item in fields(Plan) if item.init}


def _value(name: str, text: str) -> Any:
    if name not in _TYPES:
        raise ValueError(f"there is no {name!r}")
    if _TYPES[name] is bool:
        return {"true": True, "false": False}[text.lower()]
    return _TYPES[name](text)
