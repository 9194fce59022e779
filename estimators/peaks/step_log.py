"""The allocations of a training run for any micro-batch, stored beside the peak curve.

It is made from traced steps of a few micro-batches whose sizes are affine in the micro-batch. ``run`` puts the parts in
the order in which a process runs them: two steps, where the first makes the optimizer's states in memory that its
passes have freed. This order, and not only the peak, decides how fragmented an allocator's memory becomes. Nothing is
traced or allocated here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from estimators.peaks.depth import Passes
from estimators.peaks.envelope import WORKSPACE, EventLog, event_lines

_Events = tuple[tuple[int, int], ...]  # (buffer, index in the table of sizes of what it holds from now on)


@dataclass(frozen=True, slots=True)
class StepLog:
    """The events of a step's parts, with sizes as indices into a table."""

    sizes: tuple[tuple[int, int, int], ...]
    """(fixed bytes, bytes per sample, stream that they are allocated on); the first is all zeros."""
    held: _Events
    """Parameters and other buffers that exist before the first step."""
    states: _Events
    """States of the optimizer."""
    passes: _Events
    """Forward and backward passes of a step."""
    update: _Events
    """Buffers that the optimizer needs temporarily."""
    single: StepLog | None = None
    """The log of one sample; None if it lies on the same lines as the others."""

    def __post_init__(self) -> None:
        places = {place for part in (self.held, self.states, self.passes, self.update) for _, place in part}
        if not places <= set(range(len(self.sizes))):
            raise ValueError("the events do not match their table of sizes")

    def run(self, micro_batch: int) -> EventLog:
        """The log of two optimizer steps from the start of a process."""
        if micro_batch == 1 and self.single is not None:
            return self.single.run(1)
        sizes = [max(0, fixed + slope * micro_batch) for fixed, slope, _ in self.sizes]
        lasting = {buffer for buffer, _ in self.held + self.states}
        step = self.passes + self.update
        left = [buffer for buffer, place in dict(step).items() if sizes[place] and buffer not in lasting]
        end = tuple((buffer, 0) for buffer in left)  # zero_grad, and the batch
        events = self.held + self.passes + self.states + self.update + end + step + end
        return [(buffer, sizes[place]) for buffer, place in events]

    def streams(self, micro_batch: int) -> Mapping[int, int]:
        """The stream of each buffer of ``run`` that is not allocated on the compute stream, 0."""
        if micro_batch == 1 and self.single is not None:
            return self.single.streams(1)
        streams = [stream for _, _, stream in self.sizes]
        events = self.held + self.states + self.passes + self.update if any(streams) else ()
        return {buffer: streams[place] for buffer, place in events if streams[place]}


def log_of(passes: Mapping[int, Passes], single: Passes, update: EventLog) -> StepLog:
    """The step log of passes of several micro-batches, which ``fit_envelope`` found to be affine, and of one sample.

    ``update`` are the events of the buffers that the optimizer makes, numbered from 0. Workspaces are left out.
    """
    logs = {size: step.events for size, step in passes.items()}
    events, lines = event_lines(logs, {size: step.categories for size, step in passes.items()})
    log = _compact(passes[min(passes)], events, lines, update)
    # The workspaces of a CPU's convolutions are not those of a GPU's.
    of_one = [event for event in single.events if single.categories[event[0]] != WORKSPACE]
    alone = _compact(single, of_one, [(size, 0) for _, size in of_one], update)
    same = log.run(1) == alone.run(1) and log.streams(1) == alone.streams(1)
    return log if same else replace(log, single=alone)


def _compact(passes: Passes, logged: EventLog, lines: Sequence[tuple[int, int]], update: EventLog) -> StepLog:
    """The log of these events of the passes, without workspaces, whose sizes have these lines."""
    table = {(0, 0, 0): 0}
    stream_of = passes.streams.get
    events = [
        (buffer, table.setdefault((fixed, slope, stream_of(buffer, 0)), len(table)))
        for (buffer, _), (fixed, slope) in zip(logged, lines, strict=True)
    ]
    first = len(passes.categories)
    updated = tuple((first + buffer, table.setdefault((size, 0, 0), len(table))) for buffer, size in update)
    before = events[: passes.num_before]
    states = tuple(event for event in before if passes.categories[event[0]] == "optimizer")
    held = tuple(event for event in before if passes.categories[event[0]] != "optimizer")
    return StepLog(tuple(table), held, states, tuple(events[passes.num_before :]), updated)
