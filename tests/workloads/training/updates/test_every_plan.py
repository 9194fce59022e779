"""Features of an update give the curve of one rank under every kind of plan, also after a resume under another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from estimators.model import Plan
from tests.workloads.training.test_runtime import TOLERANCE, soak

pytestmark = pytest.mark.full

USER = {
    "workload": "sequences.py:Sequences",
    "code_dir": str(Path(__file__).parents[4] / "benchmarks" / "features" / "workloads"),
}
ALL = {"clip_norm": 0.3, "schedule": "steps", "optimizer": "SGD", "lr": 0.5, "ema_decay": 0.5, "frozen": ["norm"]}
FEATURES: dict[str, dict[str, Any]] = {
    "all": ALL,
    "plateau": {"schedule": "plateau"},
    "swa": {"swa_start": 1, "schedule": "one_cycle"},
    "bf16": {"precision": "bf16", "clip_norm": 0.3},
    "bf16-params": {"precision": "bf16-params", "lr": 2e-3},
    "fp16": {"precision": "fp16", "ema_decay": 0.5},
}
TOLERANCES = {"bf16": 1e-2, "bf16-params": 1e-2, "fp16": 1e-2}
ONE, PIPELINE, ZERO1 = Plan(16), Plan(4, 4, pp=2), Plan(4, 2, dp_replicate=2, zero1=True)
SHARDED, BOTH = Plan(8, dp_shard=2, recompute=True), Plan(8, dp_shard=2, tp=2, sequence_parallel=True)
UNEVEN = Plan(6, 2, dp_shard=2, shares=(6, 2))
PLANS = [Plan(4, 4), Plan(8, dp_replicate=2), ZERO1, SHARDED, Plan(16, tp=2), PIPELINE, BOTH, UNEVEN]
USUAL = {("all", plan) for plan in PLANS} | {("fp16", PIPELINE), ("bf16", SHARDED), ("swa", SHARDED)}
USUAL |= {("plateau", PIPELINE), ("bf16-params", SHARDED)}
CASES = [(feature, plan) for feature in FEATURES for plan in PLANS]
CHAIN = [(ONE, PIPELINE), (PIPELINE, SHARDED), (SHARDED, ZERO1), (ZERO1, BOTH), (BOTH, UNEVEN), (UNEVEN, ONE)]
RESUMED = [(feature, *pair) for feature in FEATURES for pair in CHAIN]
CONTINUED = [("all", *pair) for pair in CHAIN[::2]] + [("all", UNEVEN, ONE)]


def difference(ranks: Any, plan: Plan, feature: str, **more: Any) -> float:
    """The largest difference of any value from those of one rank."""
    options = {**USER, "params": {"batch": 16, **FEATURES[feature]}, "steps": 6}
    expected = dict(ranks.curve(ONE, **options))
    pairs = [(values, expected[step]) for step, values in ranks.curve(plan, **options, **more)]
    return max(abs(values[name] - other[name]) for values, other in pairs for name in other)


@pytest.mark.sample
@pytest.mark.parametrize(
    ("feature", "plan"), [case if case in USUAL else soak(case) for case in CASES], ids=lambda case: str(case)
)
def test_updates_are_those_of_one_rank(ranks: Any, feature: str, plan: Plan) -> None:
    assert difference(ranks, plan, feature) <= TOLERANCES.get(feature, TOLERANCE)


@pytest.mark.parametrize(
    ("feature", "first", "then"), [case if case in CONTINUED else soak(case) for case in RESUMED], ids=str
)
def test_updates_continue_under_another_plan(ranks: Any, tmp_path: Path, feature: str, first: Plan, then: Plan) -> None:
    params = {"batch": 16, **FEATURES[feature]}
    stopped = ranks.train(first, 6, **USER, params=params, checkpoint_root=str(tmp_path), stop_after=2)
    assert [answer["ended"] for answer in stopped] == ["stopped"] * first.world_size, stopped[0]["traceback"]
    error = difference(ranks, then, feature, checkpoint_root=str(tmp_path), resume_step=2)
    assert error <= TOLERANCES.get(feature, TOLERANCE)


HELD = """
import torch
from workloads.models.stdlib_gpt import StdlibGpt

