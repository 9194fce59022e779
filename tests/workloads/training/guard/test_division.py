"""A curve that depends on how a batch is divided ends its training; one that does not is left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from estimators.model import Plan

CASES = """
import random
import torch
from torch import nn
from torch.nn import functional
from workloads.protocol import Chain, Workload

CLASSES = torch.arange(64) // 16  # stored class after class
POINTS = torch.randn(64, 6, generator=torch.Generator().manual_seed(0)) + CLASSES[:, None]
WEIGHTS = torch.tensor([1.0, 2.0, 4.0, 12.0])


class Base(Workload):
    num_train, num_eval, default_batch = 64, 16, 32
    def build_model(self): return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    def optimizer(self, model): return torch.optim.SGD(model.parameters(), 0.1)
    def train_batch(self, indices): return POINTS[indices], CLASSES[indices]
    eval_batch = train_batch
    def loss(self, model, batch): return functional.cross_entropy(model(batch[0]), batch[1])
    def evaluate(self, model, batch):
        return {"loss": functional.cross_entropy(model(batch[0]), batch[1], reduction="none")}


class Sized(Base):
    def loss(self, model, batch):
        if self.training_steps > 1 and len(batch[0]) < 16:
            raise ValueError("at least 16 samples")
        return super().loss(model, batch)
    training_steps = 0
    def on_step(self, step, steps, optimizer): self.training_steps += 1


class Paired(Base):
    '''Fails, with an error of torch, where a micro-batch has an odd number of samples.'''
    def loss(self, model, batch):
        logits = model(batch[0])
        return functional.cross_entropy(logits, batch[1]) + 0.1 * (logits[::2] - logits[1::2]).square().mean()


class NoisyMean(Base):
    '''Draws numbers for each sample, for a part of it, and for all: a mean over samples nevertheless.'''
    def loss(self, model, batch):
        points = batch[0] + torch.randn_like(batch[0]) * torch.rand(len(batch[0]), 1) + 0.1 * torch.randn(6)
        logits = functional.dropout(model(points), 0.2)
        return functional.cross_entropy(logits + 0.1 * torch.randn(logits.shape) * random.random(), batch[1])


class NoisyWeights(NoisyMean):
    def loss(self, model, batch):
        logits = model(batch[0] + 0.3 * torch.randn(batch[0].shape))
        return functional.cross_entropy(logits, batch[1], weight=torch.tensor([1.0, 2.0, 4.0, 12.0]))


class NoisyGradient(Base):
    def build_model(self):
        model = super().build_model()
        next(model.parameters()).register_hook(lambda gradient: gradient + 0.1 * torch.randn_like(gradient))
        return model


class Stages(Chain):
    enters, leaves = ("first",), ("last",)
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4))
    def enter(self, x): return self.first(x)
    def leave(self, x): return self.last(x)
    def hidden_shape(self, num_samples): return (num_samples, 8)


class Staged(Base):
    def build_model(self): return Stages()
    def loss(self, model, batch):
        loss = functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
        return loss.sum(), torch.tensor(len(loss))


class ClampedStage(Staged):
    def build_model(self):
        model = super().build_model()
        model.blocks[1].register_forward_hook(self.clamped)
        return model
    def clamped(self, module, inputs, output):
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient.clamp(-0.001, 0.001))


class Weighted(Base):
    def loss(self, model, batch): return functional.cross_entropy(model(batch[0]), batch[1], weight=WEIGHTS)


class Hooked(Base):
    def build_model(self):
        model = super().build_model()
        model[0].register_full_backward_hook(lambda module, inputs, outputs: None)
        model[1].register_forward_hook(self.clamped)
        return model
    def clamped(self, module, inputs, output):
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient / gradient.norm())


class ClampedParameter(Base):
    def build_model(self):
        model = super().build_model()
        model[0].weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
        return model


class ClampedHidden(Hooked):
    def clamped(self, module, inputs, output):
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient.clamp(-0.001, 0.001))


