"""Code of a user with checks. In a file of its own, as pytest rewrites the assertions of tests."""

from torch import Tensor


def asserts(x: Tensor) -> None:
    assert (x > 0).all() and not (x > 2).any()


def raises(x: Tensor) -> None:
    if not (x > 0).all() or (x > 2).any():
        raise ValueError("out of range")


def raises_over_several_lines(x: Tensor) -> None:
    if (
        (x > 2).any()
        or not (x > 0).all()
    ):  # fmt: skip
        print("out of range")
        raise ValueError


def branches(x: Tensor) -> Tensor:
    if (x > 0).all():
        return x
    return -x
