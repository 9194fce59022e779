"""Texts of unlike lengths: attention is masked, and the loss of a text is the mean over its own tokens."""

import torch
from torch import nn
from torch.nn import functional

from workloads.protocol import Workload

WIDTH, VOCABULARY, LENGTH = 64, 32, 24


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, padding):
        y = self.first(x)
        x = x + self.attend(y, y, y, key_padding_mask=padding, need_weights=False)[0]
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Model(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens, padding):
        x = self.embed(tokens) + self.places
        for block in self.blocks:
            x = block(x, padding)
        return self.head(x)


class Texts(Workload):
    num_train, num_eval, default_batch = 200, 37, 8

    def __init__(self, params):
        super().__init__(params)
        numbers = torch.Generator().manual_seed(1)
        starts = torch.randint(0, VOCABULARY, (237, 1), generator=numbers)
        self.tokens = (starts + 3 * torch.arange(LENGTH + 1)) % VOCABULARY
        self.sizes = torch.randint(3, LENGTH + 1, (237,), generator=numbers)

    def build_model(self):
        return Model(self.params.get("depth", 3))

    def blocks(self, model):
        return list(model.blocks)

    def optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), lr=self.params.get("lr", 1e-3))

    def train_batch(self, indices):
        return self.tokens[indices], self.sizes[indices]

    def eval_batch(self, indices):
        return self.tokens[200 + indices], self.sizes[200 + indices]

    def of_texts(self, model, batch):
        tokens, sizes = batch
        padding = torch.arange(LENGTH) >= sizes[:, None]
        losses = functional.cross_entropy(
            model(tokens[:, :-1], padding).transpose(1, 2), tokens[:, 1:], reduction="none"
        )
        return losses.masked_fill(padding, 0).sum(1) / sizes

    def loss(self, model, batch):
        return self.of_texts(model, batch).mean()

    def evaluate(self, model, batch):
        return {"loss": self.of_texts(model, batch)}