class Accumulated(Base):
    def build_model(self):
        model = super().build_model()
        model[2].weight.register_post_accumulate_grad_hook(self.cut)
        return model
    def cut(self, parameter): parameter.grad.clamp_(-0.02, 0.02)


class Noised(Base):
    '''Random numbers of each step.'''
    def on_step(self, step, steps, optimizer): self.noise = torch.randn(4)
    def loss(self, model, batch): return functional.cross_entropy(model(batch[0]) + self.noise, batch[1])


class Gated(nn.Module):
    '''Attention between samples behind a gate that is 0 at first.'''
    def __init__(self):
        super().__init__()
        self.lift, self.out, self.gate = nn.Linear(6, 8), nn.Linear(8, 4), nn.Parameter(torch.zeros(1))
    def forward(self, x):
        x = self.lift(x).tanh()
        return self.out(x + self.gate * (x @ x.T).softmax(-1) @ x)


class Attends(Base):
    def build_model(self): return Gated()


class Later(Base):
    '''A term over the batch that grows from 0, after two steps.'''
    def on_step(self, step, steps, optimizer): self.share = max(0, step - 1)
    def loss(self, model, batch):
        out = model(batch[0])
        return functional.cross_entropy(out, batch[1]) + self.share * out.mean(0).square().sum()


class Plateau(Base):
    '''The loss of the last micro-batch decides about the learning rate.'''
    last = 9.0
    def loss(self, model, batch):
        loss = super().loss(model, batch)
        self.last = float(loss.detach())
        return loss
    def on_step(self, step, steps, optimizer):
        if self.last < 2.0:
            for group in optimizer.param_groups: group["lr"] *= 0.9


class Periodic(Base):
    '''A term over the batch in every third step.'''
    share = 0.0
    def on_step(self, step, steps, optimizer): self.share = float(step % 3 == 2)
    def loss(self, model, batch):
        out = model(batch[0])
        return functional.cross_entropy(out, batch[1]) + self.share * out.var(0).sum()


class Lazily(Periodic):
    '''The same, by other code.'''
    def on_step(self, step, steps, optimizer): self.step = step
    def loss(self, model, batch):
        loss = functional.cross_entropy(out := model(batch[0]), batch[1])
        return loss + out.var(0).sum() if self.step % 3 == 2 else loss


class Mixing(nn.Sequential):
    '''Takes the mean of the batch away, where an attribute of the module says so.'''
    share = 0.0
    def forward(self, x):
        x = super().forward(x)
        return x - self.share * x.mean(0)


class MixesOnce(Base):
    def build_model(self):
        self.net = Mixing(nn.Linear(6, 4))
        return self.net
    def on_step(self, step, steps, optimizer): self.net.share = float(step == 2)


class Counted(Weighted):
    '''A sum, and what it is divided by.'''
    def loss(self, model, batch):
        losses = functional.cross_entropy(model(batch[0]), batch[1], weight=WEIGHTS, reduction="sum")
        return losses, WEIGHTS[batch[1]].sum()


class Dropped(Base):
    def build_model(self):
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 4))


class InBackward(Base):
    '''A term, a mean over samples, that only the backward pass adds.'''
    def loss(self, model, batch):
        outputs = model(batch[0])
        return functional.cross_entropy(Adding.apply(outputs, outputs.square().mean()), batch[1])


class Adding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, outputs, term): return outputs.clone()
    @staticmethod
    def backward(ctx, gradient): return gradient, torch.ones(())


class Noisy(Base):
    '''A function that drops out by the mode of the model.'''
    def loss(self, model, batch):
        return functional.cross_entropy(model(functional.dropout(batch[0], training=model.training)), batch[1])


class Drawing(Base):
    '''Batches that are made together, as they are random.'''
    def train_batch(self, indices):
        points, classes = super().train_batch(indices)
        return points + 0.1 * torch.randn(points.shape), classes


class Keeping(Base):
    '''State that a pass changes, and that the check brings back.'''
    def build_model(self):
        model = super().build_model()
        model[0].register_buffer("passes", torch.zeros(()))
        model[0].register_forward_pre_hook(self.count)
        return model
    def count(self, module, inputs):
        if module.training:
            module.passes += 1


