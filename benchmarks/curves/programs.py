"""Draws programs of users from a grammar: each is put together from ``benchmarks.curves.parts`` at random.

A program is text that users could have written; only one rank with the whole batch, never interrupted, says what is
right.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Sequence
from textwrap import indent

from benchmarks.curves import parts
from benchmarks.curves.parts import Part

_FILE = '''\
"""Drawn by benchmarks.curves.programs."""

import collections
import copy
import itertools
import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler

from workloads.protocol import Chain, Phase, Split, Workload

CLASSES, FEATURES, TOKENS = 4, 6, 5
WEIGHTS = torch.tensor([1.0, 2.0, 4.0, 12.0])
{top}

class Program(Workload):
    default_batch = 16
    num_train, num_eval = 64, 16
{class}
    def __init__(self, params):
        super().__init__(params)
        numbers = torch.Generator().manual_seed(0)
{form}{init}
{data}
    def build_model(self):
        model = Net()
{build}        return model

    def optimizer(self, model):
{optimizer}
{method}{passes}

{bottom}
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)
{split}
    def forward(self, x):
        return x + self.down(self.up(x).tanh())


{model}'''

_SAMPLES = """\
        self.labels = {labels}
        self.points = torch.randn(80, FEATURES, generator=numbers) + self.labels[:, None] * {spread}
"""
_OF_SAMPLES = """\

    def evaluate(self, model, batch):
        return {{"loss": functional.cross_entropy(model(batch[0]), batch[1], reduction="none")}}

    def loss(self, model, batch):
        points, labels = batch
        logits = model(points)
{before}{loss}"""

_SEQUENCES = """\
        lengths = {lengths}
        labels = (({labels})[:, None] + torch.arange(TOKENS)) % CLASSES
        self.points = torch.randn(80, TOKENS, FEATURES, generator=numbers) + labels[:, :, None] * {spread}
        self.labels = torch.where(torch.arange(TOKENS) < lengths[:, None], labels, -100)
"""
_OF_TOKENS = """\

    def token_losses(self, logits, labels):
        return functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")

    def evaluate(self, model, batch):
        points, labels = batch
        return {{"loss": (self.token_losses(model(points), labels).sum(1), (labels >= 0).sum(1))}}

    def loss(self, model, batch):
        points, labels = batch
        logits, counted = model(points), labels >= 0
{before}        losses = self.token_losses(logits, labels)
{loss}"""

_PARTS_OF_NET = """\
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(FEATURES, 8), {norm}
        self.blocks = nn.ModuleList(Block() for _ in range({depth}))
        self.last = nn.Linear(8, CLASSES)
{net}
"""
_NET = (
    "class Net(nn.Module):\n"
    + _PARTS_OF_NET
    + """\
    def forward(self, x):
        x = self.norm(self.first(x)).{activation}()
{inside}        for block in self.blocks:
            x = block(x)
        return self.last(x)
"""
)
_CHAIN = (
    "class Net(Chain):\n    enters, leaves = {enters}, ('last',)\n\n"
    + _PARTS_OF_NET
    + """\
    def enter(self, x):
        x = self.norm(self.first(x)).{activation}()
{inside}        return x

    def leave(self, x):
        return self.last(x)

    def hidden_shape(self, num_samples):
        return (num_samples, {width})
