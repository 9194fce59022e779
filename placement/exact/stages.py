"""Cuts a model into stages exactly: the fastest step within the memory of the devices, with recompute of single units.

A step of m micro-batches through stages with T(s) seconds for a micro-batch and U(s) that pass once takes

    Σ T(s) + max ((m − 1) · T(s) + U(s)).

Recompute changes the sum, so the smallest sum and the smallest maximum may need different cuts. For each limit of the
maximum a dynamic program finds the smallest sum. The sum falls as the limit rises, so limits between two with the same
sum, or with one that is too large, are left out, and the others are bisected.

Tables have a row for each number of units of a stage and a column for its first unit. Rows beyond what time and memory
allow are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from placement.exact.dynamic_programs import SAME, Program, Table
from placement.exact.recompute import Recompute
from placement.exact.ways import Amounts, Costs, Devices, StagedWay

_Bound = Literal["exact", "below", "above"]


@dataclass(frozen=True, slots=True)
class CutStage:
    """Units [start, end) on one kind of devices, those of them that are recomputed, and the bytes of one rank.

    Each micro-batch takes ``seconds``, with recompute; ``once_seconds`` pass once in a step.
    """

    start: int
    end: int
    kind: int
    recomputed: tuple[int, ...]
    seconds: float
    once_seconds: float
    peak_bytes: float


@dataclass(frozen=True, slots=True)
class Optimum:
    """Smallest sum of stage times, and the maximum that the slowest stage adds to it."""

    sum_seconds: float
    largest_seconds: float

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        return self.sum_seconds + self.largest_seconds


class Recomputes(dict[Costs, Recompute]):
    """One ``Recompute`` for each ``Costs``, made when it is first needed."""

    def __missing__(self, costs: Costs) -> Recompute:
        return self.setdefault(costs, Recompute(costs))


def fastest(
    staged: StagedWay, devices: Sequence[Devices], recomputes: Recomputes, limit_seconds: float
) -> tuple[Optimum | None, bool]:
    """The fastest step of all cuts within ``limit_seconds``; None if there is none.

    The second value says whether a slower cut could exist.
    """
    room_seconds, sum_seconds = (limit_seconds - staged.least_seconds) * SAME, np.inf
    if any(recomputes[costs].num_types > 1 for costs in staged.way.costs):
        room_seconds, sum_seconds = _smaller_room(staged, devices, recomputes, room_seconds, limit_seconds)
    tables, may_be_slower = _tables(staged, devices, recomputes, room_seconds, sum_seconds)
    if not tables:
        return None, may_be_slower
    program = Program(staged, devices, tables)
    best = _optimum(program, room_seconds, staged.least_seconds)
    if best.seconds > limit_seconds * SAME or best.seconds == np.inf:
        return None, may_be_slower or best.largest_seconds < np.inf
    return best, False


def _smaller_room(
    staged: StagedWay, devices: Sequence[Devices], recomputes: Recomputes, room_seconds: float, limit_seconds: float
) -> tuple[float, float]:
    """The room that is left for the maximum, and for the sum, by bounds of the time of recompute.

    A choice of units of several types takes long to find, so the fewest possible stages are examined.
    """
    low, high = (_tables(staged, devices, recomputes, room_seconds, bound=bound)[0] for bound in ("below", "above"))
    if not low:
        return room_seconds, np.inf
    program = Program(staged, devices, low)
    least = program.smallest_sum(room_seconds)
    optimum = _optimum(Program(staged, devices, high), room_seconds, staged.least_seconds)
    limit_seconds = min(limit_seconds, optimum.seconds)
    return min(room_seconds, (limit_seconds - least) * SAME), (limit_seconds - program.smallest_maximum()) * SAME


def _optimum(program: Program, room_seconds: float, least_seconds: float) -> Optimum:
    """The fastest step whose maximum is within ``room_seconds``; the sum is infinite if there is none.

    Sums are at least ``least_seconds``.
    """
    least = program.smallest_maximum()
    if least > room_seconds or least == np.inf:
        return Optimum(np.inf, least)
    best = Optimum(program.smallest_sum(least), least)
    highest = min(room_seconds, best.seconds - least_seconds)
    for optimum in _better(program, best, highest):
        best = min(best, optimum, key=lambda candidate: candidate.seconds)
    return best


def best_stages(
    staged: StagedWay, devices: Sequence[Devices], recomputes: Recomputes, optimum: Optimum
) -> tuple[CutStage, ...]:
    """The stages of a step as fast as ``optimum``.

    Of cuts that take the same time, the one that sends fewest bytes is taken, then the most even one, then the one
    whose later stages have more units.
    """
    tables, _ = _tables(staged, devices, recomputes, optimum.largest_seconds * SAME, optimum.sum_seconds * SAME)
    cut = Program(staged, devices, tables).traced_back(optimum.largest_seconds)
    stages, start = [], 0
    for index, (num_units, kind) in enumerate(cut):
        in_flight = float(staged.in_flight[staged.num_stages - 1 - index])
        costs, capacity_bytes = staged.way.costs[kind], devices[kind].capacity_bytes
        stages.append(_stage(costs, recomputes[costs], kind, start, start + num_units, in_flight, capacity_bytes))
        start += num_units
    return tuple(stages)


def _better(program: Program, lowest: Optimum, highest: float) -> Iterator[Optimum]:
    """Yield all that could be faster than ``lowest``, which has the smallest maximum of all cuts.

    No maximum above ``highest`` can be faster.
    """
    at_most = program.smallest_sum(highest)
    if at_most * SAME >= lowest.sum_seconds:
        return
    levels = program.maxima(lowest.largest_seconds, highest)
    best = lowest.seconds
    open_ones = [(-1, len(levels) - 1, lowest.sum_seconds, at_most)]  # the lowest level itself comes before the others
    if len(levels):
        yield (optimum := Optimum(at_most, float(levels[-1])))
        best = min(best, optimum.seconds)
    while open_ones:
        low, high, sum_low, sum_high = open_ones.pop()
        if high - low < 2 or sum_high * SAME >= sum_low or sum_high + levels[low + 1] >= best:
            continue
        middle = (low + high) // 2
        optimum = Optimum(program.smallest_sum(float(levels[middle])), float(levels[middle]))
        yield optimum
        best = min(best, optimum.seconds)
        open_ones += [(low, middle, sum_low, optimum.sum_seconds), (middle, high, optimum.sum_seconds, sum_high)]


def _tables(
    staged: StagedWay,
    devices: Sequence[Devices],
    recomputes: Recomputes,
    room_seconds: float,
    sum_seconds: float = np.inf,
    bound: _Bound = "exact",
) -> tuple[list[Table], bool]:
    """A table for each kind of devices, for stages that add up to ``room_seconds``; empty if no such cut exists.

    Stages of cuts whose times add up to more than ``sum_seconds`` may be left out.

    The second value says whether stages that add more are missing in the tables, but have enough memory.
    """
    most = staged.way.num_units - staged.num_stages + 1
    pairs = list(zip(staged.way.costs, devices, strict=True))
    by_memory = min(most, max(_most_by_memory(costs, table_devices.capacity_bytes) for costs, table_devices in pairs))
    if by_memory * staged.num_stages < staged.way.num_units:
        return [], False
    by_time = min(most, max(_most_by_time(costs, staged.num_micro_batches, room_seconds) for costs, _ in pairs))
    num = min(by_memory, by_time)
    if num * staged.num_stages < staged.way.num_units:
        return [], True
    tables = []
    for costs, kind_devices in pairs:
        rows = _Rows(staged, costs, num)
        sum_room = sum_seconds if len(pairs) == 1 else np.inf  # with more kinds, others may be faster
        tables.append(rows.table(kind_devices.capacity_bytes, recomputes[costs], room_seconds, sum_room, bound))
    return tables, by_time < by_memory or (room_seconds < np.inf and any(recomputes[c].num_types > 1 for c, _ in pairs))


def _most_by_memory(costs: Costs, capacity_bytes: float) -> int:
    kept_bytes = np.minimum(costs.kept_bytes, costs.recomputed_kept_bytes)
    return _longest(costs.state_bytes + kept_bytes, capacity_bytes - costs.transient_bytes)


def _most_by_time(costs: Costs, num_micro_batches: int, room_seconds: float) -> int:
    added = (num_micro_batches - 1) * costs.pass_seconds + costs.update_seconds
    return _longest(added, room_seconds - costs.closing_seconds)


def _longest(amounts: Amounts, most: float) -> int:
    """Largest number of neighbours with a sum of at most ``most``."""
    if most < 0:
        return 0
    total = _summed(amounts)
    ends = np.searchsorted(total, (total[:-1] + most) * SAME, side="right")
    return int((ends - np.arange(1, len(total))).max())


def _summed(amounts: Amounts) -> Amounts:
    return np.concatenate([[0.0], np.cumsum(amounts)])


class _Rows:
    """All stages of up to ``num_rows`` units, on one kind of devices."""

    def __init__(self, staged: StagedWay, costs: Costs, num_rows: int) -> None:
        self._staged, self._costs = staged, costs
        self._starts = np.arange(costs.num_units)
        ends = self._starts + np.arange(1, num_rows + 1)[:, None]
        self._possible, self._ends = ends <= costs.num_units, np.minimum(ends, costs.num_units)

    def table(
        self, capacity_bytes: float, recompute: Recompute, room_seconds: float, sum_seconds: float, bound: _Bound
    ) -> Table:
        """Times with the least recompute, or bounds of it. Stages that add more than the room may be left out."""
        costs, in_flight = self._costs, self._staged.in_flight[:, None, None]
        received = np.concatenate([[0.0], costs.output_bytes[:-1]])
        waits = np.concatenate([[0.0], costs.message_seconds[:-1]])
        fixed_bytes = self._between(costs.state_bytes) + (costs.transient_bytes - capacity_bytes)
        held_bytes = self._between(costs.kept_bytes) + received
        seconds = np.where(self._possible, self._between(costs.pass_seconds) + waits, np.inf)[None]
        if not ((fixed_bytes + in_flight.max() * held_bytes)[self._possible] <= 0).all():
            over = fixed_bytes + in_flight * held_bytes
            need = np.where((over > 0) & self._possible, (over + costs.restored_bytes) / in_flight, 0.0)
            if recompute.num_types > 1:
                seconds = seconds + self._recompute_seconds(seconds, need, recompute, room_seconds, sum_seconds, bound)
            else:
                seconds = seconds + recompute.least_seconds(self._starts, self._ends, need)
        return Table(seconds, self._added(seconds), received)

    def _between(self, amounts: Amounts) -> Amounts:
        total = _summed(amounts)
        sums: Amounts = total[self._ends] - total[self._starts]
        return sums

    def _added(self, seconds: Amounts) -> Amounts:
        """Seconds that stages with these times add to the step, if they are the slowest."""
        once = self._between(self._costs.update_seconds) + self._costs.closing_seconds
        more = self._staged.num_micro_batches - 1
        return more * seconds + once if more else np.where(np.isfinite(seconds), once, np.inf)

    def _recompute_seconds(
        self,
        seconds: Amounts,
        need: Amounts,
        recompute: Recompute,
        room_seconds: float,
        sum_seconds: float,
        bound: _Bound,
    ) -> Amounts:
        """Extra seconds, or bounds; exact ones are found only for stages that can be part of a cut within the room."""
        reachable = self._reachable()
        short = reachable & (need > 0)
        low, high = (np.where(reachable, 0.0, np.inf) for _ in range(2))
        starts, ends = (np.broadcast_to(table, need.shape)[short] for table in (self._starts, self._ends))
        low[short], high[short] = recompute.bounds(starts, ends, need[short])
        if bound != "exact":
            return low if bound == "below" else high
        low[self._added(seconds + low) > room_seconds * SAME] = np.inf
        if sum_seconds < np.inf:
            low[_sums_through(seconds + low) > sum_seconds * SAME] = np.inf
        between = np.isfinite(low) & (low < high)
        exact = recompute.least_seconds(self._starts, self._ends, np.where(between, need, 0.0))
        return np.where(between, exact, low)

    def _reachable(self) -> npt.NDArray[np.bool_]:
        """Whether every other stage still has a unit; the first and the last stage begin and end the model."""
        ahead = np.arange(self._staged.num_stages)[:, None, None]  # of the stages behind this one
        before, num_units = self._staged.num_stages - 1 - ahead, self._costs.num_units
        starts_well = np.where(before > 0, self._starts >= before, self._starts == 0)
        ends_well = np.where(ahead > 0, self._ends <= num_units - ahead, self._ends == num_units)
        reachable: npt.NDArray[np.bool_] = self._possible & starts_well & ends_well
        return reachable


def _sums_through(seconds: Amounts) -> Amounts:
    """Smallest sum of stage times of all cuts with this stage, by distance from the last one."""
    num_stages, num_rows, num_units = seconds.shape
    before = np.full((num_stages, num_units + 1), np.inf)
    behind = np.full((num_stages, num_units + num_rows + 1), np.inf)
    before[-1, 0] = behind[0, num_units] = 0.0
    windows = np.lib.stride_tricks.sliding_window_view(behind[:, 1:], num_units, axis=-1)[:, :num_rows]
    for distance in range(1, num_stages):
        behind[distance, :num_units] = (seconds[distance - 1] + windows[distance - 1]).min(axis=0)
    for distance in range(num_stages - 1, 0, -1):
        sums, ends = before[distance, :-1] + seconds[distance], before[distance - 1]
        for row in range(num_rows):
            np.minimum(ends[row + 1 :], sums[row, : num_units - row], out=ends[row + 1 :])
    through: Amounts = before[:, None, :-1] + seconds + windows
    return through


def _stage(
    costs: Costs, recompute: Recompute, kind: int, start: int, end: int, in_flight: float, capacity_bytes: float
) -> CutStage:
    received = float(costs.output_bytes[start - 1]) if start else 0.0
    waits = float(costs.message_seconds[start - 1]) if start else 0.0
    here = slice(start, end)
    held = float(costs.kept_bytes[here].sum()) + received
    peak = float(costs.state_bytes[here].sum()) + costs.transient_bytes + in_flight * held
    over = peak - capacity_bytes
    recomputed = recompute.units(start, end, (over + costs.restored_bytes) / in_flight) if over > 0 else ()
    saved, extra = 0.0, 0.0
    if recomputed:
        chosen = list(recomputed)
        unit_bytes = float((costs.kept_bytes[chosen] - costs.recomputed_kept_bytes[chosen]).sum())
        saved, extra = in_flight * unit_bytes - costs.restored_bytes, float(costs.recompute_seconds[chosen].sum())
    seconds = float(costs.pass_seconds[here].sum()) + waits + extra
    once = float(costs.update_seconds[here].sum()) + costs.closing_seconds
    return CutStage(
        start=start,
        end=end,
        kind=kind,
        recomputed=recomputed,
        seconds=seconds,
        once_seconds=once,
        peak_bytes=peak - saved,
    )
