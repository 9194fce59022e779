"""Models of many kinds to measure the estimator with; none of them was designed for ScaMP.

Each is a function of the form that ``scamp estimate FILE.py:function`` takes: it returns the model, its inputs and
often a loss (see ``workloads.function``).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads.protocol import Spatial

Made = tuple[Any, ...]


class Attention(nn.Module):
    """Multi-head self-attention: [n, t, width] → [n, t, width]."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Pre-norm transformer block: [n, t, width] → [n, t, width]."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.first, self.attention = nn.LayerNorm(width), Attention(width, heads, causal)
        self.second = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.down(functional.gelu(self.up(self.second(x))))


def gpt(depth: int = 6, width: int = 512, heads: int = 8, context: int = 256, vocabulary: int = 8192) -> Made:
    """A GPT with learned positions and a cross-entropy loss."""

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
            self.blocks = nn.ModuleList(Block(width, heads, causal=True) for _ in range(depth))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.tokens(tokens) + self.places.weight
            for block in self.blocks:
                x = block(x)
            logits: Tensor = self.head(self.norm(x))
            return logits

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return functional.cross_entropy(model(batch[0]).flatten(0, 1).float(), batch[1].flatten())

    return Gpt(), lambda batch: (_ints(batch, context), _ints(batch, context)), loss


