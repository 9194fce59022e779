"""Sketches tell how far two gradients are apart, without holding both."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from workloads.training.guard.sketch import WIDTH, sketches


def sketch(gradient: Tensor) -> Tensor:
    parameter = nn.Parameter(torch.zeros(gradient.shape, dtype=gradient.dtype))
    parameter.grad = gradient
    return sketches([parameter.grad])[0]


@pytest.mark.parametrize("shape", [(7,), (300, 50), (3, 100_001)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_the_distance_of_two_sketches_is_about_that_of_the_gradients(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    torch.manual_seed(1)
    gradient, change = torch.randn(shape).to(dtype), 0.01 * torch.randn(shape).to(dtype)
    changed = gradient + change
    distance = float((changed.to(torch.complex128) - gradient.to(torch.complex128)).norm())
    assert float((sketch(changed) - sketch(gradient)).norm()) == pytest.approx(distance, rel=3 * (2 / WIDTH) ** 0.5)


def test_one_changed_element_shows_wherever_it_is() -> None:
    gradient = torch.zeros(200_000)
    for place in (0, 65_535, 65_536, 131_072, 199_999):
        changed = gradient.clone()
        changed[place] = 3.0
        assert float(sketch(changed).norm()) == pytest.approx(3.0)


def test_a_sketch_is_linear_and_a_missing_gradient_is_zero() -> None:
    torch.manual_seed(0)
    first, second = torch.randn(1000), torch.randn(1000)
    torch.testing.assert_close(sketch(first) + sketch(second), sketch(first + second), rtol=1e-4, atol=1e-4)
    assert sketches([None]).abs().sum() == 0


def test_a_conjugate_that_torch_only_notes_has_the_sketch_of_its_numbers() -> None:
    gradient = torch.randn(20, dtype=torch.complex64)
    torch.testing.assert_close(sketch(gradient.conj()), sketch(gradient.conj().resolve_conj()))


def test_rows_of_a_sparse_gradient_may_come_in_any_order() -> None:
    rows, values = torch.tensor([5, 2, 900]), torch.randn(3, 4)
    sketched, again = (
        sketch(torch.sparse_coo_tensor(rows[order][None], values[order], (1000, 4), check_invariants=True))
        for order in (torch.tensor([0, 1, 2]), torch.tensor([2, 0, 1]))
    )
    torch.testing.assert_close(sketched, again)
    assert sketched.norm() > 0
