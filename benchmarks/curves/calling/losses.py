"""Losses that do not call the model once: twice, without gradients, in parts, or through a part of it."""

import copy

import torch

from .base import Form, Net, distance, errors


class Twice(Form):
    """The model reads each text forwards and backwards, and both answers should agree.

    From https://github.com/dropreg/R-Drop (two passes of the same batch in one loss).
    """

    def losses(self, model, batch):
        words, labels = batch
        there, back = model(words), model(words.flip(1)).flip(1)
        return errors(there, labels) + 0.5 * distance(there, back)


class Taught(Net):
    def __init__(self, width, blocks):
        super().__init__(width, blocks)
        self.teacher = copy.deepcopy(Net(width, [copy.deepcopy(blocks[0])])).requires_grad_(False)


class FrozenTeacher(Form):
    """A frozen teacher of one block, a part of the model, runs under ``no_grad`` in the loss."""

    net = Taught

    def losses(self, model, batch):
        words, labels = batch
        with torch.no_grad():
            target = model.teacher(words)
        logits = model(words)
        return errors(logits, labels) + 0.1 * distance(logits, target)


class Split(Net):
    """``forward`` takes the name of the part to compute."""

    def forward(self, x, part="all"):
        if part == "body":
            return self.body(self.words(x))
        return self.head(x) if part == "head" else super().forward(x)


class BodyThenHead(Form):
    """The loss calls the model for its hidden states, and again for the logits.

    From https://github.com/pytorch/pytorch/issues/153354 (several forward passes of one FSDP2 model).
    """

    net = Split

    def losses(self, model, batch):
        words, labels = batch
        return errors(model(model(words, "body"), "head"), labels)


class Perturbed(Form):
    """A second pass of texts whose wrongly labelled words, by the first pass, are exchanged (hard examples)."""

    def losses(self, model, batch):
        words, labels = batch
        logits = model(words)
        with torch.no_grad():
            harder = torch.where(logits.argmax(-1) == labels, words, words.roll(1, 1))
        return errors(logits, labels) + 0.5 * errors(model(harder), labels)
