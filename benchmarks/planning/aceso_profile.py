"""Costs for the search from Aceso's published profile of GPT models on V100 GPUs (Liu et al., EuroSys 2024).

The profile is a folder of CSV files in a checkout that the user names: for each micro-batch and tensor parallel degree,
microseconds and MB of every operator of one layer. A way has these numbers in the terms of ``placement.exact.ways``,
so that the search minimizes what Aceso's cost model says, within its memory limit.

All stages have the same tensor and data parallel degrees, and all operators are divided in the first of the two ways
that Aceso knows. Aceso also considers stages with unlike numbers of GPUs, operators of one stage with unlike degrees,
and the recompute of any operators; such plans are not considered here.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf, log2
from pathlib import Path

import numpy as np
import numpy.typing as npt

from estimators.axes import Spread
from estimators.model import MIB
from placement.exact.ways import Amounts, Costs, Devices, Way

FOLDER = "profiler/profiled-time-"
"""Where profiles are in a checkout of Aceso's repository; their names end in "eurosys" (the paper's) or "miniset"."""
MICRO_BATCHES = DEGREES = (1, 2, 4, 8)
STATE_COPIES = 8
"""Bytes of states per byte of fp16 weights: the weights 1, their gradients 1, fp32 weights 2, Adam's moments 4."""
RUNS = (
    ("enc-attention-score", "enc-attention-softmax"),
    ("enc-attention-dropout", "enc-attention-context"),
    ("enc-post-attention-dropout", "enc-2nd-layernorm"),
    ("enc-MLP-gelu", "enc-MLP-GEMM-2", "enc-post-MLP-dropout"),
)
"""Runs of operators that are one unit of the search, and may be recomputed.

In Aceso's cost model an operator's activations are dropped only if the operator behind it is recomputed as well, so the
recompute of one operator alone saves nothing. Runs that would save few bytes in a second are left out.
"""
CHOICES = (RUNS[1:], RUNS)
"""Runs that a stage may recompute, by choice.

Neighbours are restored together, so a stage that recomputes the first run as well needs more room for it.
"""
_KEPT_SHARE = {"enc-attention-softmax": 0.0, "enc-attention-dropout": 1.5}
"""Aceso counts softmax and dropout as one: its profile measures each alone, but they share a tensor."""
_LAYER = slice(1, 14)  # the rows of one layer; the first row comes before all layers, the others behind them


@dataclass(frozen=True, slots=True)
class Operator:
    """Time and memory of one operator on one GPU, for one micro-batch."""

    forward_seconds: float
    backward_seconds: float
    input_bytes: float
    output_bytes: float
    weight_bytes: float
    activation_bytes: float
    forward_reserved_bytes: float
    backward_reserved_bytes: float


