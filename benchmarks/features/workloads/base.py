"""A small classifier that every kind of plan can divide; workloads of features derive from it."""

import torch
from torch import nn
from torch.nn import functional

from workloads.protocol import Chain, Split, Workload

WIDTH, HEADS, LENGTH, CLASSES = 16, 2, 6, 4


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.split = Split(("up",), ("down",), ("norm",), HEADS)
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Classifier(Chain):
    enters, leaves = ("first",), ("head",)

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(CLASSES, WIDTH)
        self.blocks = nn.ModuleList(Layer() for _ in range(4))
        self.head = nn.Linear(WIDTH, CLASSES)

    def enter(self, x):
        return self.first(x)

    def leave(self, x):
        return self.head(x.mean(1))

    def hidden_shape(self, num_samples):
        return num_samples, LENGTH, WIDTH


def samples(num, seed=0):
    """Sequences of vectors, shape [num, LENGTH, CLASSES], whose class is the largest entry of their sum."""
    numbers = torch.randn(num, LENGTH, CLASSES, generator=torch.Generator().manual_seed(seed))
    return numbers, numbers.sum(1).argmax(-1)


class Base(Workload):
    num_train, num_eval = 50, 21

    def __init__(self, params):
        super().__init__(params)
        self.inputs, self.classes = samples(71)

    def build_model(self):
        return Classifier()

    def train_batch(self, indices):
        return self.inputs[indices], self.classes[indices]

    def eval_batch(self, indices):
        return self.train_batch(50 + indices)

    def loss(self, model, batch):
        inputs, classes = batch
        return functional.cross_entropy(model(inputs), classes)

    def evaluate(self, model, batch):
        inputs, classes = batch
        logits = model(inputs)
        return {
            "loss": functional.cross_entropy(logits, classes, reduction="none"),
            "accuracy": (logits.argmax(-1) == classes).float(),
        }
