"""A trace on a CPU casts and keeps tensors as CUDA does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from estimators.model import Layout
from estimators.tracing.device.cuda import IN_FP32, as_on_cuda
from estimators.tracing.tracer import trace, trace_peak
from workloads.function import FunctionWorkload
from workloads.sandbox.recipe import recipe_of

HALF = torch.bfloat16


def dtype_of(function: Callable[[Tensor], Tensor]) -> torch.dtype:
    """Type that ``function`` returns for the result of a product in mixed precision."""
    with FakeTensorMode(allow_non_fake_inputs=True), torch.autocast("cpu", HALF):
        return function(torch.empty(4, 8) @ torch.empty(8, 8)).dtype


@pytest.mark.parametrize(
    "function",
    [
        partial(functional.layer_norm, normalized_shape=(8,)),
        partial(functional.softmax, dim=-1),
        partial(functional.cross_entropy, target=torch.zeros(4, dtype=torch.long)),
        torch.exp,
        torch.sum,
        lambda x: x**3,
        partial(torch.logsumexp, dim=1),
    ],
    ids=["layer norm", "softmax", "cross entropy", "exp", "sum", "power", "logsumexp"],
)
def test_autocast_on_cuda_widens_what_that_of_a_cpu_may_not(function: Callable[[Tensor], Tensor]) -> None:
    with as_on_cuda():
        assert dtype_of(function) == torch.float32


def test_products_and_most_functions_stay_narrow() -> None:
    with as_on_cuda():
        assert dtype_of(functional.gelu) == dtype_of(torch.relu) == dtype_of(lambda x: x @ x.T) == HALF


def test_what_is_done_ends_with_the_block() -> None:
    before = dtype_of(partial(functional.layer_norm, normalized_shape=(8,)))
    with as_on_cuda():
        pass
    assert dtype_of(partial(functional.layer_norm, normalized_shape=(8,))) == before == HALF
    assert torch.autocast.__init__.__qualname__ == "autocast.__init__"


def test_autocast_of_cuda_by_name_works_on_the_cpu_of_a_trace_in_its_own_default() -> None:
    with as_on_cuda(), FakeTensorMode(), torch.autocast("cuda"):
        assert (torch.empty(4, 8) @ torch.empty(8, 8)).dtype == torch.float16


def test_every_operation_in_the_list_is_one_of_torch() -> None:
    for name in IN_FP32:
        packet, _, overload = name.partition(".")
        assert (overload or "default") in getattr(torch.ops.aten, packet).overloads()


class Attends(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout, self.project = dropout, nn.Linear(16, 48)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout).square().mean()


def activations(dropout: float, on_cuda: bool) -> int:
    def make() -> Any:
        return Attends(dropout), lambda batch: torch.zeros(batch, 512, 16)

    recipe = recipe_of(FunctionWorkload(make, {}), on_cuda)
    return trace_peak(recipe, Layout(), 2).parts_at(2)["activations"]


def test_attention_that_drops_keeps_no_pairs_of_positions_on_cuda() -> None:
    pairs = 2 * 2 * 512 * 512 * 4
    assert activations(0.0, True) == activations(0.0, False)
    assert activations(0.1, False) > activations(0.0, False) + pairs
    assert activations(0.1, True) < activations(0.0, True) + 1024


def test_attention_takes_the_same_path_when_it_is_computed_again() -> None:
    with as_on_cuda(), FakeTensorMode():
        x = torch.empty(2, 512, 16, requires_grad=True)
        checkpoint(Attends(0.1), x, use_reentrant=False).backward()
        assert x.grad is not None and x.grad.shape == x.shape


def kept_bytes(function: Callable[[Tensor], Tensor]) -> int:
    """Bytes that autograd keeps for the backward pass of ``function`` of 1,024 numbers of two bytes."""
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    with FakeTensorMode(allow_non_fake_inputs=True):
        values = torch.empty(4, 256, dtype=HALF, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            function(values).sum().backward()
    return sum(sizes.values())


def test_dropout_keeps_a_mask_of_bytes_on_cuda() -> None:
    assert kept_bytes(nn.Dropout(0.1)) == 2 * 1024
    with as_on_cuda():
        assert kept_bytes(nn.Dropout(0.1)) == 1024
        assert kept_bytes(nn.Dropout(0.1).eval()) == kept_bytes(nn.Dropout(0.0)) == 0


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
def test_rms_norm_keeps_its_input_alone_on_cuda() -> None:
    norm, of_other_type = nn.RMSNorm(256, dtype=HALF), nn.RMSNorm(256)
    least = 2 * 1024 + 2 * 256
    assert kept_bytes(norm) > 3 * least
    with as_on_cuda():
        assert least < kept_bytes(norm) < least + 64
        assert kept_bytes(of_other_type) > 3 * least


def test_convolutions_take_nothing_inside_on_cuda() -> None:
    def make() -> Any:
        return nn.Conv2d(16, 16, 3), lambda batch: torch.zeros(batch, 16, 32, 32), lambda model, x: model(x).mean()

    def parts(on_cuda: bool) -> dict[str, int]:
        return trace_peak(recipe_of(FunctionWorkload(make, {}), on_cuda), Layout(), 2).parts_at(2)

    assert parts(False)["workspace"] > 0 and "workspace" not in parts(True)


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


@pytest.mark.parametrize(
    ("options", "all_at_once"),
    [({}, True), ({"foreach": True}, True), ({"foreach": False}, False), ({"fused": True}, False)],
    ids=str,
)
def test_an_optimizer_that_was_not_told_otherwise_updates_all_parameters_at_once(
    options: dict[str, Any], all_at_once: bool
) -> None:
    def make() -> Any:
        return (
            Wide(),
            lambda batch: torch.zeros(batch, 64),
            None,
            lambda parameters: torch.optim.AdamW(parameters, **options),
        )

    traced = trace(recipe_of(FunctionWorkload(make, {}), on_cuda=True), Layout(), 4)
    temporaries = traced.curve.parts(2).get("scratch", 0)
    assert (temporaries >= 4 * traced.num_params) == all_at_once
