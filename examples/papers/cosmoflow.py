"""CosmoFlow: the parameters of a universe from its density field, by 3D convolutions (Mathuriya et al., SC 2018).

The fields are generated: Gaussian random fields in periodic boxes, whose power spectrum falls with k⁻⁴ and turns over
at a long wave. A model predicts the amplitude A and the wavelength of the turnover. Small samples are parts of the same
boxes; few long waves fit into them, so the error falls with the size of a sample, as in "The Case for Strong Scaling in
Deep Learning" (Oyama et al., 2021). Samples are divided over ranks by ``spatial``. The study beside it is
``cosmoflow.yaml``.
"""

from functools import cache
from itertools import pairwise

import torch
from torch import nn

from scamp import Spatial, Workload

AMPLITUDES, WAVELENGTHS = (0.6, 1.6), (6.0, 30.0)
"""Ranges in which the logarithms of both parameters are uniform; wavelengths in voxels."""
LEVELS = 3


class Universes(Workload):
    """Metrics: ``error``, the mean absolute error of both parameters as a share of their ranges, and ``loss``.

    A guess of the middle has an error of 0.25. Parameters, with defaults: ``box`` 32 (voxels a side), ``side`` of a
    sample (8, 16, …; by default that of a box, which holds (box / side)³ samples), ``boxes`` 480 (a fifth is
    held out), ``width`` 8 (channels of the first of three levels), ``lr`` 2e-3, ``batch`` 8.
    """

    default_batch = 8

    def __init__(self, params):
        super().__init__(params)
        self.box = params.get("box", 32)
        self.side, self.width = params.get("side", self.box), params.get("width", 8)
        if self.side % 2**LEVELS or self.box % self.side:
            raise ValueError(f"side must be a multiple of 8 that divides box ({self.box}), got {self.side}")
        self.parts = (self.box // self.side) ** 3
        self.boxes = params.get("boxes", 480)
        self.num_eval = self.boxes // 5 * self.parts
        self.num_train = self.boxes * self.parts - self.num_eval

    def build_model(self):
        return CosmoFlow(self.width)

    def train_batch(self, indices):
        """Fields [n, 1, side, side, side] and their parameters from -1 to 1, [n, 2]."""
        return self._samples(indices + self.num_eval)

    def eval_batch(self, indices):
        return self._samples(indices)

    def _samples(self, indices):
        fields, parameters = boxes(self.boxes, self.box)
        per_side = self.box // self.side
        cut = fields.view(-1, *(per_side, self.side) * 3)
        place = indices % self.parts
        where = place // per_side**2, place // per_side % per_side, place % per_side
        return cut[indices // self.parts, where[0], :, where[1], :, where[2]][:, None], parameters[
            indices // self.parts
        ]

    def loss(self, model, batch):
        fields, parameters = batch
        return (model(fields) - parameters).square().mean()

    def evaluate(self, model, batch):
        fields, parameters = batch
        differences = model(fields) - parameters
        return {"error": differences.abs().mean(1) / 2, "loss": differences.square().mean(1)}

    def optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), lr=self.params.get("lr", 2e-3), weight_decay=0.01)

    def scheduler(self, optimizer, steps):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, self.params.get("lr", 2e-3), max(steps, 2))

    def blocks(self, model):
        return list(model.levels)


class CosmoFlow(nn.Module):
    """Fields [n, 1, side, side, side] → two parameters [n, 2].

    Without normalisation, which would hide the amplitude. The head are convolutions with a kernel of 1, and a mean over
    all of space comes before it, so that ranks can hold slabs of a sample.
    """

    def __init__(self, width):
        super().__init__()
        self.spatial = Spatial(dims=(2, None), multiple_of=2**LEVELS)
        channels = [1, *(width << level for level in range(LEVELS))]
        self.levels = nn.ModuleList(
            nn.Sequential(
                nn.Conv3d(before, after, 3, padding=1),
                nn.LeakyReLU(0.1),
                nn.Conv3d(after, after, 3, padding=1),
                nn.LeakyReLU(0.1),
                nn.AvgPool3d(2),
            )
            for before, after in pairwise(channels)
        )
        self.pool = nn.AdaptiveAvgPool3d(1)
        self.head = nn.Sequential(
            nn.Conv3d(channels[-1], channels[-1], 1), nn.LeakyReLU(0.1), nn.Conv3d(channels[-1], 2, 1)
        )

    def forward(self, fields):
        for level in self.levels:
            fields = level(fields)
        return self.head(self.pool(fields)).flatten(1)


@cache
def boxes(num, side):
    """Fields [num, side, side, side] and their parameters, scaled to -1 … 1, [num, 2]; the held-out ones come first."""
    numbers = torch.Generator().manual_seed(0)
    parameters = 2 * torch.rand(num, 2, generator=numbers) - 1
    low, high = torch.tensor([AMPLITUDES, WAVELENGTHS]).log().T
    amplitude, wavelength = ((low + high + (high - low) * parameters) / 2).exp().T[..., None, None, None]
    k = torch.fft.fftfreq(side)  # waves per voxel
    k = (k[:, None, None] ** 2 + k[:, None] ** 2 + k[: side // 2 + 1] ** 2).sqrt()
    noise = torch.fft.rfftn(torch.randn(num, side, side, side, generator=numbers), dim=(1, 2, 3))
    # A k⁻⁴ for short waves; for those that are longer than the turnover it falls to A k wavelength⁵.
    power = 0.004 * amplitude * k * wavelength**5 / (1 + (k * wavelength) ** 5)
    return torch.fft.irfftn(noise * power.sqrt(), s=(side,) * 3, dim=(1, 2, 3)), parameters
