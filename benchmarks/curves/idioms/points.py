"""Generated data sets and a stack of blocks that the idioms train with; no idiom is in this file."""

import torch
from torch import nn
from torch.nn import functional

from workloads.protocol import Workload

FEATURES, WIDTH, CLASSES, WORDS, LENGTH = 8, 16, 4, 11, 6


class Stack(nn.Module):
    """Points [n, 8] → logits [n, 4]: a linear layer, then ``blocks`` of width 16, then a linear head."""

    def __init__(self, *blocks):
        super().__init__()
        self.first = nn.Linear(FEATURES, WIDTH)
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Points(Workload):
    """Points with one of four labels. Subclasses define ``build_model``, and override ``losses`` if they need to."""

    default_batch = 8
    num_train, num_eval = 40, 16

    def __init__(self, params):
        super().__init__(params)
        numbers = torch.Generator().manual_seed(0)
        self.inputs, self.labels = self.generate(self.num_train + self.num_eval, numbers)

    def generate(self, num, numbers):
        points = torch.randn(num, FEATURES, generator=numbers)
        return points, (points @ torch.randn(FEATURES, CLASSES, generator=numbers)).argmax(-1)

    def train_batch(self, indices):
        return self.inputs[indices], self.labels[indices]

    def eval_batch(self, indices):
        return self.inputs[self.num_train + indices], self.labels[self.num_train + indices]

    def losses(self, model, batch):
        """The loss of each sample, shape [n]."""
        inputs, labels = batch
        return functional.cross_entropy(model(inputs), labels, reduction="none")

    def loss(self, model, batch):
        return self.losses(model, batch).mean()

    def evaluate(self, model, batch):
        return {"loss": self.losses(model, batch)}

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=self.params.get("lr", 0.05), momentum=0.9)


class Stacked(Points):
    """Points through a stack of ``num_blocks`` blocks of the class ``block``."""

    block: type[nn.Module]
    num_blocks = 2

    def build_model(self):
        return Stack(*(self.block() for _ in range(self.num_blocks)))


class Block(nn.Module):
    """A linear layer with a residual connection."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.linear(x).tanh()


class NormedBlock(Block):
    """The same, behind a normalisation."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        return x + self.linear(self.norm(x)).tanh()


class Images(Points):
    """Images [n, 2, 8, 8] with one of four labels."""

    def generate(self, num, numbers):
        images = torch.randn(num, 2, 8, 8, generator=numbers)
        return images, (images.flatten(1) @ torch.randn(128, CLASSES, generator=numbers)).argmax(-1)


class Texts(Points):
    """Words [n, 6], numbers below 11; each word's label is the one that follows it by a rule."""

    def generate(self, num, numbers):
        words = torch.randint(0, WORDS, (num, LENGTH), generator=numbers)
        return words, (3 * words + 1) % WORDS

    def losses(self, model, batch):
        words, following = batch
        return functional.cross_entropy(model(words).transpose(1, 2), following, reduction="none").mean(1)