Operators = Mapping[str, Operator]
Unit = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Machine:
    """Nodes with the same number of GPUs. Each GPU may hold ``capacity_mib``."""

    num_nodes: int
    gpus_per_node: int
    capacity_mib: int

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * self.gpus_per_node

    @property
    def capacity_bytes(self) -> int:
        """Bytes of one GPU."""
        return self.capacity_mib * MIB

    @property
    def devices(self) -> list[Devices]:
        """Lists GPUs for each of ``CHOICES``: the search puts a stage on one kind, and so makes a choice for it."""
        return [Devices(f"V100 with {len(runs)} runs", self.num_gpus, self.capacity_bytes) for runs in CHOICES]

    def crossing_share(self, ranks_of_stage: int, num_stages: int) -> float:
        """Share of the borders between stages that are also borders between nodes."""
        borders = [border * ranks_of_stage for border in range(1, num_stages)]
        return sum(border % self.gpus_per_node == 0 for border in borders) / max(1, len(borders))


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Assumptions about nodes and reserved memory: Aceso counts both for a whole stage, not for each operator.

    Messages between stages take the mean time over all borders, or, with ``is_far``, that of messages between nodes if
    there are any. Reserved memory is that of the operators; with ``is_safe`` it is never less than what Aceso counts.
    """

    is_far: bool
    is_safe: bool


class Profile:
    """All operators of a model, by micro-batch and tensor parallel degree, and the bandwidths of messages.

    Raises ``ValueError`` if ``folder`` has no complete profile of the model.
    """

    def __init__(self, folder: Path, size: str, num_layers: int, most_tp: int) -> None:
        degrees = [degree for degree in DEGREES if degree <= most_tp]
        self.operators = {
            (num, tp): _operators(folder / f"gpt_{size}_mbs{num}_tp{tp}_algo0.csv")
            for num, tp in product(MICRO_BATCHES, degrees)
        }
        rows = list(self.operators[MICRO_BATCHES[0], 1])
        if any(list(operator_rows) != rows for operator_rows in self.operators.values()):
            raise ValueError(
                f"files of gpt_{size} in {folder} have other operators than each other: repair the profile"
            )
        self.names = [*rows[: _LAYER.start], *rows[_LAYER] * num_layers, *rows[_LAYER.stop :]]
        self.units = units_of(self.names)
        inner, outer = (folder / f"p2p_{name}_node.csv" for name in ("intra", "inter"))
        self._inner, self._outer = _rates(inner), _rates(outer if outer.exists() else inner)

    def message_seconds(self, sizes: Amounts, crossing_share: float) -> Amounts:
        """Seconds to send messages of these sizes, if ``crossing_share`` of the stage borders are between nodes."""
        inner, outer = (
            np.array([_message_seconds(size, rates) for size in sizes]) for rates in (self._inner, self._outer)
        )
        mean: Amounts = (1 - crossing_share) * inner + crossing_share * outer
        return mean


def units_of(names: Sequence[str]) -> list[Unit]:
    """All operators in their order; those of a run are one unit."""
    units: list[Unit] = []
    place = 0
    while place < len(names):
        run = next((run for run in RUNS if tuple(names[place : place + len(run)]) == run), None)
        units.append(run or (names[place],))
        place += len(units[-1])
    return units


def ways_of(profile: Profile, machine: Machine, assumed: Assumptions) -> list[Way]:
    """All ways that use every GPU of the machine, in powers of two, with up to one node for a stage."""
    ways = []
    for (num, tp), operators in profile.operators.items():
        numbers = _Numbers(profile.units, operators)
        for dp in (dp for dp in DEGREES if dp * tp <= machine.gpus_per_node and dp * num <= MICRO_BATCHES[-1]):
            num_stages = machine.num_gpus // (dp * tp)
            share = machine.crossing_share(dp * tp, num_stages)
            share = float(share > 0) if assumed.is_far else share
            received, sent = (
                profile.message_seconds(num_bytes, share) for num_bytes in (numbers.input_bytes, numbers.output_bytes)
            )
            costs = numbers.costs(received, sent, machine.capacity_bytes if assumed.is_safe else None)
            ways.append(Way(Spread(tp=tp, dp_replicate=dp), num, costs, num_stages))
    return ways


class _Numbers:
    """Amounts of all units for one micro-batch and tensor parallel degree."""

    def __init__(self, units: Sequence[Unit], operators: Operators) -> None:
        self._units, self._operators = units, operators
        self._kinds = list(dict.fromkeys(units))
        self._kind_of_unit = np.array([self._kinds.index(unit) for unit in units])
        self.input_bytes = self._row(lambda unit: operators[unit[0]].input_bytes)
        self.output_bytes = self._row(lambda unit: operators[unit[-1]].output_bytes)
        self._forward = self._row(lambda unit: sum(operators[name].forward_seconds for name in unit))
        self._backward = self._row(lambda unit: sum(operators[name].backward_seconds for name in unit))
        self._weights = self._row(lambda unit: sum(operators[name].weight_bytes for name in unit))
        self._kept = self._row(self._kept_bytes)
        self._saved = self._row(lambda unit: self._kept_bytes(unit[:-1]))

    def costs(self, received: Amounts, sent: Amounts, capacity_bytes: int | None) -> tuple[Costs, ...]:
        """The costs for each of ``CHOICES``.

        ``received`` and ``sent`` are the seconds in which a stage receives the input of a unit, and sends its output.
        Reserved memory is safe for a GPU of ``capacity_bytes``, if they are given.
        """
        held = self._sent_seconds(sent)
        more = (held - np.concatenate([[0.0], held[:-1]])) / (self._forward + self._backward)
        changed = np.maximum(0.0, 1 + more)  # rounding may leave less than 0
        forward, kept = self._forward * changed, self._kept.copy()
        forward[0] += received[0]
        kept[0] += self.input_bytes[0]
        reserved, state_copies = self._fixed(capacity_bytes)
        first = Costs(
            forward_seconds=forward,
            backward_seconds=self._backward * changed,
            state_bytes=self._weights * state_copies,
            kept_bytes=kept,
            output_bytes=np.append(self.input_bytes[1:], 0.0),
            recompute_seconds=np.full_like(forward, inf),
            recomputed_kept_bytes=kept - self._saved,
            message_seconds=np.append(received[1:], 0.0) + np.append(sent[:-1], 0.0),
            update_seconds=np.zeros_like(forward),
            transient_bytes=reserved,
        )
        return tuple(self._chosen(first, runs) for runs in CHOICES)

    def _chosen(self, costs: Costs, runs: Sequence[Unit]) -> Costs:
        """The costs where these runs may be recomputed."""
        may = np.array([kind in runs for kind in self._kinds])[self._kind_of_unit]
        seconds = np.where(may, self._forward, inf)
        return replace(costs, recompute_seconds=seconds, restored_bytes=self._longest_run(may))

    def _row(self, amount: Callable[[Unit], float]) -> Amounts:
        row: Amounts = np.array([amount(kind) for kind in self._kinds])[self._kind_of_unit]
        return row

    def _kept_bytes(self, names: Sequence[str]) -> float:
        return sum(self._operators[name].activation_bytes * _KEPT_SHARE.get(name, 1.0) for name in names)

    def _sent_seconds(self, sent: Amounts) -> Amounts:
        """Seconds of sending that are counted on the sender of each unit's output.

        The search knows only what a stage waits at its first unit. So each unit adds its own seconds of sending and
        takes back those of the unit before it: of a stage, those of the last unit are left, and the next stage gives
        back what was taken from it. A unit cannot take back more than its own passes; what is too much there is
        counted on the receiver.
        """
        held, passes = sent.copy(), self._forward + self._backward
        for unit in range(len(held) - 2, -1, -1):
            held[unit] = min(held[unit], passes[unit + 1] + held[unit + 1])
        return held

    def _fixed(self, capacity_bytes: int | None) -> tuple[float, float]:
        """Bytes that the allocator reserves for a stage, and copies of its weights that it holds.

        Aceso's model reserves the larger one of R, which is the same for all stages with a layer, and the weights W.
        With all copies of its weights a stage that fits has at most a certain W, and up to there max(R, W) is at most
        the line from R at W = 0 to that W, which is safe.
        """
        reserved = max(operator.forward_reserved_bytes for operator in self._operators.values())
        reserved += max(operator.backward_reserved_bytes for operator in self._operators.values())
        if capacity_bytes is None:
            return reserved, STATE_COPIES
        return reserved, STATE_COPIES + max(0.0, 1 - reserved * (STATE_COPIES + 1) / capacity_bytes)

    def _longest_run(self, may: npt.NDArray[np.bool_]) -> float:
        """Largest sum of activations of neighbours that may be recomputed: they are restored together."""
        largest = current = 0.0
        for unit, is_possible in zip(self._units, may, strict=True):
            largest = max(largest, current + self._kept_bytes(unit[:-1]) if is_possible else 0.0)
            current = current + self._kept_bytes(unit) if is_possible else 0.0
        return largest


def _operators(file: Path) -> dict[str, Operator]:
    """The operators in a file of the profile, in its order; it has microseconds and MB."""
    try:
        with file.open(newline="") as lines:
            rows = list(csv.reader(lines))[1:]
        return {
            name: Operator(*(float(cell) * unit for cell, unit in zip(cells, _CELLS, strict=True)))
            for name, *cells in rows
        }
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{file} is not a profile of Aceso ({error}): name a complete checkout") from error


_CELLS = (1e-6, 1e-6, *[float(MIB)] * 6)


def _rates(file: Path) -> list[float]:
    """Bytes per second of messages of 1, 2, 4, … MB; the file has two lines, with sizes and with GB/s."""
    try:
        with file.open(newline="") as lines:
            return [float(cell) * 1000 * MIB for cell in list(csv.reader(lines))[1]]
    except (OSError, ValueError, IndexError) as error:
        raise ValueError(f"{file} has no bandwidths ({error}): name a complete checkout") from error


def _message_seconds(size_bytes: float, rates: Sequence[float]) -> float:
    """Seconds of one message, with the bandwidth that Aceso takes for it: that of a size below its own."""
    if size_bytes <= 0:
        return 0.0
    power = int(log2(max(1.0, size_bytes / MIB)))
    return size_bytes / rates[min(max(0, power - 1), len(rates) - 1)]
