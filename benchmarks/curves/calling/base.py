"""The usual form of calling a model, ``Form``: once in a loss, and the model its blocks one after another.

``width`` and ``depth`` are parameters: small ones train, large ones have states that one device does not hold.
"""

import torch
from torch import nn
from torch.nn import functional

from workloads.protocol import Workload

WORDS, LENGTH = 16, 8


class Block(nn.Module):
    """A residual feed-forward block, [n, t, width] → [n, t, width]."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def change(self, x):
        return self.down(functional.gelu(self.up(self.norm(x))))

    def forward(self, x):
        return x + self.change(x)


class Net(nn.Module):
    """Words [n, t] → logits [n, t, words]."""

    def __init__(self, width, blocks):
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        nn.init.normal_(self.words.weight, std=0.2)
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(width, WORDS)

    def body(self, x):
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, words):
        return self.head(self.body(self.words(words)))


class Form(Workload):
    """Words [n, 8], each labelled with another word by a rule. Subclasses change how the model, or a block, is called.

    ``net`` and ``block`` are the classes of the model and of its blocks.
    """

    net, block = Net, Block
    default_batch = 8
    num_train, num_eval = 40, 16

    def __init__(self, params):
        super().__init__(params)
        self.width, self.depth = params.get("width", 16), params.get("depth", 3)
        numbers = torch.Generator().manual_seed(0)
        self.inputs = torch.randint(0, WORDS, (self.num_train + self.num_eval, LENGTH), generator=numbers)
        self.labels = (3 * self.inputs + self.inputs.roll(1, 1)) % WORDS

    def build_model(self):
        return self.net(self.width, self.make_blocks())

    def make_blocks(self):
        return [self.block(self.width) for _ in range(self.depth)]

    def train_batch(self, indices):
        return self.inputs[indices], self.labels[indices]

    def eval_batch(self, indices):
        return self.train_batch(self.num_train + indices)

    def losses(self, model, batch):
        """The loss of each sample, shape [n]."""
        words, labels = batch
        return errors(model(words), labels)

    def loss(self, model, batch):
        return self.losses(model, batch).mean()

    def evaluate(self, model, batch):
        return {"loss": self.losses(model, batch)}

    def optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), lr=self.params.get("lr", 0.003))


def errors(logits, labels):
    """Cross-entropy of each sample, shape [n]."""
    return functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none").mean(1)


def distance(logits, other_logits):
    """Mean squared difference of each sample, shape [n]."""
    return (logits - other_logits).square().mean((1, 2))
