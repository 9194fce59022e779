"""Draws programs of users from a grammar: losses, hooks, state, schedules and optimizers, each put together at random.

Many depend on how a batch is divided, or keep state that a checkpoint must have. A program is text, which users could
have written; only one rank with the whole batch, never interrupted, says what is right.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

HEAD = '''\
"""Drawn by benchmarks.curves.programs."""

import collections
import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from workloads.protocol import Workload

CLASSES, FEATURES = 4, 6
WEIGHTS = torch.tensor([1.0, 2.0, 4.0, 12.0])


class Program(Workload):
    default_batch = 16
    num_train, num_eval = 64, 16
    mean = 0.0
    age = 0

    def __init__(self, params):
        super().__init__(params)
        numbers = torch.Generator().manual_seed(0)
        self.labels = {order}
        self.points = torch.randn(80, FEATURES, generator=numbers) + self.labels[:, None] * {spread}
        self.history = []
        self.recent = collections.deque(maxlen=3)
        self.own = torch.Generator().manual_seed(5)
        counter = iter(range(10**9))
        self.tick = lambda: next(counter)
        self.share = 0.0

    def train_batch(self, indices):
        return self.points[indices], self.labels[indices]

    def eval_batch(self, indices):
        return self.points[64 + indices], self.labels[64 + indices]

    def evaluate(self, model, batch):
        return {{"loss": functional.cross_entropy(self.logits(model, batch[0]), batch[1], reduction="none")}}

    def logits(self, model, points):
        return model(points)

'''
ORDERS = ("torch.arange(80) % 4", "torch.arange(80) // 20", "torch.randint(0, 4, (80,), generator=numbers).sort()[0]")

MODEL = """\
    def build_model(self):
        model = Net()
{hook}        return model

{optimizer}
{steps}
    def loss(self, model, batch):
        points, labels = batch
        logits = self.logits(model, points)
{state}        {loss}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(FEATURES, 8), {norm}, nn.Linear(8, CLASSES)
        self.gate = nn.Parameter(torch.zeros(1))
        self.mean, self.calls = torch.zeros(()), 0
        self.register_buffer("level", torch.zeros(()))

    def forward(self, x):
        x = self.norm(self.first(x)).{activation}()
{inside}        return self.last(x)
"""

LOSSES = (
    "return functional.cross_entropy(logits, labels)",
    "return functional.cross_entropy(logits, labels, label_smoothing=0.1)",
    "return (functional.cross_entropy(logits, labels, reduction='none') * (1 + labels)).mean()",
    "return functional.cross_entropy(logits, labels, weight=WEIGHTS, reduction='sum'), WEIGHTS[labels].sum()",
    "return functional.mse_loss(logits, functional.one_hot(labels, CLASSES).float())",
    "return functional.cross_entropy(logits, labels, weight=WEIGHTS)",
    "return functional.cross_entropy(logits, torch.where(points[:, 0] > {level}, labels, -100))",
    "return functional.cross_entropy(logits, labels) + self.share * logits.mean(0).square().sum()",
    "return functional.cross_entropy(logits, labels) + 0.1 * (logits.softmax(-1).mean(0) ** 2).sum()",
    "return functional.cross_entropy(logits, labels) + self.share * logits.std()",
)
HOOKS = (
    "",
    "",
    "model.last.weight.register_hook(lambda gradient: gradient * 0.5)",
    "model.first.weight.register_hook(lambda gradient: gradient.clamp(-0.02, 0.02))",
    "model.first.register_forward_hook(clamp_gradient)",
    "model.norm.register_forward_hook(unit_gradient)",
    "model.last.bias.register_post_accumulate_grad_hook(halve)",
    "model.last.register_full_backward_hook(scaled)",
    "model.last.weight.register_post_accumulate_grad_hook(cut)",
)
FUNCTIONS = """

def clamp_gradient(module, inputs, output):
    if output.requires_grad:
        output.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))


def unit_gradient(module, inputs, output):
    if output.requires_grad:
        output.register_hook(lambda gradient: gradient / (gradient.norm() + 1e-6))


def halve(parameter):
    parameter.grad.mul_(0.5)


def cut(parameter):
    parameter.grad.clamp_(-0.05, 0.05)


def scaled(module, inputs, outputs):
    return tuple(None if gradient is None else gradient * 2 for gradient in inputs)