class Averaging(nn.Module):
    '''A moving average of samples in an attribute, by which later steps are divided.'''
    def __init__(self):
        super().__init__()
        self.layer, self.mean = nn.Linear(6, 4), torch.tensor(1.0)
    def forward(self, x):
        out = self.layer(x) / self.mean
        if self.training:
            self.mean = 0.5 * self.mean + 0.5 * x.square().mean().detach()
            self.last = x.detach()  # for somebody to look at
        return out


class Averages(Base):
    def build_model(self): return Averaging()


class Watching(Base):
    '''The size of gradients, which halves itself where they are of the mean of twice as many samples.'''
    size = 0.0
    def note(self, gradient): self.size = 0.5 * self.size + gradient.abs().mean()
    def loss(self, model, batch):
        logits = model(batch[0])
        if logits.requires_grad: logits.register_hook(self.note)
        return functional.cross_entropy(logits / (1 + 0.05 * self.size), batch[1])


class Varied(Base):
    '''A term that is no number for a single sample, once three steps are done.'''
    num_steps = 0
    def on_step(self, step, steps, optimizer): self.num_steps += 1
    def loss(self, model, batch):
        out = model(batch[0])
        term = out.var(0).sum() if self.num_steps > 3 else 0
        return functional.cross_entropy(out, batch[1]) + term


class Looking(Base):
    '''Attributes that nothing reads.'''
    def loss(self, model, batch):
        loss = super().loss(model, batch)
        self.last_loss, self.last_batch = loss.detach(), batch
        return loss


class Leftover(Base):
    '''A layer that no optimizer has: its gradient grows with every step.'''
    def optimizer(self, model): return torch.optim.SGD(model[2].parameters(), 0.1)


class Complex(Base):
    def build_model(self):
        model = nn.Sequential(nn.Linear(6, 8, dtype=torch.complex64), nn.Linear(8, 4, dtype=torch.complex64))
        return model
    def loss(self, model, batch): return functional.cross_entropy(model(batch[0].cfloat()).abs(), batch[1])
    def evaluate(self, model, batch):
        return {"loss": functional.cross_entropy(model(batch[0].cfloat()).abs(), batch[1], reduction="none")}


class Ranking(Base):
    '''A metric that compares samples, once two steps are done; the loss compares none.'''
    share = 0.0
    def on_step(self, step, steps, optimizer): self.share = float(step >= 2)
    def evaluate(self, model, batch):
        logits = model(batch[0])
        right = ((logits - self.share * logits.mean(0)).argmax(-1) == batch[1]).float()
        return {"loss": functional.cross_entropy(logits - self.share * logits.mean(0), batch[1], reduction="none"),
                "right": right, "drawn": right}


class Sampling(Base):
    '''A metric that draws samples, another of whole numbers, and one of the whole set.'''
    def evaluate(self, model, batch):
        logits = model(batch[0])
        loss = functional.cross_entropy(logits + torch.randn(logits.shape), batch[1], reduction="none")
        return {"loss": loss}, logits.argmax(-1)
    def summarize(self, outputs): return {"classes": float(len(set(outputs.tolist())))}


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, num): self.num = num
    def __len__(self): return self.num
    def __iter__(self):
        for place in range(self.num):
            yield POINTS[place * 5 % 64], CLASSES[place * 5 % 64]


class Streamed(Base):
    num_train, num_eval = Workload.num_train, Workload.num_eval
    train_batch, eval_batch = Workload.train_batch, Workload.eval_batch
    def __init__(self, params):
        super().__init__(params)
        self.num_workers = params.get("num_workers", 0)
    def dataset(self, split): return Stream(64 if split == "train" else 16)
    def augment(self, sample, generator):
        return sample[0] + 0.01 * torch.randn(6, generator=generator), sample[1]


class StreamedWeighted(Streamed):
    loss = Weighted.loss


class Coupled(Base):
    def loss(self, model, batch):
        out = model(batch[0])
        return functional.cross_entropy(out, batch[1]) + out.var(0, unbiased=False).sum()


