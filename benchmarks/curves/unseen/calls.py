"""Modules that are not simply called one after the other: patched, sliced, subclasses of containers, read by others."""

import math

import torch
from torch import nn
from torch.nn import functional

from .base import OUTPUTS, WIDTH, Labels, Mixer, Tower, Vectors


class Adapter(nn.Module):
    """Puts its own ``forward`` in the place of a linear layer's; it is not a child of that layer."""

    def __init__(self, linear):
        super().__init__()
        self.down = nn.Linear(linear.in_features, 4, bias=False)
        self.up = nn.Linear(4, linear.out_features, bias=False)
        nn.init.zeros_(self.up.weight)
        self.original = linear.forward
        linear.forward = self.forward

    def forward(self, x):
        return self.original(x) + 0.5 * self.up(self.down(x))


class PatchedForward(Vectors):
    """Adapters in a list of their own replace the ``forward`` of frozen linear layers; that list is the longest one.

    From https://github.com/kohya-ss/sd-scripts (networks/lora.py: LoRAModule.apply_to).
    """

    def build_model(self):
        model = Tower(*(Mixer() for _ in range(2)))
        for layer in model.layers:
            layer.requires_grad_(False)
        linears = [linear for layer in model.layers for linear in (layer.up, layer.down)]
        model.adapters = nn.ModuleList(Adapter(linear) for linear in linears)
        return model


class Borrowing(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.full((WIDTH,), 0.5))

    def forward(self, x, borrowed):
        return x + self.linear(x).tanh() + self.scale * functional.linear(x, borrowed.t())


class BorrowingNet(Tower):
    def forward(self, x):
        x = self.stem(x)
        for number, layer in enumerate(self.layers):
            x = layer(x, self.layers[number - 1].linear.weight)
        return self.out(x)


class WeightOfAnotherBlock(Vectors):
    """Each block gets the weight of the block before it as an argument; the first one that of the last.

    From https://github.com/deepspeedai/DeepSpeed/issues/876 (weights that another module uses).
    """

    def build_model(self):
        return BorrowingNet(*(Borrowing() for _ in range(3)))


class Prototypes(Tower):
    """Vectors → features, with the parameters that the loss compares them with."""

    def __init__(self, *layers):
        super().__init__(*layers)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.prototypes = nn.Parameter(torch.randn(OUTPUTS, WIDTH))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(5.0)))

    def forward(self, x):
        return {"features": super().forward(x), "prototypes": self.prototypes, "logit_scale": self.logit_scale}


class ReturnsParameters(Labels):
    """The model returns two of its parameters besides its features, and the loss works with them.

    A hook after each step of the optimizer limits one of them, as CLIP limits its logit scale.
    From https://github.com/deepspeedai/DeepSpeed/pull/2642 (forward passes that return parameters).
    """

    def build_model(self):
        return Prototypes(*(Mixer() for _ in range(2)))

    def losses(self, model, batch):
        inputs, labels = batch
        said = model(inputs)
        features, prototypes = (functional.normalize(said[name], dim=-1) for name in ("features", "prototypes"))
        logits = said["logit_scale"].exp() * features @ prototypes.t()
        return functional.cross_entropy(logits, labels, reduction="none")

    def optimizer(self, model):
        optimizer = super().optimizer(model)

        def limit(*_):
            with torch.no_grad():
                model.logit_scale.clamp_(math.log(4.5), math.log(100.0))

        optimizer.register_step_post_hook(limit)
        return optimizer
