"""Optimizers update local tensors with the result of DTensors, and leave DTensors behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.optim import ASGD, SGD, Adagrad, AdamW, Optimizer, RMSprop
from torch.testing._internal.distributed.fake_pg import FakeStore

from workloads.parallel.optimizers.local_step import step_on_local_parts

Make = Callable[[Iterable[Tensor]], Optimizer]
OPTIMIZERS: list[Make] = [
    lambda parameters: AdamW(parameters, lr=0.1, amsgrad=True),
    lambda parameters: SGD(parameters, lr=0.1, momentum=0.9),
    lambda parameters: Adagrad(parameters, lr=0.1),
    lambda parameters: RMSprop(parameters, lr=0.1, momentum=0.5, centered=True),
    lambda parameters: ASGD(parameters, lr=0.1),
]


def _trained(make: Make, *, local: bool) -> tuple[list[Tensor], Any]:
    mesh = init_device_mesh("cpu", (2,))
    numbers = torch.Generator().manual_seed(0)
    full = torch.randn(3, 4, generator=numbers)  # 3 rows on 2 ranks: this one has 2
    spread = nn.Parameter(distribute_tensor(full, mesh, [Shard(0)], src_data_rank=None))
    copied = nn.Parameter(distribute_tensor(full[0], mesh, [Replicate()], src_data_rank=None))
    plain = nn.Parameter(full[1].clone())
    optimizer = make([spread, copied, plain])
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(type(optimizer.param_groups[0]["params"][0])))
    optimizer.register_step_post_hook(lambda *_: seen.append(type(optimizer.param_groups[0]["params"][0])))
    if local:
        step_on_local_parts(optimizer)
    for step in range(3):
        for parameter in (spread, copied, plain):
            gradient = torch.randn(parameter.shape, generator=numbers)
            if isinstance(parameter, DTensor):
                gradient = distribute_tensor(gradient, mesh, parameter.placements, src_data_rank=None)
            if parameter is not plain or step:  # one that begins later
                parameter.grad = gradient
        optimizer.step()
        optimizer.zero_grad()
    assert set(seen) == {type(spread)}, "hooks see DTensors"
    return [spread, copied, plain], optimizer.state


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_local_steps_have_the_result_of_steps_with_dtensors(make: Make) -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        (parameters, states), (expected, expected_states) = (_trained(make, local=local) for local in (True, False))
        for parameter, other in zip(parameters, expected, strict=True):
            assert torch.equal(_local(parameter), _local(other))
            state, other_state = states[parameter], expected_states[other]
            assert {name: type(value) for name, value in state.items()} == {
                name: type(value) for name, value in other_state.items()
            }
            for name, value in state.items():
                assert value is None or torch.equal(_local(value), _local(other_state[name])), name
                assert getattr(value, "_spec", None) == getattr(other_state[name], "_spec", None), name
    finally:
        _clear_sharding_prop_cache()
        dist.destroy_process_group()


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def test_other_optimizers_keep_dtensors() -> None:
    class Own(SGD): ...

    optimizer = Own([nn.Parameter(torch.zeros(1))], lr=0.1)
    assert step_on_local_parts(optimizer) is optimizer and not optimizer._optimizer_step_pre_hooks
