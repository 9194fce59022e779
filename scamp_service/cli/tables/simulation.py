"""The table of simulations: a row for each figure, a column for each simulation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from placement.simulation.schedule import Schedule
from scamp_service.cli.terminal import plain
from scamp_service.simulation.gantt import duration
from scamp_service.simulation.outcome import Simulated

MOST_REASONS = 3


def as_table(found: Sequence[tuple[str, Simulated]]) -> Table:
    """The figures of each simulation under its title."""
    return _side_by_side([(title, dict(_rows(simulated))) for title, simulated in found])


def _side_by_side(columns: Sequence[tuple[str, Mapping[str, str]]]) -> Table:
    """A column of figures under each title, and a row for each name that any of them has."""
    table = Table(box=None, pad_edge=False, show_header=any(title for title, _ in columns))
    table.add_column("")
    for title, _ in columns:
        table.add_column(plain(title), justify="right")
    for name in dict.fromkeys(name for _, figures in columns for name in figures):
        table.add_row(name, *(figures.get(name, "") for _, figures in columns))
    return table


def _rows(found: Simulated) -> Iterator[tuple[str, str]]:
    yield "makespan", duration(found.makespan)
    yield "device-hours", f"{found.device_seconds / 3600:.3g}"
    yield "devices busy", f"{found.utilisation:.0%}"
    yield "in communication", f"{found.communication_share:.1%}"
    for state, count in sorted(found.states.items(), key=lambda one: -one[1]):
        yield f"trials {state.lower()}", str(count)
    for devices, count in found.trials_by_devices.items():
        yield f"trials on {devices} device{'s' * (devices > 1)}", str(count)
    for blocked, seconds in sorted(found.waited.items(), key=lambda one: -one[1]):
        yield f"waited, {blocked}", duration(seconds)


def schedules_table(found: Sequence[tuple[str, Schedule]]) -> Table:
    """The figures of each replayed trace under its title."""
    return _side_by_side([(title, dict(_schedule_rows(schedule))) for title, schedule in found])


def _schedule_rows(found: Schedule) -> Iterator[tuple[str, str]]:
    yield "jobs", str(len(found.runs))
    if found.never:
        yield "jobs that fit nowhere", str(len(found.never))
    yield "makespan", duration(found.makespan)
    yield "mean completion", duration(found.mean_completion)
    yield "mean wait", duration(found.mean_wait)
    yield "99 % wait at most", duration(found.wait_at(0.99))
    yield "device-hours", f"{found.device_seconds / 3600:.3g}"
    yield "devices held", f"{found.utilisation:.0%}"
    for blocked, seconds in sorted(found.waited.items(), key=lambda one: -one[1]):
        yield f"waited, {blocked}", duration(seconds)


def what_if_table(found: Mapping[str, Any]) -> Table:
    """The answer of ``GET /v1/cluster/what-if``: a row for each figure, now and with the added devices."""
    added = " + ".join(f"{count} × {kind}" for kind, count in found["added"].items())
    table = Table("", "now", plain(f"with {added}"), box=None, pad_edge=False)
    both = found["now"], found["then"]
    table.add_row("all done in", *(duration(one["makespan_seconds"]) for one in both))
    table.add_row("device-hours", *(f"{one['device_hours']:.3g}" for one in both))
    for kind in sorted({kind for one in both for kind in one["device_hours_by_kind"]}):
        hours = (one["device_hours_by_kind"].get(kind, 0.0) for one in both)
        table.add_row(plain(f"  on {kind}"), *(f"{one:.3g}" for one in hours))
    table.add_row("trials", *(str(one["num_trials"]) for one in both))
    table.add_row("that fit nowhere", *(str(one["num_never"]) for one in both))
    return table


def footnotes(found: Simulated) -> Iterator[str]:
    """Why trials did not train, whether the simulation ended, and what it assumes."""
    if found.why_unfinished:
        yield f"not finished: {found.why_unfinished}"
    yield from found.reasons[:MOST_REASONS]
    if (more := len(found.reasons) - MOST_REASONS) > 0:
        yield f"and {more} more"
    yield f"assumed: {'; '.join(found.assumed)}"
