"""A character-level GPT on the source text of Python's standard library, which every Python installation contains.

Whole modules are held out. The text, and so every figure, depends only on the Python version.
"""

from __future__ import annotations

import math
import sysconfig
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads.models.parameters import number_in
from workloads.models.transformer import Block, warmup_cosine
from workloads.protocol import Chain, Workload

TRAIN_MODULES = (
    "argparse",
    "ast",
    "bdb",
    "calendar",
    "cmd",
    "codecs",
    "configparser",
    "contextlib",
    "csv",
    "dataclasses",
    "difflib",
    "dis",
    "enum",
    "filecmp",
    "fractions",
    "functools",
    "getopt",
    "glob",
    "gzip",
    "heapq",
    "ipaddress",
    "optparse",
    "os",
    "pathlib",
    "pdb",
    "platform",
    "plistlib",
    "pprint",
    "queue",
    "random",
    "shelve",
    "shlex",
    "shutil",
    "socket",
    "string",
    "subprocess",
    "textwrap",
    "threading",
    "tokenize",
    "trace",
    "typing",
    "uuid",
    "warnings",
    "weakref",
)
EVAL_MODULES = ("bisect", "copy", "fileinput", "http/client", "locale", "netrc", "poplib", "statistics", "tempfile")
NUM_EVAL = 256
VOCABULARY = "\n" + "".join(map(chr, range(32, 127))) + "\ufffd"  # printable ASCII; the last stands for all others
_POSITIONS = bytes(VOCABULARY.find(chr(byte)) % len(VOCABULARY) for byte in range(256))  # not found: the last
_NOT_FIRST = bytes(range(0x80, 0xC0))  # UTF-8 bytes after the first byte of a character


class StdlibGpt(Workload):
    """Trains a small GPT to predict the next character.

    Metrics: ``loss`` (held-out, nats per character) and, for comparison, ``unigram_entropy``, the loss of a model that
    knows only the frequency of each character.

    Parameters, with defaults: ``depth`` 2, ``width`` 64, ``heads`` 4, ``context`` 64 characters, ``dropout`` 0,
    ``lr`` 5e-3 (the peak of a linear warm-up over a tenth of the steps, then a cosine), ``weight_decay`` 0.1,
    ``batch`` 32.
    """

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__(params)
        self.depth = number_in(params, "depth", 2)
        self.width = number_in(params, "width", 64)
        self.heads = number_in(params, "heads", 4)
        self.context = number_in(params, "context", 64)
        self.dropout = number_in(params, "dropout", 0.0)
        self.lr = number_in(params, "lr", 5e-3)
        self.weight_decay = number_in(params, "weight_decay", 0.1)
        if self.depth < 1 or self.width < 1 or self.heads < 1:
            raise ValueError(f"depth, width and heads must be positive, got {self.depth}, {self.width}, {self.heads}")
        if self.width % self.heads:
            raise ValueError(f"width ({self.width}) must be a multiple of heads ({self.heads})")
        if not 2 <= self.context <= 4096:
            raise ValueError(f"context must be from 2 to 4096 characters, got {self.context}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {self.dropout}")

    def build_model(self) -> nn.Module:
        return CharacterGpt(self.depth, self.width, self.heads, self.context, self.dropout)

    @property
    def num_train(self) -> int:
        return (len(_text("train")) - 1) // self.context

    @property
    def num_eval(self) -> int:
        return min(NUM_EVAL, (len(_text("eval")) - 1) // self.context)

    def train_batch(self, indices: Tensor) -> Tensor:
        """Characters, shape [n, context + 1]; sample i starts at i × context."""
        return self._windows(_text("train"), indices * self.context)

    def eval_batch(self, indices: Tensor) -> Tensor:
        """Characters, shape [n, context + 1]; samples are spread evenly over the held-out text."""
        text = _text("eval")
        return self._windows(text, indices * ((len(text) - 1 - self.context) // max(1, self.num_eval - 1)))

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        logits = model(batch[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    def evaluate(self, model: nn.Module, batch: Tensor) -> Mapping[str, Tensor]:
        logits = model(batch[:, :-1])
        loss = functional.cross_entropy(logits.transpose(1, 2), batch[:, 1:], reduction="none").mean(1)
        return {"loss": loss, "unigram_entropy": torch.full_like(loss, unigram_entropy())}

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            model.parameters(), lr=self.lr, betas=(0.9, 0.95), weight_decay=self.weight_decay, fused=True
        )

    def on_step(self, step: int, steps: int, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            group["lr"] = self.lr * warmup_cosine(step, steps, 0.1)

    def _windows(self, text: Tensor, starts: Tensor) -> Tensor:
        return text[starts[:, None] + torch.arange(self.context + 1)].long()


class CharacterGpt(Chain):
    """Pre-norm causal transformer: characters [n, t] → logits of the next ones [n, t, len(VOCABULARY)]."""

    enters = ("characters", "positions")
    leaves = ("norm", "head")

    def __init__(self, depth: int, width: int, heads: int, context: int, dropout: float) -> None:
        super().__init__()
        self.context, self.width = context, width
        self.characters = nn.Embedding(len(VOCABULARY), width)
        self.positions = nn.Parameter(torch.randn(context, width) * 0.1)
        self.blocks = nn.ModuleList(
            Block(width, heads, 4.0, dropout, (2 * depth) ** -0.5, causal=True) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(VOCABULARY), bias=False)

    def enter(self, characters: Tensor) -> Tensor:
        x: Tensor = self.characters(characters) + self.positions[: characters.shape[1]]
        return x

    def leave(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(x))
        return logits

    def hidden_shape(self, num_samples: int) -> tuple[int, ...]:
        return num_samples, self.context, self.width


@cache
def unigram_entropy() -> float:
    """Entropy of the held-out text's characters, in nats per character: no model without context has a lower loss."""
    counts = Counter(_text("eval").tolist())
    total = sum(counts.values())
    return -sum(count / total * math.log(count / total) for count in counts.values())


@cache
def _text(split: str) -> Tensor:
    """The characters of one split, as uint8 positions in ``VOCABULARY``; modules that this Python lacks are skipped."""
    folder = Path(sysconfig.get_path("stdlib"))
    files = (folder / f"{module}.py" for module in (TRAIN_MODULES if split == "train" else EVAL_MODULES))
    raw = b"\n".join(file.read_bytes() for file in files if file.is_file())
    return torch.frombuffer(bytearray(raw.translate(_POSITIONS, _NOT_FIRST)), dtype=torch.uint8)
