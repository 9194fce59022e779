"""Code of a user that looks at tensors. In a file of its own, as pytest rewrites the assertions of tests."""

from torch import Tensor


def asserts(x: Tensor) -> None:
    assert (x > 0).all() and not (x > 2).any()


def raises(x: Tensor) -> None:
    if not (x > 0).all() or (x > 2).any():
        raise ValueError("out of range")


def raises_in_one_line(x: Tensor) -> None:
    if not (x > 0).all() or (x > 2).any(): raise ValueError("out of range")  # fmt: skip  # noqa: E701


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


def shows(loss: Tensor) -> str:
    number = float(loss)
    return f"loss {number:.3f}"


def stops_early(loss: Tensor) -> Tensor | None:
    if float(loss) < 0.1:
        return None
    return loss


def chooses(loss: Tensor) -> int:
    return 1 if float(loss) else 2


def compares(loss: Tensor) -> bool:
    return float(loss) < 0.1


def returns_none(norm: Tensor) -> object:
    return (lambda: norm and None)()


def returns_one_of(norm: Tensor) -> object:
    return norm and shows(norm)
