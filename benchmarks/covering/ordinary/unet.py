"""A U-Net for segmentation."""

import torch
from torch import nn
from torch.nn import functional


def twice(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.GroupNorm(8, outputs),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.GroupNorm(8, outputs),
        nn.ReLU(),
    )


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        sizes = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList([twice(a, b) for a, b in zip([3, *sizes[:-1]], sizes, strict=True)])
        self.up = nn.ModuleList([twice(a + b, b) for a, b in zip(sizes[:0:-1], sizes[-2::-1], strict=True)])
        self.head = nn.Conv2d(width, 4, 1)

    def forward(self, x):
        skips = []
        for layer in self.down:
            x = layer(x)
            skips.append(x)
            x = functional.max_pool2d(x, 2)
        x = functional.interpolate(x, scale_factor=2)
        for layer, other in zip(self.up, skips[-2::-1], strict=True):
            x = functional.interpolate(x, scale_factor=2)
            x = layer(torch.cat([x, other], 1))
        return self.head(x)


def make(width=32):
    def inputs(batch):
        return torch.randn(batch, 3, 64, 64), torch.randint(4, (batch, 64, 64))

    def loss(model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1])

    return Net(width), inputs, loss
