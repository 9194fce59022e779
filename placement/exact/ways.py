"""The question that the search answers: devices, and the ways in which one stage could compute each unit.

A way is a spread of one stage over its ranks with a micro-batch, and what each unit then costs one rank. Whoever knows
the model fills in the numbers; nothing here knows where they come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from estimators.axes import Spread

Amounts = npt.NDArray[np.float64]

_MAY_BE_INFINITE = "recompute_seconds"


@dataclass(frozen=True, slots=True)
class Devices:
    """``count`` devices of one kind. A rank may hold ``capacity_bytes`` on each of them."""

    name: str
    count: int
    capacity_bytes: int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Costs:
    """Cost of each unit on one rank of a stage; arrays have one number for each unit, in the order of the model.

    ``forward_seconds`` and ``backward_seconds`` are for one micro-batch and include collectives that ranks wait for.
    ``kept_bytes`` are held for each micro-batch in flight. A unit that is recomputed takes ``recompute_seconds`` more
    and holds ``recomputed_kept_bytes`` instead; a unit that takes infinitely long is never recomputed.
    ``output_bytes`` are sent if the cut is behind the unit; the next stage then holds them as well, for each
    micro-batch in flight, and waits ``message_seconds`` for them and for their gradient to travel. ``update_seconds``
    pass once in a step, after the last backward pass: reductions of gradients and the optimizer.

    A stage also holds ``transient_bytes`` during a pass, and ``restored_bytes`` if it recomputes any unit: what the
    largest one holds during its own backward pass. ``closing_seconds`` pass on a stage once in a step.
    """

    forward_seconds: Amounts
    backward_seconds: Amounts
    state_bytes: Amounts
    kept_bytes: Amounts
    output_bytes: Amounts
    recompute_seconds: Amounts
    recomputed_kept_bytes: Amounts
    message_seconds: Amounts
    update_seconds: Amounts
    transient_bytes: float = 0.0
    restored_bytes: float = 0.0
    closing_seconds: float = 0.0

    def __post_init__(self) -> None:
        names = [axis.name for axis in fields(self)]
        try:
            rows = np.array([getattr(self, name) for name in names[:-3]], dtype=np.float64)
        except ValueError as error:
            raise ValueError("costs must have the same number of units in all arrays") from error
        singles = np.array([getattr(self, name) for name in names[-3:]], dtype=np.float64)
        rows.setflags(write=False)
        least = rows.min(initial=singles.min())
        if not (
            least >= 0
            and np.isfinite(singles).all()
            and np.isfinite(rows[[n != _MAY_BE_INFINITE for n in names[:-3]]]).all()
        ):
            raise ValueError("costs must not be negative or infinite: correct the costs of this way")
        for name, row in zip(names, rows, strict=False):
            object.__setattr__(self, name, row)

    @property
    def num_units(self) -> int:
        return len(self.forward_seconds)

    @property
    def pass_seconds(self) -> Amounts:
        """Seconds of both passes of one micro-batch."""
        return self.forward_seconds + self.backward_seconds


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """A spread of one stage over its ranks, with its costs on each kind of ``Devices``, in the order of these.

    ``spread`` has pp=1: the search chooses the number of stages, unless the costs hold for ``num_stages`` alone.
    """

    spread: Spread
    micro_batch: int
    costs: tuple[Costs, ...]
    num_stages: int | None = None

    def __post_init__(self) -> None:
        if self.spread.pp != 1:
            raise ValueError(f"the spread of a way is that of one stage and must have pp=1, got pp={self.spread.pp}")
        if len({costs.num_units for costs in self.costs}) != 1:
            raise ValueError("a way must have costs for each kind of devices, all of them for the same units")

    @property
    def num_ranks(self) -> int:
        """Ranks of each stage."""
        return self.spread.world_size

    @property
    def num_units(self) -> int:
        return self.costs[0].num_units

    @property
    def samples(self) -> int:
        """Samples in one micro-batch over all ranks of the stage."""
        return self.micro_batch * self.spread.num_shares


@dataclass(frozen=True, slots=True, eq=False)
class StagedWay:
    """A way with a number of stages, which run ``num_micro_batches`` as 1F1B does.

    No cut makes the times of all stages add up to less than ``least_seconds``, or a step faster than ``bound_seconds``.
    ``index`` is that of the way among those given.
    """

    way: Way
    num_stages: int
    num_micro_batches: int
    least_seconds: float
    bound_seconds: float
    index: int

    @property
    def num_ranks(self) -> int:
        """Ranks of all stages."""
        return self.num_stages * self.way.num_ranks

    @property
    def in_flight(self) -> Amounts:
        """Micro-batches that a stage holds at once, the last stage first.

        Without a pipeline there is one at a time.
        """
        held: Amounts = np.minimum(np.arange(1.0, self.num_stages + 1), self.num_micro_batches)
        return held


def list_staged_ways(ways: Sequence[Way], devices: Sequence[Devices], batch: int) -> list[StagedWay]:
    """The ways that divide ``batch``, with each number of stages that needs no more devices than there are.

    All ranks of a stage are on devices of one kind. 1F1B needs a micro-batch for each stage.
    """
    staged_ways: list[StagedWay] = []
    for index, way in enumerate(ways):
        if len(way.costs) != len(devices):
            raise ValueError(f"a way must have costs on each of {len(devices)} kinds of devices, got {len(way.costs)}")
        num, rest = divmod(batch, way.samples)
        most = min(way.num_units, num, sum(kind.count // way.num_ranks for kind in devices))
        if num and not rest and most >= (way.num_stages or 1):
            numbers = range(1, most + 1) if way.num_stages is None else [way.num_stages]
            staged_ways += _with_stages(way, numbers, num, index)
    return staged_ways


def _with_stages(way: Way, numbers: Iterable[int], num_micro_batches: int, index: int) -> Iterator[StagedWay]:
    """The way with each of these numbers of stages.

    With T(s) for the seconds of a micro-batch on stage s and U(s) for those that pass once, a step takes Σ T + max ((m
    − 1) T + U). The maximum is at least the mean, and at least that of a stage of any single unit.
    """
    more = num_micro_batches - 1
    times = np.minimum.reduce([costs.pass_seconds for costs in way.costs])
    updates = np.minimum.reduce([costs.update_seconds for costs in way.costs])
    closing = min(costs.closing_seconds for costs in way.costs)
    message = min(float(costs.message_seconds[:-1].min(initial=np.inf)) for costs in way.costs)
    total, update, slowest = float(times.sum()), float(updates.sum()), float((more * times + updates).max())
    for num in numbers:
        least = total + (num - 1) * message if num > 1 else total
        largest = max((more * least + update) / num, slowest) + closing
        yield StagedWay(way, num, num_micro_batches, least, least + largest, index)
