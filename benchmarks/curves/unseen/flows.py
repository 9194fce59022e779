"""Values that blocks give to later blocks, or keep for their next call, within one forward pass."""

import torch
from torch import nn
from torch.nn import functional

from .base import CHANNELS, HEAD_SIZE, HEADS, LENGTH, OUTPUTS, STEPS, TOKENS, WIDTH, Sentences, Series


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


class Spike(torch.autograd.Function):
    """1 where x is positive; the gradient is that of a steep sigmoid."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        share = (4 * x).sigmoid()
        return gradient * 4 * share * (1 - share)


class Spiking(nn.Module):
    """A linear layer before neurons that keep their potential, with its graph, from one call to the next."""

    def __init__(self, inputs):
        super().__init__()
        self.linear = nn.Linear(inputs, WIDTH)
        self.potential = 0.0

    def forward(self, x):
        self.potential = 0.7 * self.potential + 2 * self.linear(x)
        spikes = Spike.apply(self.potential - 0.5)
        self.potential = self.potential * (1 - spikes)
        return spikes


class SpikingNet(nn.Module):
    """Series → outputs: the layers are called once for each step of the series."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Spiking(inputs) for inputs in (CHANNELS, WIDTH, WIDTH))
        self.out = nn.Linear(WIDTH, OUTPUTS)

    def forward(self, series):
        for layer in self.layers:
            layer.potential = 0.0
        total = 0.0
        for x in series.unbind(1):
            for layer in self.layers:
                x = layer(x)
            total = total + x
        return self.out(total / STEPS)


class SpikingNeurons(Series):
    """Blocks keep an activation in an attribute between their eight calls in a pass; the model resets it before a pass.

    From https://github.com/fangwei123456/spikingjelly/issues/629 (checkpointing moves the potential twice).
    """

    def build_model(self):
        return SpikingNet()


class BiasedAttention(nn.Module):
    """Attention with a bias for each distance, which only the first block computes; it returns it for the others."""

    def __init__(self, has_bias):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.distances = nn.Embedding(2 * LENGTH - 1, HEADS) if has_bias else None

    def forward(self, x, bias=None):
        if bias is None:
            places = torch.arange(x.shape[1], device=x.device)
            bias = self.distances(places[:, None] - places + LENGTH - 1).permute(2, 0, 1).unsqueeze(0)
        q, k, v = (heads(part) for part in self.qkv(self.norm(x)).chunk(3, -1))
        weights = (q @ k.transpose(-1, -2) + bias).softmax(-1)
        return x + self.out((weights @ v).transpose(1, 2).flatten(2)), bias


class BiasedReader(Reader):
    def through(self, x):
        bias = None
        for layer in self.layers:
            x, bias = layer(x, bias)
        return x


class BiasOfFirstBlock(Sentences):
    """Only the first block has the embedding of distances; all blocks use its result, and send gradients to it.

    From https://github.com/huggingface/transformers (modeling_t5.py: position_bias).
    """

    def build_model(self):
        return BiasedReader(*(BiasedAttention(n == 0) for n in range(3)))
