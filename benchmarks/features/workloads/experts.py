"""A model of an image and a text with experts in each block, and a head that ranks may divide, as a small M6."""

import torch
from torch import nn
from torch.nn import functional

from workloads.protocol import Divided, Experts, Workload

WORDS, LENGTH, PATCHES = 40, 6, 4


def feed_forward(width):
    return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))


class Block(nn.Module):
    def __init__(self, width, experts, capacity):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = Experts(lambda: feed_forward(width), experts, capacity)

    def forward(self, x):
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        y = self.norms[1](x)
        probabilities = self.router(y).softmax(-1)
        weights, choices = probabilities.topk(2)
        return x + self.experts(y, choices, weights), self.experts.balance_loss(probabilities, choices)


class ImageAndText(nn.Module):
    def __init__(self, width, experts, capacity):
        super().__init__()
        self.patches = nn.Linear(12, width)
        self.words = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList(Block(width, experts, capacity) for _ in range(2))
        self.head = nn.Linear(width, WORDS)

    divided = Divided(("head",))

    def forward(self, image, text):
        x, balance = torch.cat([self.patches(image), self.words(text)], 1), 0.0
        for block in self.blocks:
            x, of_block = block(x)
            balance = balance + of_block
        return self.head(x[:, PATCHES:]), balance


class Captions(Workload):
    num_train, num_eval = 50, 21

    def __init__(self, params):
        super().__init__(params)
        draws = torch.Generator().manual_seed(0)
        self.images = torch.randn(71, PATCHES, 12, generator=draws)
        self.texts = (torch.randint(WORDS, (71, LENGTH + 1), generator=draws) ** 2) % WORDS

    def build_model(self):
        params = self.params
        return ImageAndText(params.get("width", 32), params.get("experts", 4), params.get("capacity", 1.25))

    def train_batch(self, indices):
        return self.images[indices], self.texts[indices]

    def eval_batch(self, indices):
        return self.train_batch(50 + indices)

    def loss(self, model, batch):
        logits, balance = model(batch[0], batch[1][:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), batch[1][:, 1:].flatten()) + 0.05 * balance

    def evaluate(self, model, batch):
        logits, _ = model(batch[0], batch[1][:, :-1])
        losses = functional.cross_entropy(logits.transpose(1, 2), batch[1][:, 1:], reduction="none")
        return {"loss": losses.mean(1)}

    def blocks(self, model):
        return list(model.blocks)

    def optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), lr=self.params.get("lr", 3e-3))
