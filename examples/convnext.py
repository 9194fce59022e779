"""A ConvNeXt that reads digits: a model of your own, in one file. The study beside it is ``convnext.yaml``.

The images are scikit-learn's 1,797 handwritten digits, enlarged from 8×8 to 32×32 pixels. The model cuts them into
patches of 4×4 pixels.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

from scamp import Workload

NUM_EVAL = 360


class Block(nn.Module):
    """Depthwise 7×7 convolution, then two linear layers at every position, scaled per channel (layer scale)."""

    def __init__(self, width):
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full([width], 0.1))

    def forward(self, x):
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.contract(functional.gelu(self.expand(y)))
        return x + y.permute(0, 3, 1, 2)


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of images, [n, channels, height, width]."""

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """``depth`` blocks of ``width`` channels on 8×8 positions, then thrice as many of twice the width on 4×4."""

    def __init__(self, depth, width):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 4, stride=4), ChannelNorm(width))
        down = nn.Sequential(ChannelNorm(width), nn.Conv2d(width, 2 * width, 2, stride=2))
        first, second = (Block(width) for _ in range(depth)), (Block(2 * width) for _ in range(3 * depth))
        self.blocks = nn.ModuleList([*first, down, *second])
        self.norm = nn.LayerNorm(2 * width)
        self.head = nn.Linear(2 * width, 10)
        self.apply(initialise)

    def forward(self, images):
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x.mean([2, 3])))


def initialise(module):
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)


class Digits(Workload):
    """Metrics: ``accuracy`` (chance: 0.1) and ``loss``. Parameters: ``depth``, ``width``, ``lr``, ``weight_decay``."""

    default_batch = 32
    num_eval = NUM_EVAL

    def __init__(self, params):
        super().__init__(params)
        self.images, self.labels = load_images()

    @property
    def num_train(self):
        return len(self.labels) - NUM_EVAL

    def build_model(self):
        return ConvNeXt(self.params.get("depth", 1), self.params.get("width", 64))

    def train_batch(self, indices):
        return self.images[NUM_EVAL + indices], self.labels[NUM_EVAL + indices]

    def eval_batch(self, indices):
        return self.images[indices], self.labels[indices]

    def loss(self, model, batch):
        images, labels = batch
        return functional.cross_entropy(model(images), labels)

    def evaluate(self, model, batch):
        images, labels = batch
        logits = model(images)
        return {
            "accuracy": (logits.argmax(-1) == labels).float(),
            "loss": functional.cross_entropy(logits, labels, reduction="none"),
        }


def load_images():
    """Images, shape [1797, 1, 32, 32], and labels, both in one fixed random order."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1)
    images = functional.interpolate((images - images.mean()) / images.std(), scale_factor=4)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return images[order], torch.tensor(digits.target)[order]
