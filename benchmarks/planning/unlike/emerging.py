"""Models that hand-made plans serve badly, by formulas: Swin, GPT with long sequences or a huge vocabulary, Evoformer.

Sizes are those of SuperScaler's public code (github.com/msrasys/nnscaler, ``examples``), where it has them: Swin with
images of 1536 × 1536 and windows of 48 × 48, GPT, and AlphaFold's stages of training. Activations of transformers are
those of Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", MLSys 2023: 34 bytes for
each element, and 5 for each score of an attention that keeps its scores. A V100 has no FlashAttention, and the code
above keeps them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

SCORE_BYTES = 5
"""Softmax, its dropout and the mask of it, in half precision."""


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A part of a model that is not cut; amounts are for the forward pass of one sample.

    ``flops`` are those of products, in half precision. ``shared_bytes`` and ``divided_bytes`` are kept for the backward
    pass; tensor parallelism divides only the latter, and both are written and read once. ``score_bytes`` of them are
    scores of attention, which take ``score_flops``. Ranks can divide heads and hidden units into ``most_parts``, and
    rows of the image or of residues into ``most_slabs``; ``exchanged`` are collectives that slabs then need, with their
    bytes over all slabs. One rank can compute ``most_turns`` parts one after another. ``reductions`` are those of
    outputs in tensor parallelism.
    """

    name: str
    num_params: float
    flops: float
    shared_bytes: float
    divided_bytes: float
    rows: int
    width: int
    entering_bytes: float
    score_bytes: float = 0.0
    score_flops: float = 0.0
    most_parts: int = 1
    most_turns: int = 1
    most_slabs: int = 1
    exchanged: tuple[tuple[str, float], ...] = ()
    reductions: int = 2
    launches: int = 30
    is_block: bool = True

    @property
    def output_bytes(self) -> float:
        """Bytes of the output of one sample."""
        return 2.0 * self.rows * self.width


@dataclass(frozen=True, slots=True)
class Model:
    """Units in their order. ``num_forwards`` forward passes precede each backward pass (recycling)."""

    name: str
    units: tuple[Unit, ...]
    batch: int
    num_forwards: int = 1

    def __str__(self) -> str:
        params = sum(unit.num_params for unit in self.units)
        return f"{self.name}, {params / 1e9:.1f}B parameters, batch {self.batch}"


@dataclass(frozen=True, slots=True)
class Gpt:
    """A GPT; ``keeps_scores`` says whether attention keeps its scores for the backward pass."""

    name: str
    num_blocks: int
    width: int
    heads: int
    length: int
    vocabulary: int
    batch: int
    keeps_scores: bool = True

    def model(self) -> Model:
        """Embedding, blocks, and the layer that predicts words."""
        tokens = self.length
        block = _transformer("block", self.width, self.heads, tokens, tokens, self.keeps_scores)
        table = float(self.vocabulary * self.width)
        activation_bytes = 2.0 * tokens * self.width
        logits, flops = 6.0 * tokens * self.vocabulary, 2 * tokens * table
        first = _end("embedding", table, 0.0, activation_bytes, 0.0, tokens, self.width, 0.0)
        last = _end("head", table, flops, activation_bytes, logits, tokens, self.width, activation_bytes)
        return Model(self.name, (first, *[block] * self.num_blocks, last), self.batch)


