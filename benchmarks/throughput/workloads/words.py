"""Two ordinary models: a transformer that predicts the next of random tokens, and a network of convolutions."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from workloads.protocol import Workload

NUM = {"train": 4096, "eval": 16}


class Tokens(Dataset):
    def __init__(self, split, length=64):
        self.tokens = torch.randint(0, 256, (NUM[split], length + 1), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return self.tokens[index, :-1], self.tokens[index, 1:]


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        num, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(num, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(num, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, width=128, depth=4):
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(64, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))
        self.head = nn.Linear(width, 256)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(x).transpose(1, 2)


class Images(Dataset):
    def __init__(self, split):
        numbers = torch.Generator().manual_seed(0)
        self.images = torch.rand(NUM[split], 3, 16, 16, generator=numbers)
        self.labels = torch.randint(0, 10, (NUM[split],), generator=numbers)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if torch.rand(()) < 0.5:
            image = image.flip(-1)
        return image, self.labels[index]


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(4, width), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return x + self.conv(functional.silu(self.norm(x)))


class Convolutions(nn.Module):
    def __init__(self, width=32, depth=4):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.layers = nn.ModuleList(Residual(width) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean((2, 3)))


class Words(Workload):
    model_class: type = Transformer
    data_class: type = Tokens

    def __init__(self, params):
        super().__init__(params)
        self.num_workers = params.get("workers", 0)

    def build_model(self):
        return self.model_class()

    def dataset(self, split):
        return self.data_class(split)

    def loss(self, model, batch):
        inputs, targets = batch
        return functional.cross_entropy(model(inputs), targets)

    def evaluate(self, model, batch):
        inputs, targets = batch
        losses = functional.cross_entropy(model(inputs), targets, reduction="none")
        return {"loss": losses.flatten(1).mean(1) if losses.ndim > 1 else losses}


class Pictures(Words):
    model_class, data_class = Convolutions, Images
