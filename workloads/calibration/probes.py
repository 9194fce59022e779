"""Training steps of known models, by which a device is calibrated, and how long they and their operations take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from estimators.tracing.operations import op_kind_of, operation_of
from estimators.work import Work, WorkCounter
from workloads.models.transformer import Block

NUM_STEPS = 2  # whole steps that are timed in each round
Step = Callable[[], None]
Sample = tuple[float, ...]  # FLOPs, bytes, fresh bytes, half FLOPs, seconds


class Clock(Protocol):
    """Measures the seconds that operations take on one kind of device."""

    def seconds(self, run: Callable[[], object]) -> float:
        """Seconds of one run of many operations, from the start of the first to the end of the last."""
        ...

    def sample(self, operation: Callable[[], Any]) -> tuple[float, Any]:
        """Seconds of one operation, and its result."""
        ...


class ProcessorTime:
    """Processor time of this thread, so that other processes on the machine do not count."""

    def seconds(self, run: Callable[[], object]) -> float:
        return self.sample(run)[0]

    def sample(self, operation: Callable[[], Any]) -> tuple[float, Any]:
        began = time.thread_time_ns()
        out = operation()
        return (time.thread_time_ns() - began) / 1e9, out


class GpuTime:
    """Time from an idle GPU until it is idle again, measured by CUDA events.

    Each operation is repeated, because its first run includes Python's time to start it. Repeated in-place operations
    compute different numbers, but take as long.
    """

    repeats = 8

    def seconds(self, run: Callable[[], object]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def sample(self, operation: Callable[[], Any]) -> tuple[float, Any]:
        out = operation()

        def repeat() -> None:
            for _ in range(self.repeats):
                operation()

        return self.seconds(repeat) / self.repeats, out


class Transformer(nn.Module):
    """A causal transformer: tokens [n, t] → logits [n, t, classes]."""

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
    """A plain convolutional network: images [n, 3, s, s] → logits [n, 10]."""

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


# (depth, width, classes, batch, length) and (depth, width, batch, side): small to medium for the device that runs them
ON_CPU = (
    [
        *[(2, 64, 512, 8, 32), (2, 64, 512, 64, 16), (2, 128, 1024, 16, 64), (4, 256, 512, 4, 128)],
        *[(1, 512, 512, 8, 64), (1, 256, 6000, 4, 64), (1, 64, 20_000, 4, 16), (2, 192, 4000, 2, 256)],
    ],
    [(2, 16, 8, 16), (3, 32, 16, 32), (2, 64, 8, 32), (3, 16, 4, 96)],
)
QUICK_ON_CPU = (
    [(2, 64, 512, 8, 32), (2, 128, 1024, 16, 64), (1, 64, 20_000, 4, 16), (2, 192, 4000, 2, 256)],
    [(3, 32, 16, 32), (2, 64, 8, 32)],
)
"""The few of ``ON_CPU`` whose rates predict nearly the same seconds as all (docs/decisions/0005-seconds.md)."""
ON_GPU = (
    [
        *[(2, 256, 1024, 8, 128), (4, 512, 8192, 8, 256), (2, 1024, 32_000, 8, 256), (2, 1024, 8192, 16, 512)],
        *[(1, 2048, 8192, 4, 256), (1, 2048, 8192, 16, 512), (6, 768, 8192, 4, 1024), (1, 512, 60_000, 4, 128)],
    ],
    [(3, 32, 16, 64), (4, 64, 32, 64), (3, 128, 32, 32), (2, 256, 32, 28), (3, 32, 4, 256)],
)
"""All models together take 7 GiB for parameters and states; the largest of them takes 3 GiB more while it runs."""


def steps(device: torch.device, *, quick: bool = False) -> Iterator[Step]:
    """Training steps of small to medium models, of few if it is to be ``quick`` on a CPU; on a GPU also in 16 bits, for
    which it may have separate units."""
    transformers, convolutions = ON_GPU if device.type == "cuda" else QUICK_ON_CPU if quick else ON_CPU
    for depth, width, classes, batch, length in transformers:
        tokens, following = torch.randint(classes, (2, batch, length))
        yield from _steps(Transformer(depth, width, classes), tokens, following, device)
    for depth, width, batch, side in convolutions:
        images, labels = torch.randn(batch, 3, side, side), torch.randint(10, (batch,))
        yield from _steps(Convolutions(depth, width), images, labels, device)


def _steps(model: nn.Module, inputs: Tensor, labels: Tensor, device: torch.device) -> Iterator[Step]:
    model, inputs, labels = model.to(device), inputs.to(device), labels.to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    narrow = torch.bfloat16 if device.type == "cpu" or torch.cuda.is_bf16_supported(False) else torch.float16

    def step(half: bool) -> None:
        with torch.autocast(device.type, narrow, enabled=half):
            loss = functional.cross_entropy(model(inputs).flatten(0, -2), labels.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    yield partial(step, half=False)
    if device.type == "cuda":
        yield partial(step, half=True)


class _Timed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Times every operation that runs inside it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._clock = clock
        self.samples: list[tuple[str, Sample]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind, named_args = op_kind_of(func), kwargs or {}
        if kind is None:
            return func(*args, **named_args)
        seconds, out = self._clock.sample(lambda: func(*args, **named_args))
        self.samples.append((kind, (*operation_of(func, args, named_args, out, kind).amounts, seconds)))
        return out


class Probe:
    """A step that is measured in several rounds, because the speed of a shared machine changes within seconds."""

    def __init__(self, step: Step, clock: Clock) -> None:
        self._step, self._clock = step, clock
        self._runs, self._taken = list[list[tuple[str, Sample]]](), list[float]()
        step()  # creates the optimizer's states

    def measure(self) -> None:
        """Run one round: the step with every operation timed, then ``NUM_STEPS`` whole steps."""
        with _Timed(self._clock) as timed:
            self._step()
        self._runs.append(timed.samples)
        self._taken += [self._clock.seconds(self._step) for _ in range(NUM_STEPS)]

    @property
    def samples(self) -> list[tuple[str, Sample]]:
        """Kind of each operation, with its amounts and its median seconds."""
        runs = zip(*self._runs, strict=True)
        return [(run[0][0], (*run[0][1][:-1], median(sample[-1] for _, sample in run))) for run in runs]

    @property
    def work(self) -> Work:
        """Work of one step: operations, FLOPs and bytes by kind."""
        counter = WorkCounter()
        for kind, (*counted, _) in self._runs[0]:
            counter.add(kind, *counted)
        return counter.work

    @property
    def seconds(self) -> float:
        """Median seconds of the whole step."""
        return median(self._taken)

    @property
    def rounds(self) -> list[float]:
        """Median seconds of the whole step in each round."""
        return [median(self._taken[first : first + NUM_STEPS]) for first in range(0, len(self._taken), NUM_STEPS)]


def apart(probes: Sequence[Probe]) -> float:
    """The share by which the slowest round of ``probes`` took longer than the fastest round."""
    paces = [
        median(seconds / probe.seconds for probe, seconds in zip(probes, taken, strict=True))
        for taken in zip(*(probe.rounds for probe in probes), strict=True)
    ]
    return float(max(paces) / min(paces) - 1)