def vit(depth: int = 12, width: int = 384, heads: int = 6, side: int = 224, patch: int = 16) -> Made:
    """A vision transformer that classifies images of ``side`` × ``side`` pixels into 1000 classes."""

    class Vit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, width, patch, patch)
            self.token = nn.Parameter(torch.zeros(1, 1, width))
            self.places = nn.Parameter(torch.zeros(1, (side // patch) ** 2 + 1, width))
            self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

        def forward(self, images: Tensor) -> Tensor:
            x = self.patches(images).flatten(2).transpose(1, 2)
            x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
            for block in self.blocks:
                x = block(x)
            logits: Tensor = self.head(self.norm(x)[:, 0])
            return logits

    return Vit(), lambda batch: (torch.zeros(batch, 3, side, side), _ints(batch)), _classified


class WindowBlock(nn.Module):
    """Swin block: attention within windows of 7×7 positions, shifted by ``shift`` positions in every other block."""

    window = 7

    def __init__(self, width: int, heads: int, shift: int) -> None:
        super().__init__()
        self.shift, self.block = shift, Block(width, heads)

    def forward(self, x: Tensor) -> Tensor:
        batch, height, _, width = x.shape
        count = height // self.window
        x = torch.roll(x, (-self.shift, -self.shift), (1, 2)) if self.shift else x
        x = x.view(batch, count, self.window, count, self.window, width).permute(0, 1, 3, 2, 4, 5)
        x = self.block(x.reshape(-1, self.window**2, width))
        x = x.view(batch, count, count, self.window, self.window, width).permute(0, 1, 3, 2, 4, 5)
        x = x.reshape(batch, height, height, width)
        return torch.roll(x, (self.shift, self.shift), (1, 2)) if self.shift else x


class Merge(nn.Module):
    """Swin's patch merging, which halves the side and doubles the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.reduce = nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        corners = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        merged: Tensor = self.reduce(self.norm(torch.cat(corners, -1)))
        return merged


def swin(width: int = 96, depths: tuple[int, ...] = (2, 2, 6, 2), side: int = 224) -> Made:
    """A Swin transformer with ``depths`` blocks in each stage."""

    class Swin(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, width, 4, 4)
            stages: list[nn.Module] = []
            for stage, depth in enumerate(depths):
                stages += [Merge(width << (stage - 1))] if stage else []
                heads = (width << stage) // 32
                stages += [WindowBlock(width << stage, heads, 3 * (number % 2)) for number in range(depth)]
            self.blocks = nn.ModuleList(stages)
            last = width << (len(depths) - 1)
            self.norm, self.head = nn.LayerNorm(last), nn.Linear(last, 1000)

        def forward(self, images: Tensor) -> Tensor:
            x = self.patches(images).permute(0, 2, 3, 1).contiguous()
            for block in self.blocks:
                x = block(x)
            logits: Tensor = self.head(self.norm(x).mean((1, 2)))
            return logits

    return Swin(), lambda batch: (torch.zeros(batch, 3, side, side), _ints(batch)), _classified


class Twice(nn.Sequential):
    """Two 3×3 convolutions, each with batch normalisation and ReLU."""

    def __init__(self, before: int, after: int) -> None:
        layers: list[nn.Module] = []
        for channels in (before, after):
            layers += [nn.Conv2d(channels, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(True)]
        super().__init__(*layers)


def unet(width: int = 32, levels: int = 4, side: int = 128) -> Made:
    """A 2D U-Net that segments images into 21 classes."""

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.spatial = Spatial(dims=(2, 1), multiple_of=2**levels)
            sizes = [width << level for level in range(levels + 1)]
            pairs = list(pairwise(sizes))
            self.first = Twice(3, width)
            self.down = nn.ModuleList(Twice(before, after) for before, after in pairs)
            self.grow = nn.ModuleList(nn.ConvTranspose2d(after, before, 2, 2) for before, after in reversed(pairs))
            self.up = nn.ModuleList(Twice(after, before) for before, after in reversed(pairs))
            self.head = nn.Conv2d(width, 21, 1)

        def forward(self, images: Tensor) -> Tensor:
            skipped = [self.first(images)]
            for down in self.down:
                skipped.append(down(functional.max_pool2d(skipped[-1], 2)))
            x = skipped.pop()
            for grow, up in zip(self.grow, self.up, strict=True):
                x = up(torch.cat([skipped.pop(), grow(x)], 1))
            logits: Tensor = self.head(x)
            return logits

    return UNet(), lambda batch: (torch.zeros(batch, 3, side, side), _ints(batch, side, side)), _classified


def dlrm(rows: int = 100_000, tables: int = 8, width: int = 64) -> Made:
    """A DLRM: embedding tables, two MLPs and pairwise interactions."""

    class Dlrm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
            self.bottom = _mlp(13, 512, 256, width)
            self.top = _mlp(width + (tables + 1) * tables // 2, 1024, 512, 256, 1)

        def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
            x = self.bottom(dense)
            vectors = torch.stack([x, *(table(sparse[:, number]) for number, table in enumerate(self.tables))], 1)
            rows, columns = torch.tril_indices(tables + 1, tables + 1, -1, device=x.device)
            crossed = (vectors @ vectors.transpose(1, 2))[:, rows, columns]
            logits: Tensor = self.top(torch.cat([x, crossed], 1)).squeeze(1)
            return logits

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return torch.zeros(batch, 13), _ints(batch, tables, 1), torch.zeros(batch)

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return functional.binary_cross_entropy_with_logits(model(*batch[:2]), batch[2])

    return Dlrm(), inputs, loss


def hf_gpt2(depth: int = 6, width: int = 512, context: int = 256) -> Made:
    """Hugging Face's GPT-2."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=depth, n_embd=width, n_head=width // 64, n_positions=context, vocab_size=8192)
    return GPT2LMHeadModel(config), _text(context)


def hf_bert(depth: int = 6, width: int = 512, context: int = 256) -> Made:
    """Hugging Face's BERT, as a masked language model."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        num_hidden_layers=depth, hidden_size=width, num_attention_heads=width // 64, intermediate_size=4 * width,
        max_position_embeddings=context, vocab_size=8192,
    )  # fmt: skip
    return BertForMaskedLM(config), _text(context)


def hf_llama(depth: int = 6, width: int = 512, context: int = 256) -> Made:
    """Hugging Face's Llama, with grouped-query attention."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=depth, hidden_size=width, num_attention_heads=width // 64, num_key_value_heads=width // 128,
        intermediate_size=3 * width, max_position_embeddings=context, vocab_size=8192,
    )  # fmt: skip
    return LlamaForCausalLM(config), _text(context)


def hf_t5(depth: int = 4, width: int = 512, context: int = 256) -> Made:
    """Hugging Face's T5, an encoder and decoder."""
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"num_layers": depth, "d_model": width, "d_ff": 4 * width, "num_heads": width // 64, "vocab_size": 8192}
    fields: dict[str, Any] = {**sizes, "decoder_start_token_id": 0}
    config = T5Config(**fields)
    return T5ForConditionalGeneration(config), _text(context)


MODELS: dict[str, Callable[..., Made]] = {
    make.__name__: make for make in (gpt, vit, swin, unet, dlrm, hf_gpt2, hf_bert, hf_llama, hf_t5)
}


def make(model: str, arithmetic: str = "fp32", optimizer: str = "adamw", **params: Any) -> Made:
    """One of ``MODELS`` with its inputs, loss and optimizer.

    ``arithmetic`` is fp32, bf16 (parameters, too) or amp (autocast to bf16).
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16 if arithmetic == "bf16" else torch.float32)
    try:
        built, inputs, *more = MODELS[model](**params)
    finally:
        torch.set_default_dtype(before)
    own_loss = more[0] if more else lambda model, batch: model(**batch).loss

    def cast(batch: int) -> Any:
        tensors = inputs(batch)
        if arithmetic != "bf16" or isinstance(tensors, dict):
            return tensors
        return tuple(part.bfloat16() if part.is_floating_point() else part for part in tensors)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        device = next(model.parameters()).device.type
        with torch.autocast(device, torch.bfloat16, enabled=arithmetic == "amp"):
            value: Tensor = own_loss(model, batch)
            return value

    makers = {
        "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-4),
        "foreach": lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, foreach=True),
        "fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, fused=True),
        "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-4),
        "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-4, momentum=0.9),
    }
    return built, cast, loss, makers[optimizer]


def _mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _text(context: int) -> Callable[[int], dict[str, Tensor]]:
    return lambda batch: {"input_ids": _ints(batch, context), "labels": _ints(batch, context)}


def _classified(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch[0]).float(), batch[1])


def _ints(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.long)
