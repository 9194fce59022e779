"""What a training keeps in attributes is there when it resumes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from estimators.model import Candidate, Plan
from tests.workloads.one_rank import Collected
from workloads.loading import forget_user_code
from workloads.training.attempt.job import TrainingJob
from workloads.training.checkpoints.kept import Changes, KeptState, NotPlain, decoded, encoded
from workloads.training.checkpoints.name import CheckpointName
from workloads.training.runtime import train

CASES = """
import copy
import itertools
import random
from collections import deque
from collections.abc import Callable
import numpy as np
import torch
from torch import nn
from workloads.protocol import Workload

POINTS = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))


class Base(Workload):
    num_train, num_eval, default_batch = 64, 16, 16
    def build_model(self): return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    def optimizer(self, model): return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    def train_batch(self, indices): return POINTS[indices]
    eval_batch = train_batch
    def loss(self, model, batch): return (model(batch)[:, 0] - batch.sum(1)).square().mean()
    def evaluate(self, model, batch): return {"loss": (model(batch)[:, 0] - batch.sum(1)).square()}


class Baseline(Base):
    '''A running mean and a history in attributes of the workload.'''
    average, seen = 0.0, None
    def loss(self, model, batch):
        losses = (model(batch)[:, 0] - batch.sum(1)).square()
        self.average = 0.9 * self.average + 0.1 * losses.mean().detach()
        self.seen = self.seen or deque(maxlen=3)
        self.seen.append(float(losses.detach().max()))
        return (losses / (1 + self.average + max(self.seen))).mean()


class Mean(nn.Module):
    '''The same mean in a plain attribute, which changes in place.'''
    def __init__(self):
        super().__init__()
        self.layer, self.mean = nn.Linear(6, 1), torch.zeros(())
    def forward(self, x):
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.mean())
        return self.layer(x - self.mean)


class InModel(Base):
    def build_model(self): return Mean()


class Unfreezing(Base):
    '''A part joins once, with a group of its own.'''
    def build_model(self):
        model = super().build_model()
        model[0].requires_grad_(False)
        return model
    def optimizer(self, model): return torch.optim.SGD(model[2].parameters(), 0.1, momentum=0.9)
    def on_step(self, step, steps, optimizer):
        if step == 2:
            self.unfreeze(optimizer)
    def loss(self, model, batch):
        self.model = model
        return super().loss(model, batch)
    def unfreeze(self, optimizer):
        self.model[0].requires_grad_(True)
        optimizer.add_param_group({"params": list(self.model[0].parameters()), "lr": 0.05})


class Drawing(Base):
    '''`on_step` draws random numbers.'''
    def on_step(self, step, steps, optimizer): self.shift = torch.randn(1)
    def loss(self, model, batch): return super().loss(model, batch + self.shift)


class Counting(torch.optim.SGD):
    '''An optimizer that counts its steps itself.'''
    num_steps = 0
    def step(self, closure=None):
        self.num_steps += 1
        if self.num_steps % 3:
            super().step(closure)


class Optimizing(Base):
    def optimizer(self, model): return Counting(model.parameters(), 0.1)


class Joining(Base):
    '''A part that no optimizer has before it joins.'''
    def optimizer(self, model):
        self.model = model
        return torch.optim.SGD(model[2].parameters(), 0.1)
    def on_step(self, step, steps, optimizer):
        if step == 5:
            optimizer.add_param_group({"params": list(self.model[0].parameters())})


steps, dice, numbers = [], random.Random(3), {"all": np.random.default_rng(3)}
num_steps = 0


class Meter:
    def __init__(self): self.value = 1.0


class Global(Base):
    '''State in global variables, the class, an object of the user's own, and counters.'''
    num_calls = 0
    def __init__(self, params):
        super().__init__(params)
        self.meter, self.counter = Meter(), itertools.count()
    def on_step(self, step, steps_, optimizer):
        global num_steps
        num_steps += 1
        steps.append(step)
        type(self).num_calls += 1
        self.meter.value += 0.5
        self.share = next(self.counter) + len(steps) + num_steps + self.num_calls + self.meter.value
        self.share += dice.random() + numbers["all"].random()
    def loss(self, model, batch): return super().loss(model, batch) * self.share / 50


