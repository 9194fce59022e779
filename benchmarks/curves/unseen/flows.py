"""Values that blocks give to later blocks, or keep for their next call, within one forward pass."""

import torch
from torch import nn
from torch.nn import functional

from .base import HEAD_SIZE, HEADS, LENGTH, TOKENS, WIDTH, Sentences


def heads(x):
    """[n, length, width] → [n, heads, length, size of a head]."""
    return x.unflatten(-1, (HEADS, HEAD_SIZE)).transpose(1, 2)


class Reader(nn.Module):
    """Tokens [n, 10] → logits [n, 10, 13]. Subclasses say how layers are called."""

    def __init__(self, *layers):
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, WIDTH)
        self.positions = nn.Parameter(0.1 * torch.randn(LENGTH, WIDTH))
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens):
        return self.head(self.norm(self.through(self.tokens(tokens) + self.positions)))


class CachedAttention(nn.Module):
    """Attention whose keys and values are in a cache: its own, or those of an earlier layer."""

    def __init__(self, number, source):
        super().__init__()
        self.number, self.source = number, source
        self.norm = nn.LayerNorm(WIDTH)
        self.query = nn.Linear(WIDTH, WIDTH)
        self.both = nn.Linear(WIDTH, 2 * WIDTH) if source is None else None
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, cache):
        normed = self.norm(x)
        if self.source is None:
            cache[self.number] = tuple(heads(part) for part in self.both(normed).chunk(2, -1))
        keys, values = cache[self.number if self.source is None else self.source]
        mixed = functional.scaled_dot_product_attention(heads(self.query(normed)), keys, values)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


class CachedReader(Reader):
    def through(self, x):
        cache = {}
        for layer in self.layers:
            x = layer(x, cache)
        return x


class SharedKeysValues(Sentences):
    """Blocks write their keys and values into a dictionary, an argument, from which later blocks read them.

    From https://github.com/unslothai/unsloth-zoo/pull/1275 (checkpointing drops the gradients of such keys and values).
    """

    def build_model(self):
        return CachedReader(*(CachedAttention(n, None if n < 2 else n - 2) for n in range(4)))
