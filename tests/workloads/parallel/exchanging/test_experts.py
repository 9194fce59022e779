"""Experts that ranks hold or divide, against one process: outputs, gradients, dropped tokens and the balance loss."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn import functional

from benchmarks.curves.forks import in_forks
from benchmarks.features.feature import WORKLOADS
from estimators.model import Plan
from estimators.tracing.tracer import trace_peak
from scamp.workload.experts import Experts
from scamp.workload.protocol import Divided
from tests.waiting import PATIENCE_SECONDS
from workloads.loading import load_workload
from workloads.parallel.exchanging.divided import divide_layers, divisible_layers, most_ranks
from workloads.parallel.exchanging.experts import join_ranks
from workloads.sandbox.recipe import recipe_of

NUM, CHOICES, FEATURES = 4, 2, 6


def experts_of(capacity: float | None) -> Experts:
    torch.manual_seed(1)
    return Experts(lambda: nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 5)), NUM, capacity)


def routed(rows: slice) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, probabilities of experts, and choices: most choose the first expert."""
    draws = torch.Generator().manual_seed(2)
    tokens = torch.randn(11, FEATURES, generator=draws)
    probabilities = (torch.randn(11, NUM, generator=draws) + torch.tensor([2.0, 0.5, 0, 0])).softmax(-1)
    return tokens[rows].requires_grad_(), probabilities[rows], probabilities.topk(CHOICES).indices[rows]


def outcome(experts: Experts, rows: slice) -> dict[str, Any]:
    """Outputs, gradients of a sum, and the balance loss; then the outputs of an evaluation."""
    tokens, probabilities, choices = routed(rows)
    output = experts(tokens, choices, probabilities.gather(-1, choices))
    (output * torch.linspace(-1, 2, 55).view(11, 5)[rows]).sum().backward()
    with torch.no_grad():
        evaluated = experts.eval()(tokens, choices, probabilities.gather(-1, choices))
    return {
        "output": output.tolist(),
        "of tokens": tokens.grad.tolist(),  # type: ignore[union-attr]
        "of parameters": [whole_gradient(parameter).tolist() for parameter in experts.parameters()],
        "balance": experts.balance_loss(probabilities, choices).item(),
        "evaluated": evaluated.tolist(),
    }


def whole_gradient(parameter: Tensor) -> Tensor:
    gradient = parameter.grad
    assert gradient is not None
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient


