"""Idioms in models that say how they can be divided: pipelines, split layers and slabs of space."""

import torch
from torch import nn
from torch.nn import functional

from workloads.protocol import Chain, Spatial, Split

from .points import FEATURES, LENGTH, WIDTH, WORDS, Block, Points, Stack, Texts


class PointChain(Chain, Stack):
    """Points → logits; a pipeline may cut between the four blocks."""

    enters, leaves = ("first",), ("head",)

    def enter(self, points):
        return self.first(points)

    def leave(self, x):
        return self.head(x)

    def hidden_shape(self, num_samples):
        return num_samples, WIDTH


class BufferBlock(Block):
    def __init__(self, shift):
        super().__init__()
        self.register_buffer("order", torch.arange(WIDTH).roll(shift))
        self.register_buffer("kept", torch.arange(WIDTH) % 4 != shift, persistent=False)

    def forward(self, x):
        return x + self.linear(x[:, self.order] * self.kept).tanh()


class BuffersInChain(Points):
    """A pipeline with integer and boolean buffers in blocks, and a scale before and after them.

    From https://github.com/coreweave/tensorizer/pull/96 (non-persistent buffers that a loader leaves out).
    """

    class Net(PointChain):
        enters, leaves = ("first", "scale"), ("head", "offset")

        def __init__(self, *blocks):
            super().__init__(*blocks)
            self.register_buffer("scale", torch.linspace(0.5, 1.5, FEATURES))
            self.register_buffer("offset", torch.linspace(-1, 1, WIDTH), persistent=False)

        def enter(self, points):
            return self.first(points * self.scale)

        def leave(self, x):
            return self.head(x + self.offset)

    def build_model(self):
        return self.Net(*(BufferBlock(shift) for shift in range(4)))


class SharedInChain(Points):
    """A pipeline in which the first block and the last have one common weight.

    From https://github.com/facebookresearch/lingua/issues/84 (layers that share a weight).
    """

    def build_model(self):
        model = PointChain(*(Block() for _ in range(4)))
        model.blocks[3].linear.weight = model.blocks[0].linear.weight
        return model


class Attention(nn.Module):
    """Self-attention with heads of size 4; it computes the heads whose weights it has."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (-1, 3, 4)).permute(3, 0, 2, 1, 4)
        return self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(functional.gelu(self.up(x)))


class SplitBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.split = Split(
            columns=("attention.qkv", "feed_forward.up"),
            rows=("attention.out", "feed_forward.down"),
            norms=("norm1", "norm2"),
            most_parts=4,
            branches=("attention", "feed_forward"),
        )
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.feed_forward = Attention(), FeedForward()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class SplitReader(Chain):
    """Words [n, 6] → logits [n, 6, 11]."""

    enters, leaves = ("words", "places"), ("norm", "head")

    def __init__(self, *blocks):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        nn.init.normal_(self.words.weight, std=0.2)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.1)
        self.blocks = nn.ModuleList(blocks)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def enter(self, words):
        return self.words(words) + self.places

    def leave(self, x):
        return self.head(self.norm(x))

    def hidden_shape(self, num_samples):
        return num_samples, LENGTH, WIDTH


class TiedSplit(Texts):
    """Split blocks between an embedding and a head that have one common weight.

    From https://github.com/huggingface/accelerate/pull/4171 (tied embeddings under FSDP2).
    """

    def build_model(self):
        model = SplitReader(SplitBlock(), SplitBlock())
        model.head.weight = model.words.weight
        return model


class FrozenNormSplit(Texts):
    """Split blocks in which parts are frozen: scales of normalisations, the bias of one layer, the weight of another.

    From https://github.com/facebookresearch/audiocraft/issues/260 ("FlatParameter requires uniform requires_grad").
    """

    def build_model(self):
        model = SplitReader(SplitBlock(), SplitBlock())
        for block in model.blocks:
            block.norm1.weight.requires_grad_(False)
            block.norm2.requires_grad_(False)
            block.attention.qkv.bias.requires_grad_(False)
            block.feed_forward.down.weight.requires_grad_(False)
        return model


class SlabBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 1)
        )

    def forward(self, x):
        return x + self.layers(x)


class SlabNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.spatial = Spatial(dims=(2, 2), multiple_of=2)
        self.register_buffer("mean", torch.full((1, 1, 1, 1), 0.1))
        self.edges = nn.Conv2d(1, 1, 3, padding=1, bias=False).requires_grad_(False)
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.blocks = nn.ModuleList(SlabBlock() for _ in range(2))
        self.halve, self.grow = nn.MaxPool2d(2), nn.Upsample(scale_factor=2)
        self.head = nn.Conv2d(8, 1, 1)

    def forward(self, images):
        images = images - self.mean
        x = self.first(torch.cat([images, self.edges(images)], 1))
        y = self.halve(x)
        for block in self.blocks:
            y = block(y)
        return self.head(torch.cat([x, self.grow(y)], 1))


class SlabsOfImages(Points):
    """A convolutional net that can be divided in space, with a frozen filter, a buffer and changes in place.

    From https://github.com/pytorch/pytorch/issues/61519 (in-place activations and backward hooks).
    """

    def generate(self, num, numbers):
        images = torch.randn(num, 1, 16, 8, generator=numbers)
        return images, images.roll(1, 3) * images.sign()

    def build_model(self):
        return SlabNet()

    def losses(self, model, batch):
        images, targets = batch
        return (model(images) - targets).square().flatten(1).mean(1)
