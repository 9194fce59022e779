"""SplitSGD: the halves of weights are those of SGD in fp32 that gets the same gradients, bit for bit."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from scamp import SplitSGD


def joined(parameter: Tensor, optimizer: SplitSGD) -> Tensor:
    upper = parameter.detach().view(torch.int16).to(torch.int32) << 16
    return (upper | (optimizer.state[parameter]["lower"].view(torch.int16).to(torch.int32) & 0xFFFF)).view(
        torch.float32
    )


def gradient_of(shape: tuple[int, ...], *, sparse: bool) -> Tensor:
    if not sparse:
        return torch.randn(shape).bfloat16()
    rows = torch.randint(shape[0], (1, 300))  # some of them twice
    return torch.sparse_coo_tensor(rows, torch.randn(300, *shape[1:]).bfloat16(), shape, check_invariants=False)


@pytest.mark.parametrize(
    ("shape", "sparse"),
    [((), False), ((7,), False), ((400_003,), False), ((129, 2049), False), ((900, 33), True), ((20, 9000), True)],
)
def test_halves_are_those_of_sgd_in_fp32_on_the_same_gradients(shape: tuple[int, ...], sparse: bool) -> None:
    torch.manual_seed(0)
    upper = nn.Parameter(torch.randn(shape).bfloat16())
    of_fp32 = nn.Parameter(upper.detach().float())
    split, plain = SplitSGD([upper], lr=0.013), torch.optim.SGD([of_fp32], lr=0.013)
    for _ in range(6):
        upper.grad = gradient_of(shape, sparse=sparse)
        if sparse:
            indices, values = upper.grad._indices(), upper.grad._values().float()
            of_fp32.grad = torch.sparse_coo_tensor(indices, values, shape, check_invariants=False).coalesce()
        else:
            of_fp32.grad = upper.grad.float()
        split.step()
        plain.step()
    assert torch.equal(joined(upper, split), of_fp32.detach())


def test_it_continues_from_a_state_dict_and_updates_other_types_as_sgd_does() -> None:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(9, 5).bfloat16(), nn.Linear(5, 2)) for _ in range(2)]
    first, second = (SplitSGD(model.parameters(), lr=0.1) for model in models)
    for step in range(4):
        if step == 2:
            models[1].load_state_dict(models[0].state_dict())
            second.load_state_dict(deepcopy(first.state_dict()))
        for model, optimizer in zip(models, (first, second), strict=True):
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, 0.013)
            optimizer.step()
    for weight, resumed in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(weight, resumed)
    halves, others = models[0].parameters(), models[1].parameters()
    assert torch.equal(joined(next(halves), first), joined(next(others), second))
    assert all(not first.state[weight] for weight in models[0][1].parameters())
