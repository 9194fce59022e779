"""Models that every kind of plan can divide, for the check of all plans against one process."""

import torch
from base import Base, Classifier, Layer
from torch import nn
from torch.nn import functional

from workloads.protocol import Chain, Divided, Split, Workload


class Deep(Classifier):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Layer() for _ in range(8))


class Stack(Base):
    """Equal blocks."""

    def build_model(self):
        return Deep()


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.head = width // heads
        self.split = Split(("qkv", "up"), ("out", "down"), ("first", "second"), heads)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.mixed(self.first(x)) + self.down(functional.gelu(self.up(self.second(x))))

    def mixed(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (-1, 3, self.head)).transpose(1, 2).unbind(-2)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Narrow(nn.Module):
    """A block of another kind than its neighbours."""

    def __init__(self, width, hidden):
        super().__init__()
        self.split = Split(("up",), ("down",), ("norm",), 4)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Mixed(Chain):
    enters, leaves = ("embed", "places"), ("norm", "head")
    divided = Divided(("embed", "head"))

    def __init__(self, kinds, width, length, hidden):
        super().__init__()
        self.width, self.length = width, length
        self.embed, self.places = nn.Embedding(16, width), nn.Parameter(torch.randn(length, width))
        makers = {"a": lambda: Attention(width, 4), "n": lambda: Narrow(width, hidden)}
        self.blocks = nn.ModuleList(makers[kind]() for kind in kinds)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 16)

    def enter(self, x):
        return self.embed(x) + self.places

    def leave(self, x):
        return self.head(self.norm(x))

    def hidden_shape(self, num_samples):
        return num_samples, self.length, self.width


class Tokens(Workload):
    """A sequence model of unlike blocks: ``kinds`` has a letter for each."""

    num_train, num_eval = 64, 21

    def __init__(self, params):
        super().__init__(params)
        self.length = params.get("length", 12)
        self.tokens = torch.randint(0, 16, (85, self.length + 1), generator=torch.Generator().manual_seed(3))

    def build_model(self):
        width = self.params.get("width", 64)
        hidden = self.params.get("hidden", width)
        return Mixed(self.params.get("kinds", "anaanana"), width, self.length, hidden)

    def train_batch(self, indices):
        return self.tokens[indices]

    def eval_batch(self, indices):
        return self.tokens[64 + indices]

    def loss(self, model, batch):
        return functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    def evaluate(self, model, batch):
        losses = functional.cross_entropy(model(batch[:, :-1]).transpose(1, 2), batch[:, 1:], reduction="none")
        return {"loss": losses.mean(1)}