"""
)
_PLACES = {  # depth of its lines in the file
    "top": 0, "class": 1, "init": 2, "data": 1, "build": 2, "optimizer": 2, "method": 1, "bottom": 0, "before": 2,
    "loss": 2, "net": 2, "inside": 2, "on_step": 2, "scheduler": 2, "held": 0,
}  # fmt: skip


def program(seed: int) -> str:
    """The text of the program with this number: a class ``Program``."""
    draws = random.Random(seed)
    drawn, is_ragged = _drawn_parts(draws)
    places: dict[str, str] = defaultdict(str)
    for part in drawn:
        for place, text in part.items():
            lines = text.strip("\n") + "\n"
            if place in ("optimizer", "loss", "data", "scheduler"):
                places[place] = lines  # a later part has another one
            else:
                places[place] += lines + "\n" * (place in ("method", "bottom"))
    _add_methods(places)
    late, limit = str(draws.randrange(1, 7)), str(draws.choice((-1.0, 0.0, 1.0)))
    values = {
        place: indent(re.sub("LATE", late, re.sub("LIMIT", limit, places[place])), "    " * depth)
        for place, depth in _PLACES.items()
    }
    values["bottom"] += "\n" * bool(values["bottom"])
    choices = {"labels": draws.choice(parts.LABELS), "lengths": draws.choice(parts.LENGTHS)}
    choices["spread"] = str(draws.choice((0.0, 0.5, 1.0)))
    form, passes = (_SEQUENCES, _OF_TOKENS) if is_ragged else (_SAMPLES, _OF_SAMPLES)
    norms = ("nn.Identity()", "nn.LayerNorm(8)", "nn.RMSNorm(8)", *(() if is_ragged else ("nn.GroupNorm(2, 8)",)))
    net = {
        "norm": draws.choice(norms),
        "depth": str(draws.choice((2, 2, 4))),
        "activation": draws.choice(("tanh", "relu", "sigmoid")),
        "width": "TOKENS, 8" if is_ragged else "8",
        "enters": str(("first", "norm", *re.findall(r"self\.(\w+) = nn\.", values["net"]))),
    }
    split = '        self.split = Split(columns=("up",), rows=("down",), norms=(), most_parts=2)\n'
    values |= {
        "form": form.format(**choices),
        "passes": passes.format(**values),
        "split": split if draws.random() < 0.3 else "",
        "model": draws.choice((_NET, _NET, _CHAIN)).format(**values, **net),
    }
    return _FILE.format(**values)


def _drawn_parts(draws: random.Random) -> tuple[list[Part], bool]:
    """The parts of a program, and whether its samples are sequences."""

    def one_of(choices: Sequence[Part | str]) -> Part:
        choice = draws.choice(choices)
        return {"loss": choice} if isinstance(choice, str) else choice

    # Most programs have one oddity, some have several: with all at once each would be found by another.
    kinds = ("loss", "loss", "hook", "state", "state", "inside", "own", "schedule", "change", "data")
    odd = set(draws.sample(kinds, draws.choice((1, 1, 1, 2, 2, 3))))
    is_ragged = draws.random() < 0.3
    means, coupled, later = (
        (parts.RAGGED_MEANS, parts.RAGGED_COUPLED, parts.RAGGED_LATER)
        if is_ragged
        else (parts.MEANS, parts.COUPLED, parts.LATER)
    )
    drawn = [one_of(parts.DATA if "data" in odd else parts.DATA[:3]), one_of(means)]
    drawn.append(one_of(parts.OWN_OPTIMIZERS if "own" in odd else parts.OPTIMIZERS))
    if "loss" in odd:
        drawn.append(one_of(draws.choice((coupled, later))))
    of_kinds = {"hook": parts.HOOKS, "state": parts.STATES, "inside": parts.INSIDES, "change": parts.CHANGES}
    drawn += [one_of(choices) for kind, choices in of_kinds.items() if kind in odd]
    if "schedule" in odd:
        drawn.append(one_of(parts.SCHEDULES))
        if "held" in drawn[-1]:
            drawn.append(parts.OPTIMIZERS[1])  # one optimizer
    elif not odd & {"own", "change"} and draws.random() < 0.1:
        drawn.append(parts.PHASES)
    return drawn, is_ragged


def _add_methods(places: dict[str, str]) -> None:
    """Put lines of ``on_step``, ``scheduler`` and what the workload holds into methods."""
    if held := places["held"]:
        first, _, returned = places["optimizer"].rpartition("return ")
        places["optimizer"] = f"{first}optimizer = {returned}{held}return optimizer\n"
    for signature in ("on_step(self, step, steps, optimizer)", "scheduler(self, optimizer, steps)"):
        if lines := places[signature.partition("(")[0]]:
            places["method"] += f"def {signature}:\n{indent(lines, '    ')}\n"