def on_rank(rank: int, folder: Path, capacity: float, divided: bool) -> dict[str, Any]:
    """The first rank has seven tokens, the second one four."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 2), rank=rank, world_size=2)
    experts, mesh = experts_of(capacity), init_device_mesh("cpu", (2,), mesh_dim_names=("replicate",))
    join_ranks(experts, mesh)
    if divided:
        divide_layers(divisible_layers(experts), mesh)
        assert [part.to_local().shape[0] for part in experts.parameters() if isinstance(part, DTensor)] == [
            NUM // 2
        ] * 4
    answer = outcome(experts, slice(0, 7) if rank == 0 else slice(7, 11))
    dist.destroy_process_group()
    return answer


@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("capacity", [0.75, 4.0])
def test_ranks_with_unequal_numbers_of_tokens_compute_and_drop_what_one_process_does(
    tmp_path: Path, capacity: float, divided: bool
) -> None:
    answers = in_forks([partial(on_rank, rank, tmp_path, capacity, divided) for rank in range(2)], PATIENCE_SECONDS)
    alone = outcome(experts_of(capacity), slice(0, 11))
    for name in ("output", "of tokens", "evaluated"):
        assert torch.tensor([*answers[0][name], *answers[1][name]]).allclose(torch.tensor(alone[name]), atol=1e-6), name
    for place, expected in enumerate(alone["of parameters"]):
        of_ranks = [torch.tensor(answer["of parameters"][place]) for answer in answers]
        gradient = of_ranks[0] * 2 if divided else sum(of_ranks)  # a loss is a mean over ranks
        assert isinstance(gradient, Tensor) and gradient.allclose(torch.tensor(expected), atol=1e-6)
    assert 7 / 11 * answers[0]["balance"] + 4 / 11 * answers[1]["balance"] == pytest.approx(alone["balance"])


@pytest.mark.full
@pytest.mark.sample
@pytest.mark.parametrize("share", [0, 1])
def test_a_trace_has_as_many_tokens_as_the_shares_of_all_ranks(share: int) -> None:
    recipe = recipe_of(load_workload("experts.py:Captions", WORKLOADS)({}))
    plan = Plan(6, dp_replicate=2, divided=True, shares=(6, 2)).of_share(share)
    layouts = (plan.layout, replace(plan.layout, shares=()))
    unlike, equal = (trace_peak(recipe, layout, plan.micro_batch).parts_at(1)["activations"] for layout in layouts)
    rows = 8 - 2 * plan.micro_batch  # more than with equal shares
    assert (unlike > equal) == (rows > 0)
    assert abs(unlike - equal) > abs(rows) * 10 * 2 * 32 * 4, "a token goes to two experts, which keep its 32 features"


def test_an_expert_takes_the_tokens_with_the_largest_weights_and_evaluation_drops_none() -> None:
    tokens = torch.eye(4)[:, :1].expand(4, 1).clone()
    tokens[:] = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    choices, weights = torch.tensor([[0], [0], [0], [1]]), torch.tensor([[0.5], [0.9], [0.7], [0.1]])
    experts = Experts(nn.Identity, 2, capacity=1.0)
    assert experts(tokens, choices, weights).flatten().tolist() == pytest.approx([0, 1.8, 2.1, 0.4])
    assert experts.eval()(tokens, choices, weights).flatten().tolist() == pytest.approx([0.5, 1.8, 2.1, 0.4])
    assert experts(tokens[:0], choices[:0], weights[:0]).shape == (0, 1)


def test_without_dropped_tokens_it_is_the_sum_of_what_the_chosen_experts_compute() -> None:
    experts, (tokens, probabilities, choices) = experts_of(None), routed(slice(0, 11))
    weights = probabilities.gather(-1, choices)
    output = experts(tokens.view(11, 1, FEATURES), choices[:, None], weights[:, None])
    up, down = experts.stacked.get_submodule("0"), experts.stacked.get_submodule("2")
    assert isinstance(up, nn.Linear) and isinstance(down, nn.Linear)
    for token, chosen, weight, computed in zip(tokens, choices, weights, output[:, 0], strict=True):
        expected = sum(
            factor
            * functional.linear(functional.linear(token, up.weight[e], up.bias[e]).tanh(), down.weight[e], down.bias[e])
            for e, factor in zip(chosen, weight, strict=True)
        )
        assert isinstance(expected, Tensor) and computed.allclose(expected, atol=1e-6)
    assert experts.balance_loss(torch.full((11, NUM), 1 / NUM), choices) == pytest.approx(1.0)


def test_only_experts_with_a_capacity_are_divided_and_buffers_are_refused() -> None:
    assert (most_ranks(experts_of(2.0)), most_ranks(experts_of(None))) == (NUM, 1)
    with pytest.raises(ValueError, match="experts have no buffers, but BatchNorm1d has some"):
        Experts(lambda: nn.BatchNorm1d(3), 2)
    same = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="must return a new module"):
        Experts(lambda: same, 2)
    with pytest.raises(ValueError, match=r"names is a tuple: Divided\(\('head',\)\)"):
        Divided("head")  # type: ignore[arg-type]


def test_arguments_of_other_shapes_and_types_are_named() -> None:
    experts, (tokens, probabilities, choices) = experts_of(1.0), routed(slice(0, 11))
    weights = probabilities.gather(-1, choices)
    for wrong in ((choices[:, 0], weights[:, 0]), (weights, choices), (choices.int(), weights), (choices[:5], weights)):
        with pytest.raises(ValueError, match=r"choices \(int64\) and weights must have shape"):
            experts(tokens, *wrong)
    with pytest.raises(ValueError, match=r"probabilities must have shape \[…, 4\]"):
        experts.balance_loss(probabilities[:, :3], choices)