@dataclass(frozen=True, slots=True)
class Swin:
    """A Swin Transformer for square images. Each of its four parts has twice the width and a quarter of the tokens."""

    name: str
    depths: tuple[int, ...]
    width: int
    heads: int
    side: int
    window: int
    batch: int
    keeps_scores: bool = True

    def model(self) -> Model:
        """Blocks alone: patches and classes are a small part of the first and the last one."""
        units: list[Unit] = []
        for place, depth in enumerate(self.depths):
            width, side, heads = self.width * 2**place, self.side // 4 // 2**place, self.heads * 2**place
            tokens, windows = side * side, max(1, side // self.window)
            block = _transformer(
                f"part {place + 1}", width, heads, tokens, min(tokens, self.window**2), self.keeps_scores
            )
            # Every second block shifts its windows by half: half a window of rows comes from the next slab and returns.
            halo = 2.0 * side * width * self.window / 2
            block = replace(block, most_slabs=windows, exchanged=(("message", halo),))
            last = place + 1 == len(self.depths)
            merging = block if last else _merging(block)
            units += [*[block] * (depth - 1), merging]
        return Model(self.name, tuple(units), self.batch)


@dataclass(frozen=True, slots=True)
class Evoformer:
    """AlphaFold's stack on ``sequences`` × ``residues``; three forward passes precede each backward pass."""

    name: str
    num_blocks: int
    sequences: int
    residues: int
    msa_width: int = 256
    pair_width: int = 128
    batch: int = 128

    def model(self) -> Model:
        """Blocks alone; all divide along rows (dynamic axial parallelism, Cheng et al., "FastFold", PPoPP 2024)."""
        s, r, m, z, c = self.sequences, self.residues, self.msa_width, self.pair_width, 32
        heads, pair_heads = m // 32, z // 32
        msa, pair = float(s * r), float(r * r)
        params = 18.0 * m * m + 2 * m * c + c * c * z + 30.0 * z * z
        products = 2 * (msa * (18 * m * m + 2 * m * c) + pair * (c * c * z + 30 * z * z))
        attention = 4 * (msa * (r + s) * m + 2 * pair * r * z)
        other_flops = 2 * pair * s * c * c + 4 * pair * r * z  # outer product, triangular products
        scores = SCORE_BYTES * (heads * msa * (r + s) + 2 * pair_heads * pair * r)
        kept = 40 * msa * m + 80 * pair * z + 2 * pair * c * c
        exchanged = (
            *[("all_to_all", 2 * msa * m)] * 2,
            *[("all_to_all", 2 * pair * z)] * 4,
            ("all_gather", 2 * msa * c),
            *[("all_gather", 2 * pair * z)] * 2,
        )
        block = Unit(
            "evoformer",
            params,
            products + attention + other_flops,
            2 * (msa * m + pair * z),
            kept + scores,
            r,
            s * m + r * z,
            2 * (msa * m + pair * z),
            score_bytes=scores,
            score_flops=attention / 2,
            most_turns=8,
            most_slabs=min(s, r),
            exchanged=exchanged,
            launches=150,
        )
        return Model(self.name, (block,) * self.num_blocks, self.batch, num_forwards=3)


Family = Gpt | Swin | Evoformer

_SMALL, _LARGE = (32, 2560, 32), (48, 5120, 32)

KNOWN: tuple[Family, ...] = (
    Swin("Swin 1.8B, 1536²", (2, 2, 26, 2), 512, 16, 1536, 48, 256),
    Swin("Swin 6.6B, 1536²", (2, 2, 42, 2), 768, 24, 1536, 48, 256),
    Evoformer("Evoformer, 128 × 256", 48, 128, 256),
    Evoformer("Evoformer, 512 × 384", 48, 512, 384),
    Gpt("GPT 2.6B, 500k words", *_SMALL, 1024, 500_000, 512),
    Gpt("GPT 15B, 500k words", *_LARGE, 1024, 500_000, 512),
    Gpt("GPT 2.6B, 1M words", *_SMALL, 1024, 1_000_000, 512),
    Gpt("GPT 15B, 1M words", *_LARGE, 1024, 1_000_000, 512),
    Gpt("GPT 2.6B, 16k tokens", *_SMALL, 16_384, 51_200, 128),
    Gpt("GPT 15B, 16k tokens", *_LARGE, 16_384, 51_200, 128),
    Gpt("GPT 2.6B, 32k tokens", *_SMALL, 32_768, 51_200, 64),
    Gpt("GPT 15B, 32k tokens", *_LARGE, 32_768, 51_200, 64),
    Swin("Swin 1.8B, no scores", (2, 2, 26, 2), 512, 16, 1536, 48, 256, keeps_scores=False),
    Gpt("GPT 15B, 32k, no scores", *_LARGE, 32_768, 51_200, 64, keeps_scores=False),
)
"""Models of the code above by its names, a small and the largest one of each family; GPT with a larger vocabulary or
more tokens. The last two have an attention that keeps no scores."""


def draw(seed: int, num: int) -> Iterator[Family]:
    """Yield further models, whose sizes were not looked at while the planner was made."""
    source = random.Random(seed)
    for number in range(num):
        name, width = f"drawn {number + 1}", source.choice([1536, 2048, 3072, 4096, 6144])
        sizes = source.choice([16, 24, 40, 56]), width, width // 64
        match number % 4:
            case 0:
                window, side = source.choice([(7, 448), (12, 768), (24, 1536), (40, 640), (48, 1536)])
                width = source.choice([192, 256, 512, 768])
                depths = (2, 2, source.choice([6, 18, 26, 42]), 2)
                yield Swin(f"Swin {width} wide, {side}², {name}", depths, width, width // 32, side, window, 256)
            case 1:
                sequences, residues = source.choice([(128, 256), (512, 256), (512, 384), (256, 512)])
                factor, blocks = source.choice([1, 2, 4]), source.choice([24, 48, 64])
                said = f"Evoformer, {sequences} × {residues}, {256 * factor} wide, {name}"
                yield Evoformer(said, blocks, sequences, residues, 256 * factor, 128 * factor)
            case 2:
                words = source.choice([250_000, 400_000, 800_000, 1_500_000])
                yield Gpt(f"GPT {sizes[0]} × {sizes[1]}, {words // 1000}k words, {name}", *sizes, 1024, words, 512)
            case _:
                tokens = source.choice([8192, 16_384, 32_768, 65_536])
                yield Gpt(f"GPT {sizes[0]} × {sizes[1]}, {tokens // 1024}k tokens, {name}", *sizes, tokens, 51_200, 64)


def _transformer(name: str, width: int, heads: int, tokens: int, keys: int, keeps_scores: bool) -> Unit:
    """A block whose tokens attend to ``keys`` keys each."""
    scores = float(SCORE_BYTES * heads * tokens * keys) if keeps_scores else 0.0
    products, attention = 24.0 * tokens * width**2, 4.0 * tokens * keys * width
    shared, divided, output = 10.0 * tokens * width, 24.0 * tokens * width + scores, 2.0 * tokens * width
    return Unit(
        name,
        12.0 * width**2,
        products + attention,
        shared,
        divided,
        tokens,
        width,
        output,
        score_bytes=scores,
        score_flops=attention / 2 if keeps_scores else 0.0,
        most_parts=heads,
        most_turns=heads,
    )


def _end(
    name: str, params: float, flops: float, shared: float, divided: float, rows: int, width: int, entering: float
) -> Unit:
    """An end of the model; its words are padded, so that any ranks can divide them."""
    return Unit(
        name,
        params,
        flops,
        shared,
        divided,
        rows,
        width,
        entering,
        most_parts=1024,
        reductions=1,
        launches=10,
        is_block=False,
    )


def _merging(block: Unit) -> Unit:
    """The block with what halves the sides of its output and doubles the width."""
    return replace(
        block,
        num_params=block.num_params + 8.0 * block.width**2,
        flops=block.flops + 4.0 * block.rows * block.width**2,
        rows=block.rows // 4,
        width=block.width * 2,
    )
