"""Measures how fast this machine's CPU does each kind of operation, as ranks do them: one thread, their allocator.

``python -m workloads.calibrate`` prints a ``DeviceKind`` as one line of JSON. Single operations of a few models are
timed in several rounds, and for each kind operations · a + FLOPs · b + bytes · c + fresh bytes · d is fitted to the
median seconds, no term of it negative. What steps take between operations, in Python and in autograd, is fitted to
whole steps of the same models.
"""

from __future__ import annotations

import json
import platform
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import nnls
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from estimators.device_kind import DeviceKind, Rate
from estimators.operations import amounts_of, kind_of
from estimators.work import OP_KINDS, Counter, Work
from workloads import budget
from workloads.transformer import Block

NUM_ROUNDS = 3
NUM_STEPS = 2  # whole ones, in each round
Step = Callable[[], None]
Sample = tuple[float, ...]  # FLOPs, bytes, fresh bytes, half FLOPs, seconds


class Transformer(nn.Module):
    def __init__(self, depth: int, width: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, width)
        self.blocks = nn.ModuleList(Block(width, max(1, width // 32), 4.0, 0.1, 1.0, causal=True) for _ in range(depth))
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


class Convolutions(nn.Module):
    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(width if i else 3, width, 3, padding=1) for i in range(depth))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            images = torch.relu(norm(layer(images)))
        logits: Tensor = self.head(images.mean((2, 3)))
        return logits


# (depth, width, classes, batch, length) and (depth, width, batch, side)
TRANSFORMERS = [
    *[(2, 64, 512, 8, 32), (2, 64, 512, 64, 16), (2, 128, 1024, 16, 64), (4, 256, 512, 4, 128)],
    *[(1, 512, 512, 8, 64), (1, 256, 6000, 4, 64), (1, 64, 20_000, 4, 16), (2, 192, 4000, 2, 256)],
]
CONVOLUTIONS = [(2, 16, 8, 16), (3, 32, 16, 32), (2, 64, 8, 32), (3, 16, 4, 96)]


def steps() -> Iterator[Step]:
    """Training steps of models from small to medium."""
    for depth, width, classes, batch, length in TRANSFORMERS:
        yield _step(Transformer(depth, width, classes), *torch.randint(classes, (2, batch, length)))
    for depth, width, batch, side in CONVOLUTIONS:
        yield _step(Convolutions(depth, width), torch.randn(batch, 3, side, side), torch.randint(10, (batch,)))


def _step(model: nn.Module, inputs: Tensor, labels: Tensor) -> Step:
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        loss = functional.cross_entropy(model(inputs).flatten(0, -2), labels.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


class _Timed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Times every operation."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.samples: list[tuple[str, Sample]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        began = time.thread_time_ns()
        out = func(*args, **(kwargs or {}))
        seconds = (time.thread_time_ns() - began) / 1e9
        kind = kind_of(func)
        if kind is not None:
            self.samples.append((kind, (*amounts_of(func, args, kwargs or {}, out), seconds)))
        return out


class Probe:
    """A step that is measured again and again: the speed of a shared machine changes within seconds."""

    def __init__(self, step: Step) -> None:
        self._step, self._runs, self._taken = step, list[list[tuple[str, Sample]]](), list[float]()
        step()  # makes the optimizer's states

    def measure(self) -> None:
        with _Timed() as timed:
            self._step()
        self._runs.append(timed.samples)
        self._taken += [seconds(self._step) for _ in range(NUM_STEPS)]

    @property
    def samples(self) -> list[tuple[str, Sample]]:
        """Each operation with its kind, and the median of its seconds."""
        runs = zip(*self._runs, strict=True)
        return [(run[0][0], (*run[0][1][:-1], median(sample[-1] for _, sample in run))) for run in runs]

    @property
    def work(self) -> Work:
        counter = Counter()
        for kind, (*amounts, _) in self._runs[0]:
            counter.add(kind, *amounts)
        return counter.work

    @property
    def seconds(self) -> float:
        """Processor seconds of the whole step."""
        return median(self._taken)


def seconds(step: Callable[[], object]) -> float:
    """Of processor time: other processes may have the rest."""
    began = time.thread_time()
    step()
    return time.thread_time() - began


def prepare() -> None:
    """Make this process like a rank."""
    torch.set_num_threads(1)
    budget.warm_up(torch.device("cpu"), None)


def calibrate() -> DeviceKind:
    """Takes about 30 seconds of one core."""
    prepare()
    torch.manual_seed(0)
    probes = [Probe(step) for step in steps()]
    for _ in range(NUM_ROUNDS):
        for probe in probes:
            probe.measure()
    by_kind: dict[str, list[Sample]] = defaultdict(list)
    for probe in probes:
        for name, sample in probe.samples:
            by_kind[name].append(sample)
    rates = {name: _fit(np.array(samples)) for name, samples in by_kind.items()}
    measured = DeviceKind(cpu_name(), rates, f"measured {date.today()}, 1 thread, torch {torch.__version__}")
    return _with_overhead(measured, [(probe.work, probe.seconds) for probe in probes])


def _fit(samples: npt.NDArray[np.float64]) -> Rate:
    """Relative errors count, so that small operations are fitted as well as large ones.

    Numbers of 16 bits count as others do: what a CPU gains from them has not been measured.
    """
    *amounts, _, taken = samples.T
    scale = np.array([1e-6, 1e-11, 1e-10, 1e-10])  # of one each, so that the terms are of a size
    terms = np.stack([np.ones_like(taken), *amounts], 1) * scale
    weights = 1 / np.sqrt(taken)
    solution, _ = nnls(terms * weights[:, None], taken * weights)
    per_op, per_flop, per_byte, per_fresh_byte = solution * scale
    return Rate(per_op, per_flop, per_byte, per_fresh_byte, per_flop)


def _with_overhead(kind: DeviceKind, whole: list[tuple[Work, float]]) -> DeviceKind:
    """Whole steps take longer than their operations: by a share of them, and by some time for each."""
    inside = np.array([kind.seconds(work) for work, _ in whole])
    counts = np.array([sum(work.of(name)[0] for name in OP_KINDS) for work, _ in whole])
    all_taken = np.array([taken for _, taken in whole])
    terms = np.stack([inside, counts * 1e-6], 1) / all_taken[:, None]
    (share, micros), _ = nnls(terms, np.ones_like(all_taken))
    rates = {
        name: Rate(rate.per_op * share + micros * 1e-6, *(amount * share for amount in rate.to_json()[1:]))
        for name, rate in kind.rates.items()
    }
    return DeviceKind(kind.name, rates, kind.provenance)


def cpu_name() -> str:
    found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.machine()


if __name__ == "__main__":
    print(json.dumps(calibrate().to_json()))
