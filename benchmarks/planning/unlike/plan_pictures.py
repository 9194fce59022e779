"""Draws a step of several plans below each other, in one scale, as SVG."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

from benchmarks.planning.unlike.drafts import Planned, rows_of
from benchmarks.planning.unlike.emerging import Model
from estimators.pipelining.passes import FORWARD

_WIDTH, _LEFT, _ROW, _MOST_ROWS = 900, 10, 11, 8
_COLOURS = {
    "samples": ("#9ec5fe", "#3d7fd9"),
    "layers": ("#ffd08a", "#e08a1e"),
    "layers and tokens": ("#fbe58a", "#c9a400"),
    "space": ("#a8e0b0", "#3a9d4f"),
    "pipeline": ("#d5c6f2", "#8a63d2"),
}
"""Colours of forward and of backward passes, by what the ranks divide."""

_Bar = tuple[float, float, str]


def picture(title: str, model: Model, plans: Sequence[tuple[str, Planned]]) -> str:
    """A step of each plan. A plan without a pipeline has one row, a pipeline up to eight of its ranks."""
    longest = max(plan.seconds for _, plan in plans)
    lines, top = [_text(_LEFT, 18, title, 14)], 30
    used: set[str] = set()
    for name, plan in plans:
        rows = _rows(model, plan)
        used |= {bar[2].split("|")[0] for row in rows for bar in row}
        lines.append(_text(_LEFT, top + 12, f"{name}, {plan.seconds:.1f} s: {plan.words}", 10))
        top += 18
        for row in rows:
            lines += _paths(row, top, _WIDTH / longest)
            top += _ROW
        top += 10
    legend, top = _legend([name for name in _COLOURS if name in used], top)
    size, lines = f'width="{_WIDTH + 2 * _LEFT}" height="{top}"', [*lines, *legend]
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif"><title>{escape(title)}</title>'
    return "\n".join([opening, '<rect width="100%" height="100%" fill="white"/>', *lines, "</svg>"]) + "\n"


def _rows(model: Model, plan: Planned) -> list[list[_Bar]]:
    if plan.simulation is None:
        return [list(_flat(model, plan))]
    shown = sorted({round(place * (plan.simulation.num_ranks - 1) / (_MOST_ROWS - 1)) for place in range(_MOST_ROWS)})
    rows: dict[int, list[_Bar]] = {rank: [] for rank in shown}
    for span in plan.simulation.computing:
        if span.rank in rows and span.action is not None:
            way = "forward" if span.action.kind == FORWARD else "backward"
            rows[span.rank].append((span.start_seconds, span.end_seconds, f"pipeline|{way}"))
    return list(rows.values())


def _flat(model: Model, plan: Planned) -> Iterator[_Bar]:
    """Yield the passes of all micro-batches, one for each run of units that divide alike."""
    rows = rows_of(model, plan.styles, plan.grid, plan.samples)
    runs = [
        (name, [place for place, _ in places])
        for name, places in groupby(enumerate(plan.styles), key=lambda pair: _divided(pair[1].inner))
    ]
    now = 0.0
    for _ in range(plan.num_micro_batches):
        for amounts, way, order in ((rows.forward, "forward", runs), (rows.backward, "backward", runs[::-1])):
            for name, places in order:
                seconds = float(amounts[places].sum())
                yield now, now + seconds, f"{name}|{way}"
                now += seconds


def _divided(inner: str) -> str:
    return "samples" if inner == "data" else inner


def _paths(row: Sequence[_Bar], top: int, scale: float) -> Iterator[str]:
    """Yield one path for each colour; bars that touch in the picture are joined."""
    joined: dict[str, list[list[float]]] = defaultdict(list)
    for start, end, name in sorted(row):
        left, right = round(start * scale, 1), round(end * scale, 1)
        bars = joined[name]
        if bars and left - bars[-1][1] < 0.5 and right - left < 2:
            bars[-1][1] = max(right, bars[-1][1])
        elif right > left:
            bars.append([left, right])
    for name, bars in joined.items():
        family, way = name.split("|")
        colour = _COLOURS[family][way == "backward"]
        path = "".join(
            f"M{left + _LEFT:g} {top}h{right - left:.1f}v{_ROW - 2}h-{right - left:.1f}z" for left, right in bars
        )
        yield f'<path fill="{colour}" d="{path}"/>'


def _legend(names: Sequence[str], top: int) -> tuple[list[str], int]:
    """Explains the colours in lines of four, and where they end."""
    lines = []
    pairs = [(name, place) for name in names for place in (0, 1)]
    for number, (name, place) in enumerate(pairs):
        left, above = _LEFT + number % 4 * _WIDTH // 4, top + number // 4 * 16
        said = f"{'stages' if name == 'pipeline' else f'ranks divide {name}'}, {('forward', 'backward')[place]}"
        lines.append(f'<rect x="{left}" y="{above}" width="10" height="10" fill="{_COLOURS[name][place]}"/>')
        lines.append(_text(left + 14, above + 9, said, 10))
    return lines, top + (len(pairs) + 3) // 4 * 16 + 4


def _text(left: float, bottom: float, words: str, size: int) -> str:
    return f'<text x="{left}" y="{bottom}" font-size="{size}">{escape(words)}</text>'
