"""A residual network for small images."""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)])

    def forward(self, x):
        y = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(x + self.norms[1](self.second(y)))


class Net(nn.Module):
    def __init__(self, channels, depth):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.ModuleList([Block(channels) for _ in range(depth)])
        self.head = nn.Linear(channels, 100)

    def forward(self, images):
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


def make(channels=64, depth=8):
    def inputs(batch):
        return torch.randn(batch, 3, 32, 32), torch.randint(100, (batch,))

    def loss(model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1])

    return Net(channels, depth), inputs, loss
