"""Prints an estimate as a table in a terminal, with footnotes on the figures that are unverified."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.table import Table

from estimators.devices.catalogue import UNVERIFIED
from estimators.model import MIB, Layout, Plan, mib_in_words
from placement.option import Evidence, Option
from placement.planning.answers import ChosenPlan
from scamp_service.sizing.early_answers import EarlyAnswer
from scamp_service.sizing.estimated import Estimate, params_in_words

COLUMNS = {
    "params": ("parameters",),
    "grads": ("gradients",),
    "optim": ("optimizer",),
    "activ": ("activations",),
    "gather": ("gathered",),
    "temp": ("scratch", "workspace"),
    "other": ("buffers", "batch", "slack", "objects"),
}
_SHORT = ["param", "grad", "opt", "act", "gath", "temp", "other"]  # COLUMNS, short enough for 80 characters


def headline(estimate: Estimate | EarlyAnswer) -> str:
    """One line on the candidate: its parameters, the size of its states, its FLOPs per sample, its batch."""
    profile = estimate.profile
    states = f"{profile.num_params:,} parameters, {mib_in_words(profile.state_bytes)} of states"
    flops = f"{profile.work[Layout()].per_sample.flops / 1e9:.3g} GFLOPs a sample"
    return f"{params_in_words(estimate.params)}: {states}, {flops}, batch {estimate.batch}"


def as_table(estimate: Estimate) -> Table:
    """Memory of one rank by category, one row for each plan, the chosen one in bold.

    ``rc`` is recompute (``sel``: selective), ``co2`` stands for blocks in 2 parts.
    """
    return _gpu_table(estimate) if estimate.on_gpu else _virtual_table(estimate)


def units_table(estimate: Estimate) -> Table:
    """One row for each unit of a model; ``parts`` is the largest number of ranks that can divide its layers."""
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 0, 0, 1))
    table.add_column("unit", overflow="fold")
    for heading in ["params", "GFLOPs", "MiB moved", "MiB kept", "MiB out", "parts"]:
        table.add_column(heading, justify="right", no_wrap=True)
    for unit in estimate.units:
        work, name = unit.per_sample, f"{unit.name} × {unit.count}" if unit.count > 1 else unit.name
        sizes = (work.num_bytes, unit.activations.bytes_per_sample, unit.output.bytes_per_sample)
        cells = [f"{unit.num_params:,}", f"{work.flops / 1e9:.3g}", *(f"{size / MIB:.3g}" for size in sizes)]
        table.add_row(name, *cells, str(unit.most_parts) if unit.most_parts > 1 else "")
    return table


def footnotes(estimate: Estimate) -> Iterator[str]:
    """One line for each figure that is unverified, and why; none for virtual devices."""
    if not estimate.on_gpu or estimate.kind is None:
        return
    kind, percent = estimate.kind, estimate.margin.percent
    if kind.verified:
        yield f"on one rank, out and step come from `scamp calibrate` on a {kind.name}:"
        yield f"  {kind.provenance}"
        yield "all else is unverified; --json has the source of each figure"
    else:
        yield f"unverified: ScaMP has not measured any {kind.name}; --json has the source of each figure"
    yield "  out        CUDA context, cuBLAS workspaces and, on several ranks, NCCL: literature"
    yield "  least, max replay of PyTorch's allocator over two steps; max and the chosen plan"
    yield f"             leave {percent} % for memory that operations take beyond their tensors"
    if not kind.verified:
        yield f"  step, comm {UNVERIFIED};"
    yield "  comm       NCCL's model of ring collectives, hidden behind computation where there is enough"


def _virtual_table(estimate: Estimate) -> Table:
    unit, size = _unit(estimate)
    limited = [] if estimate.of_any_size else ["max"]
    timed = ["step"] if estimate.kind else []
    table = _empty([*_SHORT, "peak", "reserve", *limited, *timed], f"{unit} of one rank")
    for option in estimate.options:
        cost, time = option.prediction, estimate.step_time(option)
        least = "≥" if option.is_bound else ""
        reserved = str(cost.reserved_mib) if unit == "MiB" else size(cost.reserved_mib * MIB)
        cells = [*_parts(option, size), f"{least}{size(cost.peak_bytes)}", f"{least}{reserved}"]
        cells += [_largest(estimate, option)] if limited else []
        cells += ["" if time is None else short_seconds(time.seconds)] if timed else []
        _add(table, estimate, option, cells)
    return table


def _gpu_table(estimate: Estimate) -> Table:
    unit, size = _unit(estimate)
    verified = estimate.kind is not None and estimate.kind.verified
    unverified = "least, max; gangs: all" if verified else "out, least, max, step, comm"
    headings = [*_SHORT, "out", "least", "max", "step", "comm"]
    table = _empty(headings, f"{unit} of one rank; unverified: {unverified}")
    for option in estimate.options:
        outside, time = estimate.outside_bytes(option), estimate.step_time(option)
        capacity, bound = estimate.smallest_capacity_bytes(option), "≥" if option.is_bound else ""
        least = option.prediction.peak_bytes + outside if option.evidence is Evidence.STATES else capacity
        cells = [*_parts(option, size), size(outside), "" if least is None else f"{bound}{size(least)}"]
        cells += [_largest(estimate, option), "" if time is None else short_seconds(time.seconds)]
        _add(table, estimate, option, [*cells, f"{time.communication_share:.0%}" if time else ""])
    return table


def _unit(estimate: Estimate) -> tuple[str, Callable[[int], str]]:
    """(unit of a table, a size in bytes in that unit, in at most four characters up to 9999 GiB)."""
    largest_mib = max((option.prediction.reserved_mib for option in estimate.options), default=0)
    unit, num_bytes = ("GiB", 1024 * MIB) if largest_mib >= 10_000 else ("MiB", MIB)
    decimals = 1 if largest_mib * MIB < 100 * num_bytes else 0
    return unit, lambda size: f"{size / num_bytes:.{decimals}f}"


def _empty(headings: list[str], title: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="dim",
        box=None,
        header_style="dim",
        pad_edge=False,
        padding=(0, 0, 0, 1),
    )
    for heading in ["ranks", "batch", "rc", *headings]:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _add(table: Table, estimate: Estimate, option: Option, cells: list[str]) -> None:
    plan = option.plan
    accumulated = f"{plan.num_micro_batches}×" if plan.num_micro_batches > 1 and option.fits else ""
    chosen = isinstance(estimate.choice, ChosenPlan) and plan == estimate.choice.plan
    table.add_row(
        str(plan.world_size) if plan.world_size == plan.dp_shard else plan.short.replace(" ×", "").replace(" · ", " "),
        "states" if option.evidence is Evidence.STATES else f"{accumulated}{plan.micro_batch}",
        _inside(plan),
        *cells,
        style="bold green" if chosen else None if option.fits else "dim",
    )


def _inside(plan: Plan) -> str:
    """How each rank computes its blocks, in a few letters."""
    recompute = "sel" if plan.selective else "rc" if plan.recompute else ""
    return f"{recompute}co{plan.co_shard}" if plan.co_shard > 1 else recompute


def _parts(option: Option, size: Callable[[int], str]) -> list[str]:
    parts = option.prediction.parts
    return [size(sum(parts.get(name, 0) for name in names)) if parts else "" for names in COLUMNS.values()]


def _largest(estimate: Estimate, option: Option) -> str:
    number = estimate.largest_micro_batch(option)
    if number is None:
        return ""
    return f"{'≥' if estimate.may_be_larger(option) else ''}{number if number < 10_000 else f'{number // 1000}k'}"


def short_seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2g}ms" if seconds < 0.0995 else f"{seconds:.2g}s" if seconds < 99.5 else f"{seconds:.0f}s"