class Held(Base):
    '''A scheduler and a slow copy of the model that the workload has.'''
    def optimizer(self, model):
        optimizer = super().optimizer(model)
        self.model, self.slow = model, copy.deepcopy(model)
        self.decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.8**step)
        return optimizer
    def on_step(self, step, steps, optimizer):
        with torch.no_grad():
            for slow, parameter in zip(self.slow.parameters(), self.model.parameters(), strict=True):
                slow.lerp_(parameter, 0.3)
        if step: self.decay.step()
    def loss(self, model, batch):
        with torch.no_grad(): aim = self.slow(batch)
        return super().loss(model, batch) + (model(batch) - aim).square().mean()


class Paired(Base):
    '''State behind methods of the workload's own.'''
    def __init__(self, params):
        super().__init__(params)
        counter = iter(range(10**6))
        self.count = lambda: next(counter)
        self.age = 0
    def loss(self, model, batch):
        self.age = self.count()
        return super().loss(model, batch) / (1 + self.age)
    def state_dict(self): return {"age": self.age}
    def load_state_dict(self, state):
        for _ in range(state["age"] + 1):
            self.count()
"""


def curve(folder: Path, name: str, *pieces: tuple[int, int]) -> list[Any]:
    reports: list[Any] = []
    for begin, until in pieces:
        forget_user_code(folder)  # as between attempts
        reporter, resume = Collected(None), CheckpointName(1, begin) if begin else None
        job = TrainingJob(
            Candidate(f"cases.py:{name}", None, {}), folder, Plan(16), 0, 8, 2, None, folder / f"{name}-{pieces}", 1,
            resume, ["loss"], until=until,
        )  # fmt: skip
        assert train(job, 0, 1, None, reporter) == "done"
        reports += reporter.reports
    return reports


NAMES = ["Baseline", "InModel", "Unfreezing", "Drawing", "Optimizing", "Joining", "Global", "Held", "Paired"]


@pytest.mark.full
@pytest.mark.sample
@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_training_has_the_curve_of_one_that_was_not_interrupted(tmp_path: Path, name: str) -> None:
    (tmp_path / "cases.py").write_text(CASES)
    straight = curve(tmp_path, name, (0, 8))
    assert curve(tmp_path, name, (0, 4), (4, 8)) == straight


VALUES = [
    None, True, 3, 2.5, 1j, "text", b"bytes", [1, [2.0]], (1, "a"), {"a": {1: 2}}, {1, 2}, frozenset({3}),
    deque([1, 2], 4), np.float32(2.5), np.arange(6).reshape(2, 3), torch.arange(3),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_kept_value_comes_back_as_it_was(value: Any, tmp_path: Path) -> None:
    torch.save(encoded({"x": value}), tmp_path / "kept.pt")
    back = decoded(torch.load(tmp_path / "kept.pt", weights_only=True))["x"]
    assert type(back) is type(value) and repr(back) == repr(value)


def test_what_no_checkpoint_can_hold_is_named() -> None:
    class Owner:
        def __init__(self) -> None:
            self.same, self.data = object(), torch.zeros(8)

    owner, model = Owner(), nn.Linear(1, 1)
    state = KeptState(owner, model)
    assert state.values() == {} and state.left_out == {}
    owner.other, owner.number = object(), 3  # type: ignore[attr-defined]
    owner.data.add_(1)
    assert state.values()[""].keys() == {"number", "data"}
    assert state.left_out == {"self.other": "object"}
    with pytest.raises(NotPlain, match="object"):
        encoded([object()])


class Holder:
    pass


def changed_after(value: Any, change: Callable[[Any], None]) -> bool:
    """Whether a value counts as changed after something has changed it in place."""
    holder = Holder()
    vars(holder)["value"] = value
    changes = Changes({"": holder})
    assert [*changes.found({"": holder})] == []
    change(value)
    return [*changes.found({"": holder})] == [("", "value", value, True)]


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ([1, float("nan"), "a"], lambda value: value.append(1)),
        ([10**9, 2], lambda value: value.__setitem__(0, 10**9 + 1)),
        ({"a": [1, [2, 3]]}, lambda value: value["a"][1].__setitem__(0, -2)),
        (deque([torch.zeros(2)]), lambda value: value[0].add_(1)),
        ([{1}, {"b": deque([np.zeros(2)])}], lambda value: value[1]["b"][0].__setitem__(0, 1.0)),
    ],
)
def test_what_changes_in_a_container_is_seen(value: Any, change: Callable[[Any], None]) -> None:
    assert changed_after(value, change)


def test_containers_of_data_are_not_looked_at() -> None:
    rows = [[0] * 11 for _ in range(9_500)]
    assert not changed_after(rows, lambda value: value[0].append(1))
    assert changed_after(rows[:5_000], lambda value: value[0].append(1))
