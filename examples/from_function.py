"""A workload from a function that builds a model."""

from __future__ import annotations

from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from scamp import from_function

images, digits = load_digits(return_X_y=True)
images = (images / 16).astype("float32")


def build(width: int, depth: int = 2) -> nn.Module:
    hidden = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), *hidden, nn.Linear(width, 10))


def correct(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(-1) == targets).float()


Digits = from_function(
    build,
    train=(images[:1500], digits[:1500]),
    held_out=(images[1500:], digits[1500:]),
    loss=cross_entropy,
    metrics={"accuracy": correct},
)
