"""The table of simulations: a row for each figure, a column for each simulation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from scamp.cli.terminal import plain
from scamp.shown import duration
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


def footnotes(simulated: Simulated) -> Iterator[str]:
    """Why trials did not train, whether the simulation ended, and what it assumes."""
    if simulated.why_unfinished:
        yield f"not finished: {simulated.why_unfinished}"
    yield from simulated.reasons[:MOST_REASONS]
    if (more := len(simulated.reasons) - MOST_REASONS) > 0:
        yield f"and {more} more"
    yield f"assumed: {'; '.join(simulated.assumed)}"
