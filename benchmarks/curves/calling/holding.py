"""Workloads that hold a model themselves: the one that they train, or another one."""

import torch

from .base import Block, Form, Net, distance, errors


class MadeBefore(Form):
    """Returns a model that it has made in ``__init__``."""

    def __init__(self, params):
        super().__init__(params)
        self.model = Net(self.width, self.make_blocks())

    def build_model(self):
        return self.model


class Kept(Form):
    """Keeps the model that ``build_model`` makes, and compares answers of the two in the loss."""

    def build_model(self):
        self.model = super().build_model()
        return self.model

    def losses(self, model, batch):
        words, labels = batch
        with torch.no_grad():
            target = self.model(words.flip(1)).flip(1)
        logits = model(words)
        return errors(logits, labels) + 0.5 * distance(logits, target)


class TeacherBeside(Form):
    """A frozen teacher that is made in ``__init__`` and is no part of the model."""

    def __init__(self, params):
        super().__init__(params)
        self.teacher = Net(self.width, [Block(self.width)]).requires_grad_(False)

    def losses(self, model, batch):
        words, labels = batch
        logits = model(words)
        return errors(logits, labels) + 0.5 * distance(logits, self.teacher(words))
