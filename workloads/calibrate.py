"""Measures how fast this machine's CPU does each kind of operation, as ranks do them: one thread, their allocator.

``python -m workloads.calibrate`` prints a ``DeviceKind`` as one line of JSON. Single operations of a few models are
timed, and per kind seconds = operations · a + FLOPs · b + bytes · c is fitted to them without negative terms. What
a step takes between its operations, in Python and in autograd, is then fitted to whole steps of the same models.
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
from estimators.operations import bytes_of, flops_of, kind_of
from estimators.work import OP_KINDS, Counter, Work
from workloads import budget
from workloads.transformer import Block

NUM_STEPS = 5
Sample = tuple[float, float, float]  # FLOPs, bytes, seconds


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


def steps() -> Iterator[tuple[Callable[[], object], Callable[[], Work]]]:
    """Of models from small to medium: a training step, and the work of it by a count on the side."""
    for depth, width, batch, length in [
        (2, 64, 8, 32),
        (2, 64, 64, 16),
        (2, 128, 16, 64),
        (4, 256, 4, 128),
        (1, 512, 8, 64),
    ]:
        yield _step(
            Transformer(depth, width, 512), torch.randint(512, (batch, length)), torch.randint(512, (batch, length))
        )
    for depth, width, batch, side in [(2, 16, 8, 16), (3, 32, 16, 32), (2, 64, 8, 32)]:
        yield _step(Convolutions(depth, width), torch.randn(batch, 3, side, side), torch.randint(10, (batch,)))


def _step(model: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[Callable[[], object], Callable[[], Work]]:
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        loss = functional.cross_entropy(model(inputs).flatten(0, -2), labels.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def count() -> Work:
        counted = _Counted()
        with counted:
            step()
        return counted.counter.work

    return step, count


class _Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counter = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        kind = kind_of(func)
        if kind is not None:
            self.counter.add(kind, flops_of(func, args, kwargs or {}, out), bytes_of(args, kwargs, out))
        return out


class _Timed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.samples: dict[str, list[Sample]] = defaultdict(list)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        began = time.thread_time_ns()
        out = func(*args, **(kwargs or {}))
        seconds = (time.thread_time_ns() - began) / 1e9
        kind = kind_of(func)
        if kind is not None:
            sample = flops_of(func, args, kwargs or {}, out), bytes_of(args, kwargs, out), seconds
            self.samples[kind].append(sample)
        return out


def calibrate() -> DeviceKind:
    """Takes about half a minute of one core."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    budget.warm_up(torch.device("cpu"), None)
    samples: dict[str, list[Sample]] = defaultdict(list)
    whole: list[tuple[Work, float]] = []
    for step, count in steps():
        step()
        timed = _Timed()
        with timed:
            step()
            step()
        for name, found in timed.samples.items():
            samples[name] += found
        whole.append((count(), median(_seconds(step) for _ in range(NUM_STEPS))))
    rates = {name: _fit(np.array(samples[name])) for name in OP_KINDS if samples[name]}
    measured = DeviceKind(_cpu_name(), rates, f"measured {date.today()}, 1 thread, torch {torch.__version__}")
    return _with_overhead(measured, whole)


def _seconds(step: Callable[[], object]) -> float:
    began = time.thread_time()
    step()
    return time.thread_time() - began


def _fit(samples: npt.NDArray[np.float64]) -> Rate:
    """Relative errors count, so that small operations are fitted as well as large ones."""
    flops, num_bytes, seconds = samples.T
    scale = np.array([1e-6, 1e-11, 1e-10])  # of one operation, FLOP and byte, so that the terms are of a size
    terms = np.stack([np.ones_like(flops), flops, num_bytes], 1) * scale
    weights = 1 / np.maximum(seconds, 2e-5) ** 0.75
    solution, _ = nnls(terms * weights[:, None], seconds * weights)
    return Rate(*(solution * scale))


def _with_overhead(kind: DeviceKind, whole: list[tuple[Work, float]]) -> DeviceKind:
    """Whole steps take longer than their operations: by a share of them, and by some time for each."""
    inside = np.array([kind.seconds(work) for work, _ in whole])
    counts = np.array([sum(work.of(name)[0] for name in OP_KINDS) for work, _ in whole])
    seconds = np.array([taken for _, taken in whole])
    terms = np.stack([inside, counts * 1e-6], 1) / seconds[:, None]
    (share, micros), _ = nnls(terms, np.ones_like(seconds))
    rates = {
        name: Rate(rate.per_op * share + micros * 1e-6, rate.per_flop * share, rate.per_byte * share)
        for name, rate in kind.rates.items()
    }
    return DeviceKind(kind.name, rates, kind.provenance)


def _cpu_name() -> str:
    found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.machine()


if __name__ == "__main__":
    print(json.dumps(calibrate().to_json()))
