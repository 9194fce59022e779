"""A GAN that draws handwritten digits: two networks, each with a loss and an optimizer of its own.

Ported from an ordinary script. Its loop of two ``backward`` and two ``step`` became two phases; the noise moved into
``train_batch``, so that it is the same under every plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from scamp import Phase, Workload

NUM_TRAIN, NUM_NEAR = 1437, 200


class Gan(nn.Module):
    def __init__(self, noise: int, width: int) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.Linear(noise, width),
            nn.LeakyReLU(0.2),
            nn.Linear(width, width),
            nn.LeakyReLU(0.2),
            nn.Linear(width, 64),
            nn.Tanh(),
        )
        self.discriminator = nn.Sequential(
            nn.Linear(64, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2), nn.Linear(width, 1)
        )

    def forward(self, part: str, x: Tensor) -> Tensor:
        out: Tensor = getattr(self, part)(x)
        return out


class DigitsGan(Workload):
    num_train, num_eval, default_batch = NUM_TRAIN, 1797 - NUM_TRAIN, 64

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__(params)
        self.noise, self.width = params.get("noise", 16), params.get("width", 128)
        self.lr, self.smooth = params.get("lr", 1e-3), params.get("smooth", 0.9)
        self.images: Tensor | None = None

    def build_model(self) -> nn.Module:
        return Gan(self.noise, self.width)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        if self.images is None:
            images = torch.from_numpy(load_digits().data).float() / 8 - 1
            self.images = images[torch.randperm(len(images), generator=torch.Generator().manual_seed(0))]
        return self.images[indices], torch.randn(len(indices), self.noise)

    def train_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.batch(indices)

    def eval_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        images, _ = self.batch(NUM_TRAIN + indices)
        places = torch.arange(self.noise)
        return images, torch.sin((1.0 + indices[:, None]) * (1.0 + places) ** 2)  # the same noise in every evaluation

    def phases(self) -> list[Phase]:
        return [
            Phase("discriminator", self.discriminator_loss, self.optimizer_of("discriminator")),
            Phase("generator", self.generator_loss, self.optimizer_of("generator")),
        ]

    def optimizer_of(self, part: str) -> Any:
        return lambda model: torch.optim.Adam(getattr(model, part).parameters(), lr=self.lr, betas=(0.5, 0.999))

    def discriminator_loss(self, model: nn.Module, batch: Any) -> Tensor:
        images, noise = batch
        with torch.no_grad():
            drawn = model("generator", noise)
        real, fake = model("discriminator", images), model("discriminator", drawn)
        return self.cross_entropy(real, self.smooth) + self.cross_entropy(fake, 0.0)

    def generator_loss(self, model: nn.Module, batch: Any) -> Tensor:
        return self.cross_entropy(model("discriminator", model("generator", batch[1])), 1.0)

    @staticmethod
    def cross_entropy(logits: Tensor, target: float) -> Tensor:
        return functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, target))

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        """``fooled``: share of drawn digits that look real; ``distance``: from one to the nearest of some real digits,
        the mean square over its pixels."""
        images, noise = batch
        assert self.images is not None
        drawn, near = model("generator", noise), self.images[:NUM_NEAR].to(noise.device)
        return {
            "fooled": (model("discriminator", drawn)[:, 0] > 0).float(),
            "spotted": (model("discriminator", images)[:, 0] > 0).float(),
            "distance": torch.cdist(drawn, near).amin(1).square() / 64,
        }
