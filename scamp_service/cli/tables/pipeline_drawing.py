"""Draws a simulated pipeline as text: what each rank computes over time, where it waits, and what it holds."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from estimators.model import MIB
from estimators.pipelining.passes import BACKWARD_WEIGHT, FORWARD
from placement.pipelining.simulator import Interval, Simulation
from placement.refinement import Pipeline

BUBBLE, LATE, WEIGHTS, SHARED, UPDATE = "·", "~", "+", "%", "="
_LEVELS = "▁▂▃▄▅▆▇█"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def draw(pipeline: Pipeline, time: Callable[[float], str], width: int = 79) -> Iterator[str]:
    """Yield the lines of the drawing, none longer than ``width``. ``time`` puts an amount of time into words.

    A step with many passes is drawn in several sections, one below the other.
    """
    simulation = pipeline.simulation
    label = len(f"rank {simulation.num_ranks - 1} ")
    highest = max(simulation.peak_bytes)
    decimals = 1 if highest < 100 * MIB else 0
    peaks = [f" {peak / MIB:.{decimals}f} MiB" for peak in simulation.peak_bytes]
    columns = width - label - max(map(len, peaks))
    sections = _num_sections(simulation, columns)
    for section in range(sections):
        begin, end = (simulation.makespan_seconds * place / sections for place in (section, section + 1))
        start = time(begin) if section else "0"
        yield f"{'':{label}}{start}{time(end):>{columns - len(start)}}"
        for rank in range(simulation.num_ranks):
            yield f"{f'rank {rank}':<{label}}{_computing(pipeline, rank, _times(begin, end, columns))}"
        yield ""
    yield f"{'':{label}}memory held over the step; the full height is {highest / MIB:.{decimals}f} MiB"
    for rank, peak in enumerate(peaks):
        yield f"{f'rank {rank}':<{label}}{_memory(simulation, rank, columns)}{peak}"


def legend(pipeline: Pipeline) -> Iterator[str]:
    """Yield lines that explain the characters that are in the drawing."""
    actions = [interval.action for interval in pipeline.simulation.computing]
    kinds = {action.kind for action in actions if action is not None}
    words = ["a b c … forward, A B C … backward of micro-batches 1 2 3 …"]
    words += [f"{WEIGHTS} gradients of weights"] if BACKWARD_WEIGHT in kinds else []
    words += [f"{SHARED} shared layers"] if any(len(ranks) > 1 for ranks in pipeline.schedule.holders) else []
    words += [f"{UPDATE} update"] if None in actions else []
    words += [f"{BUBBLE} bubble"]
    words += [f"{LATE} waits for a message"] if pipeline.simulation.late else []
    line = ""
    for word in words:
        if line and len(line) + len(word) > 75:
            yield f"{line},"
            line = ""
        line += f", {word}" if line else word
    yield line


def _num_sections(simulation: Simulation, columns: int) -> int:
    """Number of sections, at most three: with three, most passes have one or two columns."""
    lengths = sorted(
        interval.end_seconds - interval.start_seconds
        for interval in simulation.computing
        if interval.action is not None
    )
    typical = lengths[len(lengths) // 4]
    if not typical:
        return 1
    return max(1, min(3, math.ceil(1.5 * simulation.makespan_seconds / typical / columns)))


def _computing(pipeline: Pipeline, rank: int, times: Sequence[float]) -> str:
    computing = [span for span in pipeline.simulation.computing if span.rank == rank]
    late = [span for span in pipeline.simulation.late if span.rank == rank]
    shared = {stage for stage, ranks in enumerate(pipeline.schedule.holders) if len(ranks) > 1}
    drawn = ""
    for now in times:
        interval = _at(computing, now)
        if interval is not None:
            drawn += _character(interval, shared)
        else:
            drawn += BUBBLE if _at(late, now) is None else LATE
    return drawn


def _character(interval: Interval, shared: set[int]) -> str:
    action = interval.action
    if action is None:
        return UPDATE
    if action.stage in shared:
        return SHARED
    if action.kind == BACKWARD_WEIGHT:
        return WEIGHTS
    letter = _LETTERS[action.micro_batch % len(_LETTERS)]
    return letter if action.kind == FORWARD else letter.upper()


def _memory(simulation: Simulation, rank: int, columns: int) -> str:
    """The most that is held in the time of each column."""
    held, most = simulation.memory[rank], max(1, *simulation.peak_bytes)
    starts = [now for now, _ in held]
    drawn = ""
    for column in range(columns):
        begin, end = (simulation.makespan_seconds * place / columns for place in (column, column + 1))
        first, last = max(0, bisect_right(starts, begin) - 1), bisect_right(starts, end)
        highest = max(num_bytes for _, num_bytes in held[first : max(last, first + 1)])
        drawn += _LEVELS[max(0, -(-highest * len(_LEVELS) // most) - 1)]
    return drawn


def _times(begin: float, end: float, columns: int) -> list[float]:
    """The middle of each column."""
    return [begin + (end - begin) * (column + 0.5) / columns for column in range(columns)]


def _at(intervals: Sequence[Interval], now: float) -> Interval | None:
    """The interval that contains a time; they are in the order of time."""
    place = bisect_right(intervals, now, key=lambda interval: interval.start_seconds) - 1
    return intervals[place] if place >= 0 and intervals[place].end_seconds > now else None
