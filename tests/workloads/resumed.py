"""Trains one rank in attempts that resume, each in a process of its own. Not a test module."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

from torch.distributed import FileStore

from benchmarks.curves.forks import in_forks
from estimators.model import Candidate, Plan
from tests.workloads.one_rank import Collected
from workloads.training.attempt import saving
from workloads.training.attempt.job import TrainingJob
from workloads.training.checkpoints.name import CheckpointName
from workloads.training.runtime import train

CASES = """
from functools import partial, wraps
from itertools import count
import torch
from torch import nn
from workloads.protocol import Chain, Workload

POINTS = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
CALLS = 0


class Base(Workload):
    num_train, num_eval, default_batch = 64, 16, 16
    def build_model(self): return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    def optimizer(self, model): return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    def train_batch(self, indices): return POINTS[indices]
    eval_batch = train_batch
    def loss(self, model, batch): return (model(batch)[:, 0] - batch.sum(1)).square().mean()
    def evaluate(self, model, batch): return {"loss": (model(batch)[:, 0] - batch.sum(1)).square()}


class Stages(Chain):
    enters, leaves = ("first",), ("last",)
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 1)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))
    def enter(self, x): return self.first(x)
    def leave(self, x): return self.last(x)
    def hidden_shape(self, num_samples): return (num_samples, 8)


class Staged(Base):
    def build_model(self): return Stages()


class Dropped(Base):
    def build_model(self):
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 1))
    def optimizer(self, model): return torch.optim.AdamW(model.parameters(), 0.01)


class Closure(Base):
    '''A closure that counts its calls.'''
    def __init__(self, params):
        super().__init__(params)
        calls = count(1)
        self.weight = lambda: next(calls)
    def loss(self, model, batch): return super().loss(model, batch) / self.weight()


def counted(function):
    calls = 0
    @wraps(function)
    def wrapper(*arguments):
        nonlocal calls
        calls += 1
        return function(*arguments) / calls
    return wrapper


class Shared(Base):
    '''A decorator, the default value of a parameter, an attribute of a function, and a list that two hold.'''
    def __init__(self, params):
        super().__init__(params)
        self.calls = calls = [0]
        def weigh(value): return value / (1 + calls[-1])
        self.weigh = [partial(weigh)]
    @counted
    def loss(self, model, batch, history=[1.0]):
        self.calls.append(len(self.calls))
        scaled.factor += 0.1
        loss = self.weigh[0](super().loss(model, batch)) * scaled.factor / history[-1]
        history.append(history[-1] + 0.5)
        return loss


def scaled(): pass


scaled.factor = 1.0


class Global(Base):
    '''A global variable of the module.'''
    def loss(self, model, batch):
        global CALLS
        CALLS += model.training
        return super().loss(model, batch) / (1 + CALLS)


class Generated(Base):
    '''The rest of a generator.'''
    def __init__(self, params):
        super().__init__(params)
        self.weights = (1 / (1 + step) for step in range(100))
    def loss(self, model, batch): return super().loss(model, batch) * next(self.weights)


class Noted(Base):
    '''An object that no checkpoint can hold.'''
    class Notes:
        __slots__ = ("calls",)
    def loss(self, model, batch):
        before, self.notes = getattr(self, "notes", None), self.Notes()
        self.notes.calls = 1 + (before.calls if before else 0)
        return super().loss(model, batch) / self.notes.calls


class Hooked(Base):
    '''A hook of a gradient that counts in a tensor of a closure.'''
    def build_model(self):
        model, calls = super().build_model(), torch.zeros(())
        def hook(gradient):
            calls.add_(1)
            return gradient / calls
        model[0].weight.register_hook(hook)
        return model


class GeneratedRates(Base):
    '''Learning rates of a generator.'''
    def __init__(self, params):
        super().__init__(params)
        self.rates = (0.1 * 0.99**step for step in range(100))
    def on_step(self, step, steps, optimizer): optimizer.param_groups[0]["lr"] = next(self.rates)


class GeneratedHook(Base):
    '''A hook of a gradient that counts by a generator: the loss of the next step is the same.'''
    def build_model(self):
        model, calls = super().build_model(), (call for call in range(1, 100))
        model[0].weight.register_hook(lambda gradient: gradient / next(calls))
        return model


class Frozen(Base):
    '''A part that is frozen from step 3 on.'''
    def on_step(self, step, steps, optimizer): self.frozen = step >= 3
    def loss(self, model, batch):
        model[0].requires_grad_(not self.frozen)
        return super().loss(model, batch)
"""
STEPS = 8


WHOLE = Plan(16)


class Killed(BaseException):
    """Stands for a kill."""


class Reports(Collected):
    """Ends the training when it begins step ``killed_at``."""

    def __init__(self, stop_after: int | None, killed_at: int | None) -> None:
        super().__init__(stop_after)
        self.killed_at = killed_at

    def progressed(self, step: int) -> None:
        if step == self.killed_at:
            raise Killed


def attempts(
    folder: Path, name: str, *pieces: tuple[int, int], plans: tuple[Plan, ...] = (), **options: Any
) -> list[Any]:
    """The reports of attempts from and to these steps, and the error that has ended one, as text."""
    reports: list[Any] = []
    for number, piece in enumerate(pieces):
        plan = plans[number] if plans else WHOLE
        answer = attempt(folder, name, *piece, plan, **options)
        reports += answer["reports"]
        if answer["error"]:
            return [*reports, answer["error"]]
    return reports


def attempt(folder: Path, name: str, begin: int, until: int, plan: Plan = WHOLE, **options: Any) -> dict[str, Any]:
    """What rank 0 has reported in one attempt, which ranks make in forks: reports, checkpoints and the error."""
    (folder / "cases.py").write_text(CASES)
    calls = [partial(_train, folder, name, begin, until, plan, rank, **options) for rank in range(plan.world_size)]
    answer = in_forks(calls, 60.0)[0]
    assert isinstance(answer, dict), answer
    (folder / f"store-{begin}").unlink(missing_ok=True)
    return answer


def _train(
    folder: Path,
    name: str,
    begin: int,
    until: int,
    plan: Plan,
    rank: int,
    *,
    every: int = 2,
    stop_after: int | None = None,
    killed_at: int | None = None,
    guard: bool = True,
    root: str = "checkpoints",
) -> dict[str, Any]:
    reporter, resume = Reports(stop_after, killed_at), CheckpointName(1, begin) if begin else None
    job = TrainingJob(
        Candidate(f"cases.py:{name}", None, {}), folder, plan, 0, STEPS, every, None, folder / root, 1,
        resume, ["loss"], until=until, guard=guard,
    )  # fmt: skip
    store = FileStore(str(folder / f"store-{begin}"), plan.world_size) if plan.world_size > 1 else None
    error, saving.CHECKPOINT_SHARE = "", math.inf  # a checkpoint follows every evaluation
    try:
        train(job, rank, plan.world_size, store, reporter)
    except BaseException as ended:
        error = f"{type(ended).__name__}: {ended}"
    steps = [name.step for name in reporter.checkpoints]
    return {"error": error, "reports": reporter.reports, "checkpoints": steps}
