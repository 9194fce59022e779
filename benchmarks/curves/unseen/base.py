"""Generated data sets and a plain stack of layers for the unseen idioms; no idiom is in this file."""

import torch
from torch import nn
from torch.nn import functional

from workloads.protocol import Workload

INPUTS, WIDTH, OUTPUTS = 12, 18, 3
TOKENS, LENGTH = 13, 10
HEADS, HEAD_SIZE = 3, 6


class Tower(nn.Module):
    """Vectors [n, 12] → [n, 3]: a linear layer, then ``layers`` of width 18, then a linear layer."""

    def __init__(self, *layers):
        super().__init__()
        self.stem = nn.Linear(INPUTS, WIDTH)
        self.layers = nn.ModuleList(layers)
        self.out = nn.Linear(WIDTH, OUTPUTS)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


class Mixer(nn.Module):
    """A residual layer with two linear layers, ``up`` and ``down``."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(functional.silu(self.up(self.norm(x))))


class Vectors(Workload):
    """Regression: vectors [n, 12] with targets [n, 3]. Subclasses define ``build_model``."""

    default_batch = 8
    num_train, num_eval = 40, 16

    def __init__(self, params):
        super().__init__(params)
        self.inputs, self.targets = self.generate(self.num_train + self.num_eval, torch.Generator().manual_seed(7))

    def generate(self, num, numbers):
        vectors = torch.randn(num, INPUTS, generator=numbers)
        return vectors, torch.sin(vectors @ torch.randn(INPUTS, OUTPUTS, generator=numbers))

    def train_batch(self, indices):
        return self.inputs[indices], self.targets[indices]

    def eval_batch(self, indices):
        return self.train_batch(self.num_train + indices)

    def losses(self, model, batch):
        """The loss of each sample, shape [n]."""
        inputs, targets = batch
        return (model(inputs) - targets).square().mean(-1)

    def loss(self, model, batch):
        return self.losses(model, batch).mean()

    def evaluate(self, model, batch):
        return {"loss": self.losses(model, batch)}

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=self.params.get("lr", 0.05), momentum=0.9)


class Labels(Vectors):
    """Classification: vectors [n, 12] with one of three labels."""

    def generate(self, num, numbers):
        vectors, targets = super().generate(num, numbers)
        return vectors, targets.argmax(-1)

    def losses(self, model, batch):
        inputs, labels = batch
        return functional.cross_entropy(model(inputs), labels, reduction="none")


class Sentences(Vectors):
    """Tagging: tokens [n, 10], numbers below 13; a token's tag is the sum of it and the one before it, modulo 13."""

    def generate(self, num, numbers):
        tokens = torch.randint(0, TOKENS, (num, LENGTH), generator=numbers)
        return tokens, (tokens + tokens.roll(1, 1)) % TOKENS

    def losses(self, model, batch):
        tokens, tags = batch
        return functional.cross_entropy(model(tokens).transpose(1, 2), tags, reduction="none").mean(1)
