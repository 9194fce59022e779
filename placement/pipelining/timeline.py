"""The timeline of one optimizer step of a plan with a pipeline: what each rank does when, and what it holds meanwhile.

``PipelineStep`` has everything that the timeline follows from, and is small enough to be stored with a trial. Stages
are simulated as they are priced: a rank is busy with a pass until it has sent the result, and waits for other stages
meanwhile. Ranks that divide one stage do the same at the same time, so they share a row.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from estimators.devices.kind import sharing_factor
from estimators.model import Plan
from estimators.pipelining.passes import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Action
from estimators.pipelining.schedules import schedule_of, stages_of
from placement.pipelining.shared_cores import shared_clock
from placement.pipelining.simulator import Interval, Simulation, StageCost, simulate_step

INSTANT = 1e-9
"""Share of a step within which two times are the same: sums of the same numbers differ by rounding."""


@dataclass(frozen=True, slots=True)
class PassTime:
    """Seconds of one pass of a micro-batch on a rank of a stage.

    It computes, waits for ranks of its own stage as far as that is not hidden behind computation, and sends its result
    to the next or previous stage.
    """

    computing_seconds: float
    waiting_seconds: float = 0.0
    sending_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds for which the rank is busy with the pass."""
        return self.computing_seconds + self.communicating_seconds

    @property
    def communicating_seconds(self) -> float:
        """Seconds of the pass in which the rank does not compute."""
        return self.waiting_seconds + self.sending_seconds


@dataclass(frozen=True, slots=True)
class StageStep:
    """The cost of a micro-batch on a rank of one stage, and of the update at the end of the step.

    The rank holds ``state_bytes`` all the time, ``kept_bytes`` for each micro-batch between its passes, and
    ``passing_bytes`` while it computes.
    """

    forward: PassTime
    backward: PassTime
    update_seconds: float
    state_bytes: int = 0
    kept_bytes: int = 0
    passing_bytes: int = 0

    @property
    def cost(self) -> StageCost:
        """The cost for the simulator, with messages as parts of passes."""
        half = self.backward.seconds / 2
        return StageCost(
            self.forward.seconds, half, half, self.kept_bytes, 0, self.state_bytes, update_seconds=self.update_seconds
        )


