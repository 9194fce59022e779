"""Windows of the built-in Swin see the positions that they should."""

from __future__ import annotations

import pytest
import torch

from workloads.models.swin import WindowBlock

SIDE, WINDOW = 8, 4


def seen(block: WindowBlock, row: int, column: int) -> set[tuple[int, int]]:
    """The positions that the output at (row, column) depends on."""
    x = torch.randn(1, SIDE**2, 8, requires_grad=True)
    block(x)[0, row * SIDE + column].sum().backward()
    assert x.grad is not None
    touched = x.grad[0].abs().sum(-1) > 0
    return {divmod(int(position), SIDE) for position in touched.nonzero()}


@pytest.mark.parametrize(
    ("shifted", "position", "rows", "columns"),
    [
        (False, (1, 6), range(4), range(4, 8)),
        (True, (3, 3), range(2, 6), range(2, 6)),
        (True, (0, 3), range(2), range(2, 6)),  # at an edge, without the positions that the shift wraps around
        (True, (7, 1), range(6, 8), range(2)),
    ],
    ids=["plain", "shifted", "edge", "corner"],
)
def test_a_position_sees_its_window_alone(
    shifted: bool, position: tuple[int, int], rows: range, columns: range
) -> None:
    torch.manual_seed(0)
    block = WindowBlock(8, 2, SIDE, WINDOW, shifted, 1.0)
    assert seen(block, *position) == {(row, column) for row in rows for column in columns}


def test_the_windows_of_a_shifted_block_are_those_of_a_plain_one_moved() -> None:
    torch.manual_seed(0)
    plain, shifted = (WindowBlock(8, 2, SIDE, WINDOW, shift, 1.0) for shift in (False, True))
    shifted.load_state_dict(plain.state_dict())
    x = torch.randn(2, SIDE, SIDE, 8)
    inside = slice(2, 6)  # one window of the shifted block
    moved = x.roll((-2, -2), (1, 2))
    output = shifted(x.flatten(1, 2)).unflatten(1, (SIDE, SIDE))[:, inside, inside]
    torch.testing.assert_close(output, plain(moved.flatten(1, 2)).unflatten(1, (SIDE, SIDE))[:, :4, :4])