"""
STATES = (
    "",
    "",
    "self.mean += 0.1 * (float(logits.detach().abs().mean()) - self.mean)\n        logits = logits / (1 + self.mean)\n",
    "self.history.append(float(logits.detach().max()))\n        logits = logits / (2 + max(self.history[-4:]))\n",
    "self.recent.append(logits.detach().std())\n        logits = logits / (1 + sum(self.recent))\n",
    "logits = logits * (1 + 0.1 * self.age)\n",
    "logits = logits + 0.1 * self.noise\n",
    "logits = logits * (1 + 0.01 * self.tick())\n",
)
INSIDES = (
    "",
    "",
    "x = x + self.gate * (x @ x.T).softmax(-1) @ x\n",
    "if self.training:\n            self.mean.mul_(0.9).add_(0.1 * x.detach().mean())\n        x = x - self.mean\n",
    "if self.training:\n            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean()\n        x = x - self.mean\n",
    "if self.training:\n            self.calls += 1\n        x = x * (1 + 0.01 * self.calls)\n",
    "if self.training:\n            self.level += 0.1\n        x = x * (1 + self.level)\n",
    "x = x - self.gate * x.mean(0)\n",
)
NORMS = ("nn.Identity()", "nn.LayerNorm(8)", "nn.GroupNorm(2, 8)")
ACTIVATIONS = ("tanh", "relu", "sigmoid")
OPTIMIZERS = (
    "torch.optim.SGD(model.parameters(), 0.1)",
    "torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)",
    "torch.optim.AdamW(model.parameters(), 0.01)",
    "torch.optim.Adam(model.parameters(), 0.01, amsgrad=True)",
    "torch.optim.RMSprop(model.parameters(), 0.005)",
    "torch.optim.SGD([{'params': model.last.parameters()}], 0.1, momentum=0.9)",
)
STEPS = (
    "",
    "for group in optimizer.param_groups:\n            group['lr'] = 0.05 / (1 + step)\n",
    "self.share = max(0.0, 0.5 * (step - {late}))\n",
    "self.share = 0.5 if step >= {late} else 0.0\n",
    "self.age = step\n",
    "self.noise = torch.randn(CLASSES)\n",
    "self.noise = torch.randn(CLASSES, generator=self.own)\n",
    "self.noise = torch.tensor(np.random.rand(CLASSES), dtype=torch.float32)\n",
    "if step == {late}:\n            optimizer.param_groups[0]['weight_decay'] = 0.1\n",
)


def program(seed: int) -> str:
    """The text of the program with this number: a class ``Program``."""
    draws = random.Random(seed)

    def one_of(choices: Sequence[str]) -> str:
        return draws.choice(choices)

    # Most programs have one oddity, some have several: with all at once each would be found by another.
    odd = draws.sample(("loss", "hook", "state", "inside", "steps"), draws.choice((1, 1, 1, 2, 3)))
    loss = one_of(LOSSES) if "loss" in odd else one_of(LOSSES[:5])
    hook = one_of(HOOKS[2:]) if "hook" in odd else ""
    state = one_of(STATES[2:]) if "state" in odd else ""
    inside = one_of(INSIDES[2:]) if "inside" in odd else ""
    steps = one_of(STEPS[1:]) if "steps" in odd else ""
    if "share" in loss and "share" not in steps:
        steps = one_of(STEPS[2:4])
    if "noise" in state:
        steps = one_of(STEPS[5:8])
    if "age" in state:
        steps = STEPS[4]
    optimizer = one_of(OPTIMIZERS[:2] if "['lr']" in steps else OPTIMIZERS)
    on_step = f"    def on_step(self, step, steps, optimizer):\n        {steps}\n" if steps else ""
    body = MODEL.format(
        hook=f"        {hook}\n" if hook else "",
        optimizer=f"    def optimizer(self, model):\n        return {optimizer}\n",
        steps=on_step.replace("{late}", str(draws.randrange(2, 6))),
        state=f"        {state}" if state else "",
        loss=loss.replace("{level}", str(draws.choice((-1.0, 0.0, 1.0)))),
        norm=one_of(NORMS),
        activation=one_of(ACTIVATIONS),
        inside=f"        {inside}" if inside else "",
    )
    return HEAD.format(order=one_of(ORDERS), spread=draws.choice((0.0, 0.5, 1.0))) + body + FUNCTIONS