@dataclass(frozen=True)
class PipelineStep:
    """One optimizer step of ``plan``, which has a pipeline. FLOPs may stand for seconds.

    All ranks share ``cores`` (None: each has a device for itself). Times are multiplied by ``factor``, which was
    learned.
    """

    plan: Plan
    stages: tuple[StageStep, ...]
    cores: float | None = None
    factor: float = 1.0

    @property
    def seconds(self) -> float:
        """Seconds of the step."""
        return self._now(self._simulation.makespan_seconds)

    def timeline(self) -> Timeline:
        """Lists the work of each stage over time."""
        return Timeline(self.seconds, tuple(map(self._row, range(self.plan.pp))), tuple(self._messages()))

    def to_json(self) -> dict[str, Any]:
        stages = [asdict(stage) for stage in self.stages]
        return {"plan": self.plan.to_json(), "stages": stages, "cores": self.cores, "factor": self.factor}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PipelineStep:
        stages = tuple(map(_stage_of, data["stages"]))
        return cls(Plan.from_json(data["plan"]), stages, data["cores"], data["factor"])

    def _row(self, index: int) -> StageRow:
        computing = [interval for interval in self._simulation.computing if interval.rank == index]
        ranks = tuple(rank for rank in range(self.plan.world_size) if self.plan.coordinate(rank, "pp") == index)
        return StageRow(ranks, tuple(map(self._passed, computing)), tuple(self._memory(index, computing)))

    def _passed(self, interval: Interval) -> Passed:
        start, end, action = interval.start_seconds, interval.end_seconds, interval.action
        if action is None:
            return Passed("update", None, self._now(start), self._now(end), self._now(end))
        communicating = self._communicating_seconds(action)
        return Passed(
            "forward" if action.kind == FORWARD else "backward",
            action.micro_batch,
            self._now(start),
            self._now(end),
            self._now(max(start, end - communicating)),
        )

    def _messages(self) -> Iterator[Message]:
        """Yield the messages, each of which ends with the pass whose result it has."""
        for interval in self._simulation.messages:
            assert interval.action is not None and interval.receiver is not None, "the update sends nothing"
            end = interval.end_seconds
            start = end - self._time(interval.action).sending_seconds
            yield Message(
                interval.rank, interval.receiver, interval.action.micro_batch, self._now(start), self._now(end)
            )

    def _memory(self, index: int, computing: Sequence[Interval]) -> Iterator[tuple[float, int]]:
        """Yield (seconds, bytes held from then on), where the bytes change."""
        changes: Counter[float] = Counter()
        before = 0
        for now, num_bytes in self._simulation.memory[index]:
            changes[now] += num_bytes - before
            before = num_bytes
        held_here = stages_of(self.plan.schedule, self.plan.pp, index)
        passing_bytes = max(self.stages[stage].passing_bytes for stage in held_here)
        for interval in computing:
            changes[interval.start_seconds] += passing_bytes
            changes[interval.end_seconds] -= passing_bytes
        times, instant = sorted(changes), INSTANT * self._simulation.makespan_seconds
        held, yielded = 0, -1
        for now, following in zip(times, [*times[1:], math.inf], strict=True):
            held += changes[now]
            if following - now > instant and held != yielded:
                yielded = held
                yield self._now(now), held

    def _time(self, action: Action) -> PassTime:
        stage = self.stages[action.stage]
        return stage.forward if action.kind == FORWARD else stage.backward

    def _communicating_seconds(self, action: Action) -> float:
        """Seconds of a pass in which the rank communicates; each part of a backward pass counts as half of it."""
        half = action.kind in (BACKWARD_INPUT, BACKWARD_WEIGHT)
        return self._time(action).communicating_seconds / (2 if half else 1)

    @cached_property
    def _simulation(self) -> Simulation:
        plan = self.plan
        schedule = schedule_of(plan.schedule, plan.pp, plan.num_micro_batches)
        return simulate_step(schedule, [stage.cost for stage in self.stages])

    @cached_property
    def _clock(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Simulated seconds, and those on shared cores at the same moments."""
        ranks_per_stage = self.plan.world_size // self.plan.pp
        pairs = np.array(shared_clock(self._simulation, lambda num: sharing_factor(num * ranks_per_stage, self.cores)))
        return pairs[:, 0], pairs[:, 1]

    def _now(self, simulated_seconds: float) -> float:
        """The time in the step at a simulated time."""
        return self.factor * float(np.interp(simulated_seconds, *self._clock))


@dataclass(frozen=True, slots=True)
class Passed:
    """A pass of one micro-batch, or the update of parameters (without one). The rank computes until
    ``communicating_from_seconds``, and communicates from then to the end."""

    kind: Literal["forward", "backward", "update"]
    micro_batch: int | None
    start_seconds: float
    end_seconds: float
    communicating_from_seconds: float


@dataclass(frozen=True, slots=True)
class Message:
    """The result of a pass on its way between two stages."""

    sender: int
    receiver: int
    micro_batch: int
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True)
class StageRow:
    """The ranks of one stage, what each of them does in the order of time, and the bytes that it holds from a time on.

    Nothing is between two passes if the rank waits for another stage.
    """

    ranks: tuple[int, ...]
    passes: tuple[Passed, ...]
    memory: tuple[tuple[float, int], ...]

    @property
    def peak_bytes(self) -> int:
        """Most bytes that one of the ranks holds at once."""
        return max(num_bytes for _, num_bytes in self.memory)


@dataclass(frozen=True, slots=True)
class Timeline:
    """One step of ``makespan_seconds``, with a row for each stage."""

    makespan_seconds: float
    rows: tuple[StageRow, ...]
    messages: tuple[Message, ...]

    @property
    def bubble_share(self) -> float:
        """Share (0 to 1) of the time of all ranks in which they wait for other stages."""
        return max(0.0, 1 - self._share(pass_.end_seconds - pass_.start_seconds for pass_ in self._passes()))

    @property
    def communication_share(self) -> float:
        """Share (0 to 1) of the time of all ranks in which they communicate and do not compute."""
        return self._share(pass_.end_seconds - pass_.communicating_from_seconds for pass_ in self._passes())

    @property
    def least_waiting_share(self) -> float:
        """Share (0 to 1) of the step in which ranks of the busiest stage communicate or wait for other stages."""
        computing = (
            sum(pass_.communicating_from_seconds - pass_.start_seconds for pass_ in row.passes) for row in self.rows
        )
        return max(0.0, 1 - max(computing) / self.makespan_seconds) if self.makespan_seconds else 0.0

    def waits(self, row: StageRow) -> Iterator[tuple[float, float]]:
        """The (start, end) in seconds of each time in which the ranks of a row wait for other stages."""
        begins = [*(pass_.start_seconds for pass_ in row.passes), self.makespan_seconds]
        ends = [0.0, *(pass_.end_seconds for pass_ in row.passes)]
        instant = INSTANT * self.makespan_seconds
        return ((end, begin) for end, begin in zip(ends, begins, strict=True) if begin - end > instant)

    def _passes(self) -> Iterator[Passed]:
        return (pass_ for row in self.rows for pass_ in row.passes)

    def _share(self, seconds: Iterable[float]) -> float:
        rank_seconds = self.makespan_seconds * len(self.rows)
        return sum(seconds) / rank_seconds if rank_seconds else 0.0


def _stage_of(data: Mapping[str, Any]) -> StageStep:
    passes = {name: PassTime(**data[name]) for name in ("forward", "backward")}
    return StageStep(**{**data, **passes})