class Penalized(Base):
    '''A penalty of gradients, which needs a graph.'''
    def loss(self, model, batch):
        points = batch[0].requires_grad_()
        out = model(points)
        slope, = torch.autograd.grad(out.sum(), points, create_graph=True)
        return functional.cross_entropy(out, batch[1]) + 0.1 * slope.square().sum(-1).mean()
"""
DIVIDED = [Plan(8, num_micro_batches=4), Plan(16, dp_shard=2), Plan(4, num_micro_batches=4, dp_replicate=2)]


@pytest.fixture
def cases(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "cases.py").write_text(CASES)
    return {"code_dir": str(tmp_path), "params": {"batch": 32}}


def refusal(ranks: Any, plan: Plan, name: str, cases: dict[str, Any], steps: int = 4) -> str:
    answers = ranks.train(plan, steps, workload=f"cases.py:{name}", **cases)
    assert {answer["error"] for answer in answers} == {"DependsOnDivision"}, answers[0]["traceback"]
    assert len({answer["message"] for answer in answers}) == 1
    return str(answers[0]["message"])


@pytest.mark.sample
@pytest.mark.full
@pytest.mark.parametrize("plan", DIVIDED, ids=str)
@pytest.mark.parametrize("name", ["Weighted", "Attends"])
def test_a_loss_that_depends_on_the_division_ends_after_the_second_step(
    ranks: Any, cases: dict[str, Any], name: str, plan: Plan
) -> None:
    assert " changes " in (words := refusal(ranks, plan, name, cases)) and "in step 2 when" in words
    assert ranks.curve(Plan(32), workload=f"cases.py:{name}", **cases), "one rank trains it"


@pytest.mark.sample
@pytest.mark.full
@pytest.mark.parametrize("name", ["Periodic", "Lazily", "MixesOnce"])
def test_a_step_that_does_something_else_is_checked_at_once(ranks: Any, cases: dict[str, Any], name: str) -> None:
    assert "in step 3 when" in refusal(ranks, DIVIDED[0], name, cases, steps=5), "as no other step would show it"


def test_an_attribute_of_samples_that_decides_between_steps_is_compared(ranks: Any, cases: dict[str, Any]) -> None:
    assert "self.last, which is read between steps," in refusal(ranks, DIVIDED[0], "Plateau", cases)


@pytest.mark.sample
@pytest.mark.full
@pytest.mark.parametrize("plan", DIVIDED, ids=str)
def test_state_of_samples_is_found_by_the_step_after(ranks: Any, cases: dict[str, Any], plan: Plan) -> None:
    assert " changes " in refusal(ranks, plan, "Averages", cases)


def test_state_of_gradients_is_found_by_half_the_loss(ranks: Any, cases: dict[str, Any]) -> None:
    assert " changes " in refusal(ranks, Plan(16, dp_shard=2), "Watching", cases)


@pytest.mark.sample
@pytest.mark.full
@pytest.mark.parametrize("plan", [DIVIDED[1], Plan(20, dp_replicate=2, shares=(20, 12))], ids=str)
def test_a_gradient_that_a_hook_changes_ends_a_training_on_ranks(ranks: Any, cases: dict[str, Any], plan: Plan) -> None:
    assert "the gradient of" in refusal(ranks, plan, "ClampedHidden", cases)


@pytest.mark.sample
@pytest.mark.full
@pytest.mark.parametrize("name", ["Hooked", "ClampedParameter", "ClampedHidden", "Accumulated"])
def test_a_gradient_that_a_hook_changes_ends_a_training_in_micro_batches(
    ranks: Any, cases: dict[str, Any], name: str
) -> None:
    words = refusal(ranks, Plan(8, num_micro_batches=4), name, cases)
    assert words.startswith("the gradient of ") and words.endswith(
        "in step 2 when micro-batches have 4 instead of 8 samples"
    )


def test_a_loss_that_is_no_number_for_fewer_samples_depends_on_the_division(ranks: Any, cases: dict[str, Any]) -> None:
    words = refusal(ranks, Plan(2, num_micro_batches=16), "Varied", cases)
    assert words.endswith("is no longer finite in step 4 when micro-batches have 1 instead of 2 samples")


def test_a_loss_that_fails_with_fewer_samples_depends_on_the_division(ranks: Any, cases: dict[str, Any]) -> None:
    words = refusal(ranks, Plan(16, num_micro_batches=2), "Sized", cases)
    assert words == "step 2 fails with fewer samples than planned in a pass: ValueError: at least 16 samples"


def test_a_loss_that_takes_pairs_of_samples_depends_on_the_division(ranks: Any, cases: dict[str, Any]) -> None:
    assert "size of tensor" in refusal(ranks, Plan(8, num_micro_batches=4), "Paired", cases)


@pytest.mark.full
@pytest.mark.sample
@pytest.mark.parametrize("plan", [*DIVIDED, Plan(1, num_micro_batches=32)], ids=str)
def test_a_loss_with_random_numbers_is_compared_with_those_of_each_sample(
    ranks: Any, cases: dict[str, Any], plan: Plan
) -> None:
    assert "changes" in refusal(ranks, plan, "NoisyWeights", cases)
    answers = ranks.train(plan, 4, workload="cases.py:NoisyMean", **cases)
    assert not any(answer.get("error") for answer in answers), answers[0]["traceback"]


def test_gradients_with_noise_depend_on_the_division(ranks: Any, cases: dict[str, Any]) -> None:
    words = refusal(ranks, Plan(8, num_micro_batches=4), "NoisyGradient", cases)
    assert words.startswith("the noise of gradients, which their backward pass draws, changes in step 2 when")


@pytest.mark.full
def test_a_gradient_that_a_hook_changes_ends_a_pipeline(ranks: Any, cases: dict[str, Any]) -> None:
    plan = Plan(8, 4, pp=2)
    words = refusal(ranks, plan, "ClampedStage", cases)
    assert words.startswith("the gradient of ") and "in step 2 when its loss counts half as much" in words
    assert len(ranks.curve(plan, workload="cases.py:Staged", **cases)) > 1


def test_a_term_that_begins_later_is_found_before_the_last_report(ranks: Any, cases: dict[str, Any]) -> None:
    plan = Plan(8, num_micro_batches=4)
    (answer,) = ranks.train(plan, 7, workload="cases.py:Later", report_every=7, **cases)
    assert answer["error"] == "DependsOnDivision" and answer["reports"] == [], "no value of such a curve is reported"


@pytest.mark.sample
@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "plan"),
    [
        *((name, DIVIDED[0]) for name in ("Counted", "Dropped", "Noisy", "Drawing", "Complex", "Leftover", "Looking")),
        ("Counted", DIVIDED[2]),
        ("Dropped", DIVIDED[1]),
        ("InBackward", DIVIDED[1]),
        ("Drawing", DIVIDED[2]),
        ("Leftover", DIVIDED[1]),
    ],
    ids=str,
)
def test_what_depends_on_the_division_by_rounding_or_as_documented_trains_on(
    ranks: Any, cases: dict[str, Any], name: str, plan: Plan
) -> None:
    assert len(ranks.curve(plan, 4, workload=f"cases.py:{name}", **cases)) == 2


@pytest.mark.parametrize("plan", [DIVIDED[0], Plan(16, dp_replicate=2, zero1=True)], ids=str)
@pytest.mark.full
def test_random_numbers_of_on_step_are_those_of_one_rank_also_after_a_resume(
    ranks: Any, cases: dict[str, Any], plan: Plan, tmp_path: Path
) -> None:
    options = {**cases, "workload": "cases.py:Noised", "steps": 6}
    expected = dict(ranks.curve(Plan(32), **options))
    ranks.train(plan, **options, stop_after=2, checkpoint_root=str(tmp_path / "stopped"))
    resumed = ranks.curve(plan, **options, resume_step=2, checkpoint_root=str(tmp_path / "stopped"))
    for step, values in [*ranks.curve(plan, **options), *resumed]:
        assert values == pytest.approx(expected[step], abs=1e-5)


@pytest.mark.sample
@pytest.mark.full
@pytest.mark.parametrize("name", ["Keeping", "Drawing", "Dropped", "Leftover"])
def test_a_checked_training_has_the_curve_of_one_that_is_not(ranks: Any, cases: dict[str, Any], name: str) -> None:
    plan = Plan(8, num_micro_batches=4)
    checked = ranks.curve(plan, 6, workload=f"cases.py:{name}", **cases)
    assert checked == ranks.curve(plan, 6, workload=f"cases.py:{name}", guard=False, **cases)


ONE_BY_ONE = [Plan(1, num_micro_batches=32), Plan(1, num_micro_batches=16, dp_replicate=2)]


@pytest.mark.sample
@pytest.mark.full
@pytest.mark.parametrize("plan", ONE_BY_ONE, ids=str)
@pytest.mark.parametrize("name", ["Weighted", "Coupled", "Hooked"])
def test_micro_batches_of_one_sample_are_compared_with_pairs(
    ranks: Any, cases: dict[str, Any], name: str, plan: Plan
) -> None:
    words = refusal(ranks, plan, name, cases, 2)
    ways = {"Hooked": "its loss counts half as much, as it does beside another sample"}
    assert words.endswith(ways.get(name, "micro-batches have 2 instead of 1 samples"))


@pytest.mark.sample
@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "plan"),
    [
        *((name, ONE_BY_ONE[0]) for name in ("Base", "Counted", "Noisy", "Penalized", "Drawing")),
        ("Counted", ONE_BY_ONE[1]),
        ("Drawing", ONE_BY_ONE[1]),
    ],
    ids=str,
)
def test_micro_batches_of_one_sample_train_on_where_they_may(
    ranks: Any, cases: dict[str, Any], name: str, plan: Plan
) -> None:
    checked = ranks.curve(plan, 2, workload=f"cases.py:{name}", **cases)
    assert checked == ranks.curve(plan, 2, workload=f"cases.py:{name}", guard=False, **cases)


@pytest.mark.sample
@pytest.mark.full
@pytest.mark.parametrize("plan", [DIVIDED[0], DIVIDED[2], Plan(32, evaluation_batch=4), ONE_BY_ONE[0]], ids=str)
def test_a_metric_that_depends_on_the_division_is_named(ranks: Any, cases: dict[str, Any], plan: Plan) -> None:
    (answer, *_) = ranks.train(plan, 5, workload="cases.py:Ranking", report_every=1, **cases)
    assert answer["error"] == "DependsOnDivision" and len(answer["reports"]) <= 4
    assert answer["message"].startswith("the metric ") and " after step " in answer["message"]
    assert ranks.curve(Plan(32), 5, workload="cases.py:Ranking", **cases), "one rank trains it"
    assert len(ranks.curve(plan, 5, workload="cases.py:Sampling", **cases)) == 3


@pytest.mark.sample
@pytest.mark.full
@pytest.mark.parametrize(("plan", "num_workers"), [(DIVIDED[0], 1), (DIVIDED[1], 0)], ids=str)
def test_samples_that_are_read_in_order_are_kept_for_the_check(
    ranks: Any, cases: dict[str, Any], plan: Plan, num_workers: int
) -> None:
    cases = {**cases, "params": {"batch": 32, "num_workers": num_workers}}
    size = min(plan.micro_batch, 8)  # which are enough
    halves = f"micro-batches have {size // 2} instead of {size} samples"
    assert refusal(ranks, plan, "StreamedWeighted", cases).endswith(halves)
    checked = ranks.curve(plan, 4, workload="cases.py:Streamed", **cases)
    assert checked == ranks.curve(plan, 4, workload="cases.py:Streamed", guard=False, **cases)


def test_precision_decides_what_counts_as_rounding(ranks: Any, cases: dict[str, Any]) -> None:
    cases = {**cases, "params": {"batch": 32, "precision": "bf16"}}
    plan = Plan(8, num_micro_batches=4)
    assert len(ranks.curve(plan, 4, workload="cases.py:Base", **cases)) == 2
    assert refusal(ranks, plan, "Weighted", cases)
