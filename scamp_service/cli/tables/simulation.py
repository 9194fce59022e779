"""The table of simulations: a row for each figure, a column for each simulation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from scamp_service.cli.terminal import plain
from scamp_service.simulation.gantt import duration
from scamp_service.simulation.outcome import Simulated

MOST_REASONS = 3


def as_table(simulations: Sequence[tuple[str, Simulated]]) -> Table:
    """A column of figures under the title of each simulation, and a row for each figure that any of them has."""
    columns = [(title, dict(_rows(simulated))) for title, simulated in simulations]
    table = Table(box=None, pad_edge=False, show_header=any(title for title, _ in columns))
    table.add_column("")
    for title, _ in columns:
        table.add_column(plain(title), justify="right")
    for name in dict.fromkeys(name for _, figures in columns for name in figures):
        table.add_row(name, *(figures.get(name, "") for _, figures in columns))
    return table


def _rows(simulated: Simulated) -> Iterator[tuple[str, str]]:
    yield "makespan", duration(simulated.makespan)
    yield "device-hours", f"{simulated.device_seconds / 3600:.3g}"
    yield "devices busy", f"{simulated.utilisation:.0%}"
    yield "in communication", f"{simulated.communication_share:.1%}"
    for state, count in sorted(simulated.states.items(), key=lambda item: -item[1]):
        yield f"trials {state.lower()}", str(count)
    for devices, count in simulated.trials_by_devices.items():
        yield f"trials on {devices} device{'s' * (devices > 1)}", str(count)
    for blocked, seconds in sorted(simulated.waited.items(), key=lambda item: -item[1]):
        yield f"waited, {blocked}", duration(seconds)


def what_if_table(answer: Mapping[str, Any]) -> Table:
    """The answer of ``GET /v1/cluster/what-if``: a row for each figure, now and with the added devices."""
    added = " + ".join(f"{count} × {kind}" for kind, count in answer["added"].items())
    table = Table("", "now", plain(f"with {added}"), box=None, pad_edge=False)
    both = answer["now"], answer["then"]
    table.add_row("all done in", *(duration(forecast["makespan_seconds"]) for forecast in both))
    table.add_row("device-hours", *(f"{forecast['device_hours']:.3g}" for forecast in both))
    for kind in sorted({kind for forecast in both for kind in forecast["device_hours_by_kind"]}):
        hours = (forecast["device_hours_by_kind"].get(kind, 0.0) for forecast in both)
        table.add_row(plain(f"  on {kind}"), *(f"{hour:.3g}" for hour in hours))
    table.add_row("trials", *(str(forecast["num_trials"]) for forecast in both))
    table.add_row("that fit nowhere", *(str(forecast["num_never"]) for forecast in both))
    return table


def footnotes(simulated: Simulated) -> Iterator[str]:
    """Why trials did not train, whether the simulation ended, and what it assumes."""
    if simulated.why_unfinished:
        yield f"not finished: {simulated.why_unfinished}"
    yield from simulated.reasons[:MOST_REASONS]
    if (more := len(simulated.reasons) - MOST_REASONS) > 0:
        yield f"and {more} more"
    yield f"assumed: {'; '.join(simulated.assumed)}"
