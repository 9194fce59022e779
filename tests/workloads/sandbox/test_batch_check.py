"""A loss or a metric that is no mean over samples is found, also if it draws random numbers; one that is is not."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.features.feature import WORKLOADS
from estimators.model import Layout
from workloads.loading import load_workload
from workloads.protocol import Loss, Phase, Workload
from workloads.refusals import WorkloadError
from workloads.sandbox.batch_check import coupling_of, expect_metrics_of_samples, why_whole


class Balanced(nn.Module):
    """Four experts, and a penalty for uneven ones."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(4, 4, bias=False), nn.ModuleList(nn.Linear(4, 3) for _ in range(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shares = self.gate(x).softmax(-1)
        load = functional.one_hot(shares.argmax(-1), 4).float().mean(0)
        logits = sum(shares[:, place, None] * expert(x) for place, expert in enumerate(self.experts))
        return logits, (load * shares.mean(0)).sum()


class Turn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.view_as_real(x.to(self.weight.dtype) @ self.weight)[..., 1]


def _normed() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))


def _mean(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(model(x), y)


def _balanced(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    logits, uneven = model(x)
    return functional.cross_entropy(logits, y) + 0.01 * uneven


def _negatives(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    similar = model(x) @ model(x + 0.1).T
    return functional.cross_entropy(similar, torch.arange(len(x)))


def _of_tokens(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    counts = torch.where(y > 0, y, -100)
    return functional.cross_entropy(model(x), counts, ignore_index=-100)


def _sum_and_count(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    counts = torch.where(y > 0, y, -100)
    return functional.cross_entropy(model(x), counts, ignore_index=-100, reduction="sum"), (y > 0).sum()


def _sum_and_wrong_count(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
    return _sum_and_count(model, x, y)[0], 3.0


def _of_samples_with_tokens(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (functional.cross_entropy(model(x), y, reduction="none") * (y > 0)).mean()


def _noisy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.mse_loss(model(x + torch.randn_like(x)), x[:, :3])


def _noisy_tokens(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    masked = torch.rand_like(x) < 0.3
    return ((model(x * ~masked) - x[:, :3]).square() * masked[:, :3]).sum() / masked[:, :3].sum()


def _mixed_up(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    others, part = torch.randperm(len(x)), torch.rand(())
    logits = model(part * x + (1 - part) * x[others])
    return part * functional.cross_entropy(logits, y) + (1 - part) * functional.cross_entropy(logits, y[others])


def _penalty(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    x = x.requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return slope.square().sum(-1).mean()


class Points(Workload):
    num_train, num_eval = 64, 32

    def build_model(self) -> nn.Module:
        make: Callable[[], nn.Module] = self.params.get("model", lambda: nn.Linear(4, 3))
        return make()

    def train_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        drawn = torch.rand(len(indices), 4) if self.params.get("augments") else 0.0
        return torch.sin(indices[:, None] * torch.arange(1.0, 5.0)) + drawn, indices % 5 % 3

    eval_batch = train_batch

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        of: Callable[..., Loss] = self.params.get("loss", _mean)
        return of(model, *batch)

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        x, y = batch
        logits = model(x)
        right = (logits.argmax(-1) == y).float()
        of: Callable[[Tensor, Tensor], Tensor] = self.params.get("metric", lambda logits, right: right)
        return {"metric": of(logits, right)}


@pytest.mark.parametrize(
    "params",
    [
        pytest.param({}, id="mean"),
        pytest.param({"model": _normed}, id="batch norm and dropout are documented"),
        pytest.param({"loss": _of_samples_with_tokens}, id="weights of samples"),
        pytest.param({"loss": _sum_and_count}, id="a sum and what counts"),
        pytest.param({"loss": _noisy}, id="random numbers in the loss"),
        pytest.param({"loss": _mixed_up}, id="mixup"),
        pytest.param({"loss": _penalty}, id="a penalty of gradients"),
        pytest.param({"augments": True}, id="random samples"),
    ],
)
def test_the_loss_of_a_mean_over_samples_may_be_divided(params: dict[str, Any]) -> None:
    assert why_whole(Points(params)) == ""


@pytest.mark.parametrize(
    "params",
    [
        pytest.param({"loss": lambda model, x, y: len(x) * _mean(model, x, y)}, id="sum"),
        pytest.param({"loss": lambda model, x, y: len(x) * _mean(model, x, y), "model": Turn}, id="sum, complex"),
        pytest.param({"loss": _negatives}, id="negatives within the batch"),
        pytest.param({"loss": _of_tokens}, id="mean over what counts"),
        pytest.param({"loss": _noisy_tokens}, id="mean over what is masked at random"),
        pytest.param({"loss": _sum_and_wrong_count}, id="a count that is no sum"),
        pytest.param({"loss": _balanced, "model": Balanced}, id="balance of experts"),
        pytest.param({"loss": _negatives, "augments": True}, id="negatives among random samples"),
    ],
)
def test_other_losses_are_not_divided_unless_the_workload_accepts_it(params: dict[str, Any]) -> None:
    assert "but the mean over their halves" in why_whole(Points(params))
    accepting = Points(params)
    accepting.accepts_parts = True
    assert why_whole(accepting) == ""


def _hardest(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The sum over the samples that are closer to another class than to their own, and the number of these."""
    points = functional.normalize(model(x), dim=-1)
    distances, same = torch.cdist(points, points), y[:, None] == y[None]
    per_sample = functional.relu((distances * same).amax(1) - (distances + 1e6 * same).amin(1))
    return per_sample.sum(), (per_sample > 0).sum()


class Classes(Points):
    """Eight classes, half as many as the first try has samples; with ``sorted``, samples in the order of classes."""

    def train_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        x, _ = super().train_batch(indices)
        return x, indices // 16 if self.params.get("sorted") else indices % 8

    def eval_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.train_batch(indices)


def test_experts_couple_the_samples_of_a_micro_batch_but_not_those_of_a_rank() -> None:
    captions = load_workload("experts.py:Captions", WORKLOADS)
    traits = coupling_of(captions({}))
    assert "experts of all ranks take the tokens of a micro-batch together" in traits.couples_micro_batch
    assert not traits.couples_samples and not traits.refusal(Layout(dp_replicate=2, divided=True))
    assert traits.refusal(Layout(dp_replicate=2, accumulate=True)) == traits.couples_micro_batch

    class Alone(captions):  # type: ignore[valid-type, misc]
        def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Any:
            return super().loss(model, batch) * batch[0].std()

    assert not coupling_of(Alone({})).couples_micro_batch and "halves" in coupling_of(Alone({})).couples_samples


def test_samples_that_show_nothing_do_not_pass_a_loss() -> None:
    class Ordered(Classes):
        def order(self, epoch: int, generator: torch.Generator) -> Tensor:
            return torch.arange(64)

    nothing_in_halves = why_whole(Ordered({"loss": _hardest}))
    assert re.search(r"is divided by \d+, but those of their halves by 0 in all", nothing_in_halves), nothing_in_halves
    assert "must be those of each sample, added up" in nothing_in_halves
    by_class = Classes({"loss": _hardest, "sorted": True})
    assert "the loss of 16 samples is" in why_whole(by_class), "samples lie class by class, a step has several"
    by_class = Classes({"loss": lambda model, x, y: _hardest(model, x, y)[0] / 16, "sorted": True})
    assert "but the mean over their halves" in why_whole(by_class), "which is 0 for the first samples"


@pytest.mark.parametrize("rare", [{"weight": torch.tensor([1.0, 2.0, 12.0])}, {"ignore_index": 1}], ids=str)
def test_data_that_is_stored_class_by_class_shows_a_weighted_mean(rare: dict[str, Any]) -> None:
    def weighted(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(model(x), (y >= 2).long() + (y >= 3), **rare)

    assert "of 16 samples is" in why_whole(Classes({"loss": weighted, "sorted": True}))


def test_one_try_that_is_equal_proves_nothing() -> None:
    def pairs(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """A count that shows nothing as long as each half has the same."""
        return functional.cross_entropy(model(x), y, reduction="none")[y > 0].sum() / (y > 0).sum()

    def with_tries(*tries: list[int]) -> str:
        class Ordered(Points):
            def order(self, epoch: int, generator: torch.Generator) -> Tensor:
                return torch.tensor([index for each in tries for index in each])

            def train_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
                return super().train_batch(indices)[0], (indices % 2).long()

        return why_whole(Ordered({"loss": pairs, "batch": 16}))

    even, odd = [*range(16)], [*range(16, 32, 2), *range(17, 33, 2)]
    assert with_tries(even) == "" and "16 samples" in with_tries(even, even, even, odd)


def _rare(model: nn.Module, x: Tensor, y: Tensor, counting: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    counts = counting(y)
    return (functional.cross_entropy(model(x), y % 3, reduction="none") * counts).sum(), counts.sum()


def test_samples_that_do_not_count_prove_nothing() -> None:
    def with_count(counting: Callable[[Tensor], Tensor]) -> str:
        workload = Points({"loss": lambda model, x, y: _rare(model, x, y, counting), "batch": 64})
        workload.train_batch = lambda indices: (torch.sin(indices[:, None] * torch.arange(1.0, 5.0)), indices)  # type: ignore[method-assign]
        return why_whole(workload)

    for counting in (lambda index: index > 20, lambda index: index < 0, lambda index: index == 3):
        assert with_count(counting) == "", "a training finds it if there is anything"


def test_a_half_without_a_number_shows_a_difference() -> None:
    def spread(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return ((model(x) - model(x).mean(0)).square().sum() / (len(x) - 1)).sqrt()

    assert "of 2 samples is" in (why := why_whole(Points({"loss": spread}), flops=6e9)), why
    assert "the mean over their halves nan" in why


def test_numbers_have_as_many_digits_as_they_differ_in() -> None:
    def almost(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return _mean(model, x, y) + 1e-4 / len(x)

    words = re.search(
        r"samples is ([\d.]+), but the mean over their halves ([\d.]+),", why_whole(Points({"loss": almost}))
    )
    assert words is not None
    assert 0 < float(words[2]) - float(words[1]) < 2e-5


class Carrying(Points):
    """Its loss depends on the call before, and notes what nobody reads."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        logits = model(batch[0])
        before = getattr(self, "before", torch.zeros(()))
        self.before, self.seen = logits.detach().mean(), logits.detach()
        return functional.cross_entropy(logits + before, batch[1]) + before


class Noting(Points):
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        self.seen = model(batch[0]).detach()
        return super().loss(model, batch)


def test_state_that_a_workload_carries_from_one_batch_to_the_next_is_named() -> None:
    workload = Carrying({})
    assert "keeps self.before and self.seen between calls" in why_whole(workload)
    assert not hasattr(workload, "before")
    assert why_whole(Noting({})) == ""


class Alternating(Points):
    def phases(self) -> list[Phase]:
        return [
            Phase(name, loss, lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
            for name, loss in (("first", super().loss), ("second", lambda model, batch: _negatives(model, *batch)))
        ]


def test_each_phase_is_looked_at() -> None:
    assert why_whole(Alternating({})).startswith("the loss of phase second of 16 samples")


def test_a_workload_that_takes_too_long_or_fails_is_not_checked() -> None:
    params = {"loss": _negatives}
    assert "of 2 samples" in why_whole(Points(params), flops=6e9)
    assert why_whole(Points(params), flops=7e9) == ""
    assert why_whole(Points({"loss": lambda model, x, y: model(x, y)})) == ""


@pytest.mark.parametrize(
    "of",
    [
        pytest.param(lambda logits, right: right.mean().expand(len(right)), id="mean of the batch"),
        pytest.param(lambda logits, right: logits.max(-1).values, id="value of each sample"),
        pytest.param(lambda logits, right: torch.rand_like(right), id="random numbers"),
    ],
)
def test_metrics_whose_mean_is_one_of_samples_are_accepted(of: Any) -> None:
    expect_metrics_of_samples(Points({"metric": of}))


@pytest.mark.parametrize(
    "of",
    [
        pytest.param(lambda logits, right: logits.var(0).mean().expand(len(right)), id="variance"),
        pytest.param(lambda logits, right: ((logits @ logits.T).argmax(-1) / len(right)).double(), id="retrieval"),
    ],
)
def test_metrics_that_depend_on_the_other_samples_are_refused(of: Any) -> None:
    with pytest.raises(WorkloadError, match=r"evaluate gives .* the metric .* from all held-out samples"):
        expect_metrics_of_samples(Points({"metric": of}))


def test_a_metric_that_counts_nothing_is_accepted_unless_other_samples_show_a_difference() -> None:
    class Counting(Points):
        def evaluate(self, model: nn.Module, batch: Any) -> dict[str, Any]:
            x, y = batch
            return {"recall": ((model(x).argmax(-1) == y).float(), self.params["count"](y))}

    expect_metrics_of_samples(Counting({"count": lambda y: torch.zeros(len(y))}))
    with pytest.raises(WorkloadError, match=r"divided by 16, but those of their halves by 0 in all"):
        expect_metrics_of_samples(Counting({"count": lambda y: torch.full((len(y),), float(len(y) > 8))}))
