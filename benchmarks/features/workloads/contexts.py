"""Language models whose sequences ranks may divide: four heads, or an odd number of them."""

import torch
from plans import Attention
from torch import nn
from torch.nn import functional

from workloads.protocol import Context, Workload


class Model(nn.Module):
    spatial = Context((1, 1, 1))

    def __init__(self, width, heads, length):
        super().__init__()
        self.characters, self.positions = nn.Embedding(16, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Attention(width, heads) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 16)

    def forward(self, characters, positions):
        x = self.characters(characters) + self.positions(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Text(Workload):
    num_train, num_eval = 50, 21

    def __init__(self, params):
        super().__init__(params)
        self.length = params.get("length", 24)
        text = torch.randint(4, (71, self.length + 1), generator=torch.Generator().manual_seed(0)).cumsum(1) % 16
        self.inputs, self.following = text[:, :-1], text[:, 1:]

    def build_model(self):
        return Model(self.params.get("width", 48), self.params.get("heads", 4), self.length)

    def train_batch(self, indices):
        positions = torch.arange(self.length).expand(len(indices), -1)
        return self.inputs[indices], positions, self.following[indices]

    def eval_batch(self, indices):
        return self.train_batch(50 + indices)

    def loss(self, model, batch):
        characters, positions, following = batch
        return functional.cross_entropy(model(characters, positions).transpose(1, 2), following)

    def evaluate(self, model, batch):
        characters, positions, following = batch
        losses = functional.cross_entropy(model(characters, positions).transpose(1, 2), following, reduction="none")
        return {"loss": losses.mean(1)}

    def optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), lr=self.params.get("lr", 3e-3))
