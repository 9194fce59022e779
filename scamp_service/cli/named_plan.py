"""A plan given on the command line: shows the memory of each of its stages as a table or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from estimators.devices.kind import DeviceKind
from estimators.model import MIB, Plan, Prediction
from estimators.named_plan import plan_of as read
from scamp_service.cli.tables.estimate import COLUMNS
from scamp_service.errors import InvalidInput


def plan_of(text: str) -> Plan:
    """Plan from a text such as ``tp=2,micro_batch=8`` or ``pp=2,cut=3-5,micro_batch=2``.

    Raises ``InvalidInput`` when it is not a valid plan.
    """
    try:
        return read(text)
    except ValueError as error:
        raise InvalidInput(str(error)) from None


def stages_json(
    params: dict[str, Any], plan: Plan, stages: Sequence[Prediction], kind: DeviceKind | None
) -> dict[str, Any]:
    """JSON of a plan's memory, one entry for each stage.

    ``parts`` are the bytes of the peak by category. ``device`` is the GPU and whether ScaMP has measured one, None for
    virtual devices.
    """
    costs = [
        {"peak_bytes": cost.peak_bytes, "reserved_mib": cost.reserved_mib, "parts": dict(cost.parts)} for cost in stages
    ]
    device = {"name": kind.name, "verified": kind.verified} if kind else None
    return {"params": params, "plan": plan.to_json(), "device": device, "stages": costs}


def stages_table(stages: Sequence[Prediction]) -> Table:
    """Table of the MiB of one rank by category, one row for each stage."""
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 0, 0, 1))
    for heading in ["stage", *COLUMNS, "peak", "reserve"]:
        table.add_column(heading, justify="right")
    for stage, cost in enumerate(stages):
        parts = [f"{sum(cost.parts.get(name, 0) for name in names) / MIB:.1f}" for names in COLUMNS.values()]
        table.add_row(str(stage), *parts, f"{cost.peak_bytes / MIB:.1f}", str(cost.reserved_mib))
    return table


def caveat(kind: DeviceKind | None) -> str:
    """Footnote on what is unverified in a plan's memory; empty for virtual devices."""
    if kind is None:
        return ""
    source = "`scamp calibrate` and the literature" if kind.verified else "the literature"
    return (
        f"unverified: ScaMP has not compared these peaks with measurements on a {kind.name}. They come from a replay "
        f"of PyTorch's allocator; the reservation adds the memory of CUDA and NCCL, with figures from {source}."
    )
