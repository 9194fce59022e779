"""Draws a simulation as a Gantt chart in SVG: a row for each device, a bar for each attempt, lanes where they share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from scamp.shown import duration
from scamp_service.simulation.outcome import Simulated, Span

WIDTH, LEFT, TOP, ROW, GAP, FOOT = 1200, 130, 44, 18, 3, 28
COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#76b7b2", "#edc948", "#b07aa1", "#ff9da7", "#9c755f", "#86bcb6", "#d37295")
"""Colours of bars, by the trial's number; the palette is Tableau 10."""
MOST_TICKS = 8


def write_gantt(file: Path, simulations: Sequence[tuple[str, Simulated]]) -> None:
    """Write the charts of simulations, one below the other with its title. A file ``*.svg`` holds the first alone."""
    drawn = [gantt_svg(title, simulated) for title, simulated in simulations]
    if file.suffix == ".svg":
        file.write_text(drawn[0])
        return
    charts = "\n".join(f"<p>{svg}</p>" for svg in drawn)
    file.write_text(f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Simulation</title>{charts}</html>\n')


def gantt_svg(title: str, simulated: Simulated) -> str:
    """The chart as one SVG element. Each bar's tooltip names the trial, its plan, and when it ran."""
    return "\n".join(_elements(title, simulated))


def _elements(title: str, simulated: Simulated) -> Iterator[str]:
    devices = simulated.cluster.devices
    height = TOP + len(devices) * (ROW + GAP) + FOOT
    makespan = simulated.makespan or 1.0
    scale = (WIDTH - LEFT - 10) / makespan
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="11">'
    )
    yield f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>'
    yield f'<text x="10" y="20" font-size="14">{escape(title)}: {_summary(simulated)}</text>'
    for tick in _ticks(makespan):
        x = LEFT + tick * scale
        yield f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{height - FOOT}" stroke="#ddd"/>'
        yield f'<text x="{x:.1f}" y="{height - 10}" text-anchor="middle">{duration(tick)}</text>'
    for row, device in enumerate(devices):
        y = TOP + row * (ROW + GAP)
        yield f'<text x="{LEFT - 6}" y="{y + ROW - 5}" text-anchor="end">{escape(f"{device.id} {device.kind}")}</text>'
        yield f'<rect x="{LEFT}" y="{y}" width="{makespan * scale:.1f}" height="{ROW}" fill="#f4f4f4"/>'
        lanes = _lanes([span for span in simulated.spans if device.id in span.devices])
        tall = ROW / max(1, len(lanes))
        for lane, spans in enumerate(lanes):
            for span in spans:
                width = max(0.5, (span.end - span.start) * scale)
                fade = ' opacity="0.55"' if span.ending == "stopped" else ""
                yield (
                    f'<rect x="{LEFT + span.start * scale:.1f}" y="{y + lane * tall:.1f}" width="{width:.1f}" '
                    f'height="{tall:.1f}" fill="{COLOURS[span.trial % len(COLOURS)]}" stroke="#fff" '
                    f'stroke-width="0.4"{fade}><title>{escape(_words(span))}</title></rect>'
                )
    yield "</svg>"


def _words(span: Span) -> str:
    when = f"{duration(span.start)} to {duration(span.end)}"
    again = f", attempt {span.attempt}" if span.attempt > 1 else ""
    return f"study {span.study}, trial {span.trial}{again}: {span.plan}, {span.mib_per_rank} MiB; {when}, {span.ending}"


def _summary(simulated: Simulated) -> str:
    return (
        f"makespan {duration(simulated.makespan)}, {simulated.device_seconds / 3600:.3g} device-hours, "
        f"{simulated.utilisation:.0%} of devices busy"
    )


def _lanes(spans: Sequence[Span]) -> list[list[Span]]:
    """The spans of one device in as few lanes as possible, so that none overlap in a lane."""
    lanes: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: (span.start, span.trial)):
        free = next((lane for lane in lanes if lane[-1].end <= span.start + 1e-9), None)
        if free is None:
            lanes.append([span])
        else:
            free.append(span)
    return lanes


def _ticks(seconds: float) -> Iterator[float]:
    step = next(interval for interval in _steps() if seconds / interval <= MOST_TICKS)
    number = 0
    while number * step <= seconds:
        yield number * step
        number += 1


def _steps() -> Iterator[float]:
    unit = 1e-3
    while unit < 1:
        yield from (unit, 2 * unit, 5 * unit)
        unit *= 10
    yield from (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200)
    day = 86_400.0
    while True:
        yield from (day, 2 * day, 5 * day)
        day *= 10
