"""A model of language whose loss chooses positions by masks, in the forms that people write.

``make(model=…)`` returns what ``scamp estimate benchmarks/covering/masked.py:make`` takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

LENGTH, WORDS, WIDTH, IGNORED = 128, 2000, 256, -100


class Model(nn.Module):
    """Embedding, two layers and a head; ``forward`` returns features and logits of every position."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """``ids`` [n, LENGTH] → features [n, LENGTH, WIDTH], logits [n, LENGTH, WORDS]."""
        features = self.words(ids)
        for layer in self.layers:
            features = features + layer(features)
        return features, self.head(features)


def _pick(choose: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[nn.Module, Any], Tensor]:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        features, logits = model(batch[0])
        return choose(features, logits, batch[1])

    return loss


def _later_head(choose: Callable[[Tensor, Tensor], Tensor]) -> Callable[[nn.Module, Any], Tensor]:
    """The head sees chosen positions alone, as in masked language models."""

    def loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        features = model.words(batch[0])
        for layer in model.layers:
            features = features + layer(features)
        mask = choose(features, batch[1])
        return functional.cross_entropy(model.head(features[mask]), batch[1][mask].clamp(min=0))

    return loss


def _valid_depth(features: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    true_depth, predicted_depth = labels.float() + 1, logits.mean(-1).exp()
    valid = (true_depth > 0).detach()
    difference = torch.log(true_depth[valid]) - torch.log(predicted_depth[valid])
    return torch.sqrt(difference.pow(2).mean() - 0.5 * difference.mean().pow(2))


def _of_flat(features: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    rows, flat = logits.flatten(0, 1), labels.flatten()
    return functional.cross_entropy(rows[flat != IGNORED], flat[flat != IGNORED])


def _of_positions(features: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    rows, flat = logits.flatten(0, 1), labels.flatten()
    places = (flat != IGNORED).nonzero()[:, 0]
    return functional.cross_entropy(rows.index_select(0, places), flat[places])


def _hardest(features: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    losses = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none")
    return losses[losses > losses.mean()].mean()


def _without_nan(features: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    finite = torch.isfinite(logits)
    if (~finite).nonzero().numel():
        raise ValueError("not finite")
    return logits[finite].square().mean()


FORMS: dict[str, Callable[[nn.Module, Any], Tensor]] = {
    "boolean index of two dimensions": _pick(
        lambda f, o, y: functional.cross_entropy(o[y != IGNORED], y[y != IGNORED])
    ),
    "flat boolean index": _pick(_of_flat),
    "positions by nonzero": _pick(_of_positions),
    "labels summed by a mask": _pick(
        lambda f, o, y: functional.cross_entropy(o.flatten(0, 1), y.flatten()) + y[y > 3].float().mean()
    ),
    "torch.where with one argument": _pick(
        lambda f, o, y: functional.cross_entropy(o[torch.where(y > 0)], y[torch.where(y > 0)])
    ),
    "masked_select": _pick(lambda f, o, y: o.sum(-1).masked_select(y != IGNORED).mean()),
    "written by a mask": _pick(lambda f, o, y: o.clone().index_put_((y == IGNORED,), o.new_zeros(())).mean()),
    "lengths of samples": _pick(
        lambda f, o, y: torch.cat([row[: int(n)] for row, n in zip(o, (y != IGNORED).sum(-1), strict=True)]).mean()
    ),
    "valid depth": _pick(_valid_depth),
    "a head of chosen positions": _later_head(lambda f, y: y != IGNORED),
    "chosen at random": _later_head(lambda f, y: (torch.rand(y.shape) < 0.15) & (y != IGNORED)),
    "chosen by features": _later_head(lambda f, y: f.norm(dim=-1) > f.norm(dim=-1).mean()),
    "hardest positions": _pick(_hardest),
    "without NaN": _pick(_without_nan),
}


def make(model: str, batch: int = 16) -> Any:
    """The model with the loss of this form; a quarter of the labels is ``IGNORED``."""

    def inputs(num: int) -> tuple[Tensor, Tensor]:
        labels = torch.randint(0, WORDS, (num, LENGTH))
        labels[:, -LENGTH // 4 :] = IGNORED
        return torch.randint(0, WORDS, (num, LENGTH)), labels

    return Model(), inputs, FORMS[model]