class Held(StdlibGpt):
    def optimizer(self, model):
        first, *others = model.parameters()
        self.first = first.requires_grad_(False)
        optimizer = torch.optim.SGD(others, 0.5, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
        return optimizer

    def scheduler(self, optimizer, steps):
        return None

    def on_step(self, step, steps, optimizer):
        if step:
            self.schedule.step()
        if step == 2:
            optimizer.param_groups[0]["momentum"] = 0.5
"""


@pytest.mark.parametrize("plan", [ZERO1, Plan(16, tp=2), SHARDED], ids=str)
def test_a_schedule_that_the_workload_holds_reaches_all_parameters(ranks: Any, tmp_path: Path, plan: Plan) -> None:
    (tmp_path / "held.py").write_text(HELD)
    params = {"batch": 16, "depth": 2, "width": 32, "context": 16}
    options = {"workload": "held.py:Held", "code_dir": str(tmp_path), "params": params, "steps": 4, "report_every": 4}
    ((_, expected),) = ranks.curve(ONE, **options)
    ((_, values),) = ranks.curve(plan, **options)
    assert values["train_loss"] == pytest.approx(expected["train_loss"], abs=TOLERANCE)


COMPLEX: list[tuple[dict[str, Any], Plan]] = [
    ({"precision": "fp16", "clip_norm": 0.3}, Plan(8, dp_replicate=2)),
    ({"swa_start": 1, "clip_norm": 0.3}, Plan(16, tp=2)),
    ({"scale_lr": "adascale", "base_batch": 4, "optimizer": "SGD", "lr": 0.1, "ema_decay": 0.5}, PIPELINE),
]


@pytest.mark.parametrize(("more", "plan"), COMPLEX, ids=str)
def test_complex_parameters_are_updated_as_on_one_rank(ranks: Any, more: dict[str, Any], plan: Plan) -> None:
    options = {**USER, "workload": "turned.py:Turned", "params": {"batch": 16, **more}, "steps": 4}
    for (_, values), (_, expected) in zip(ranks.curve(plan, **options), ranks.curve(ONE, **options), strict=True):
        assert values == pytest.approx(expected, abs=1e-2 if "precision" in more else TOLERANCE)


WARM = {
    **USER,
    "workload": "centred.py:Centred",
    "params": {"batch": 16, "ema_decay": 0.9, "ema_warmup": "ratio", "average_buffers": True, "lr": 2e-3},
    "steps": 6,
}
WARM_PLANS = [(Plan(8, dp_replicate=2), PIPELINE), (PIPELINE, SHARDED)]


@pytest.mark.parametrize(("first", "then"), WARM_PLANS, ids=str)
def test_averages_of_buffers_are_those_of_one_rank_and_continue_under_another_plan(
    ranks: Any, tmp_path: Path, first: Plan, then: Plan
) -> None:
    expected = ranks.curve(ONE, **WARM)
    assert ranks.curve(first, **WARM) == [(step, pytest.approx(values, abs=TOLERANCE)) for step, values in expected]
    ranks.train(first, **WARM, checkpoint_root=str(tmp_path), stop_after=2)
    resumed = ranks.curve(then, **WARM, checkpoint_root=str(tmp_path), resume_step=2)
    assert resumed == [(step, pytest.approx(values, abs=TOLERANCE)) for step, values in expected[1:]]


GAN = {
    "workload": "gan.py:DigitsGan",
    "code_dir": str(Path(__file__).parents[4] / "examples"),
    "params": {"batch": 16, "width": 32, "ema_decay": 0.5, "clip_norm": 0.1},
    "metric": "distance",
}
GAN_PLANS = [Plan(8, dp_replicate=2), Plan(4, 2, dp_shard=2, reshard=False)]


@pytest.mark.parametrize("plan", GAN_PLANS, ids=str)
def test_two_optimizers_take_turns_as_on_one_rank_and_continue_under_another_plan(
    ranks: Any, tmp_path: Path, plan: Plan
) -> None:
    reference = ranks.curve(ONE, 6, **GAN)
    assert {"generator_loss", "discriminator_loss"} < reference[0][1].keys()
    for (_, values), (_, expected) in zip(ranks.curve(plan, 6, **GAN), reference, strict=True):
        assert values == pytest.approx(expected, abs=TOLERANCE)
    ranks.train(plan, 6, **GAN, checkpoint_root=str(tmp_path), stop_after=2)
    resumed = ranks.curve(Plan(8, dp_shard=2), 6, **GAN, checkpoint_root=str(tmp_path), resume_step=2)
    for (_, values), (_, expected) in zip(resumed, reference[1:], strict=True):
        assert values == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize("plan", [ZERO1], ids=str)
def test_plans_that_cannot_train_in_phases_are_refused_with_the_cause(ranks: Any, plan: Plan) -> None:
    answers = ranks.train(plan, **GAN)
    assert answers[0]["error"] == "WorkloadError" and "ZeRO-1 divides the states of one" in answers[0]["message"]


BY_HAND = """
import torch
from torch import nn
from torch.nn import functional
from workloads.protocol import Workload


class Scaled(torch.optim.SGD):
    '''A scaler of the user's own: a step is skipped if a gradient has overflowed.'''
    scale, num_skipped = 2.0**22, 0
    def step(self, closure=None):
        gradients = [parameter.grad for group in self.param_groups for parameter in group["params"]]
        if all(bool(gradient.isfinite().all()) for gradient in gradients):
            for gradient in gradients:
                gradient.div_(self.scale)
            self.scale *= 2.0
            return super().step(closure)
        self.num_skipped, self.scale = self.num_skipped + 1, self.scale / 4


class Halved(Workload):
    num_train, num_eval = 64, 8
    def build_model(self): return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
    def optimizer(self, model):
        self.scaled = Scaled(model.parameters(), 0.2)
        return self.scaled
    def train_batch(self, indices): return torch.sin(indices[:, None] * torch.arange(1.0, 5.0)), indices % 3
    eval_batch = train_batch
    def error(self, model, batch, **options):
        with torch.autocast("cpu", torch.float16):
            logits = model(batch[0])
        return functional.cross_entropy(logits.float(), batch[1], **options)
    def loss(self, model, batch): return self.error(model, batch) * self.scaled.scale
    def evaluate(self, model, batch):
        count = torch.full((len(batch[1]),), float(self.scaled.num_skipped))
        return {"loss": self.error(model, batch, reduction="none"), "skipped": count}


class Counted(Halved):
    def loss(self, model, batch):
        return self.error(model, batch, reduction="sum") * self.scaled.scale / 16, torch.tensor(len(batch[1]) / 16)
"""


@pytest.mark.parametrize("name", ["Halved", "Counted"])
def test_fp16_that_is_scaled_by_hand_skips_the_same_updates_under_every_plan(
    ranks: Any, tmp_path: Path, name: str
) -> None:
    (tmp_path / "by_hand.py").write_text(BY_HAND)
    options = {"workload": f"by_hand.py:{name}", "code_dir": str(tmp_path), "params": {"batch": 16}, "steps": 12}
    expected = ranks.curve(ONE, **options)
    assert 3 <= expected[-1][1]["skipped"] < 12
    for plan in (Plan(4, 4), Plan(8, dp_replicate=2), Plan(4, 2, dp_shard=2), Plan(6, 2, dp_shard=2, shares=(6, 2))):
        for (_, values), (_, others) in zip(ranks.curve(plan, **options), expected, strict=True):
            assert values["skipped"] == others["skipped"]
            assert values["loss"] == pytest.approx(others["loss"], abs=1e-2)
