"""A perceptron on tabular data."""

import torch
from torch import nn
from torch.nn import functional


def make(width=512, depth=3):
    layers = [nn.Linear(64, width), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.1)]
    model = nn.Sequential(*layers, nn.Linear(width, 10))

    def inputs(batch):
        return torch.randn(batch, 64), torch.randint(10, (batch,))

    def loss(model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1])

    return model, inputs, loss
