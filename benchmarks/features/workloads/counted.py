"""Losses and metrics that are divided by what counts: tokens of an answer, weights of classes."""

import torch
from base import CLASSES, Base
from contexts import Text
from sequences import Sequences
from torch.nn import functional

LEFT_OUT = -100


def of_tokens(logits, targets):
    """The sum of the losses of each sample's tokens that count, and the number of these, both [n]."""
    losses = functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none", ignore_index=LEFT_OUT)
    return losses.sum(1), (targets != LEFT_OUT).sum(1)


class Answers(Sequences):
    """Each sequence has a prompt of its own length, whose digits do not count."""

    def samples(self, indices):
        inputs, targets = super().samples(indices)
        prompts = torch.arange(inputs.shape[1]) < (indices * 7 % inputs.shape[1])[:, None]
        return inputs, targets.masked_fill(prompts, LEFT_OUT)

    train_batch = samples

    def loss(self, model, batch):
        inputs, targets = batch
        totals, counts = of_tokens(model(inputs), targets)
        return totals.sum(), counts.sum()

    def evaluate(self, model, batch):
        inputs, targets = batch
        return {"loss": of_tokens(model(inputs), targets), "tokens": (targets != LEFT_OUT).float().sum(1)}


class Contexts(Text):
    """Ranks may divide sequences whose first part does not count."""

    def train_batch(self, indices):
        inputs, positions, following = super().train_batch(indices)
        return inputs, positions, following.masked_fill(positions < (indices * 5 % 20)[:, None], LEFT_OUT)

    def loss(self, model, batch):
        inputs, positions, following = batch
        totals, counts = of_tokens(model(inputs, positions), following)
        return totals.sum(), counts.sum()

    def evaluate(self, model, batch):
        inputs, positions, following = batch
        return {"loss": of_tokens(model(inputs, positions), following)}


class Weighted(Base):
    """Classes have weights, as ``cross_entropy(weight=…)`` divides by them."""

    weights = torch.linspace(0.2, 3.0, CLASSES)

    def loss(self, model, batch):
        inputs, classes = batch
        losses = functional.cross_entropy(model(inputs), classes, weight=self.weights, reduction="sum")
        return losses, self.weights[classes].sum()
