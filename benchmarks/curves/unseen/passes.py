"""Forward and backward passes of the user's own: solvers, loops that data ends, gradients that are computed by hand."""

import torch
from torch import nn
from torch.nn import functional

from .base import OUTPUTS, WIDTH, Labels, Mixer, Tower, Vectors


class FusedCrossEntropy(torch.autograd.Function):
    """Mean cross entropy of x @ weight.T, in chunks of samples; the forward pass computes the gradients already."""

    @staticmethod
    def forward(ctx, x, weight, labels):
        total, grad_x, grad_weight = x.new_zeros(()), torch.empty_like(x), torch.zeros_like(weight)
        for rows in torch.arange(len(x)).split(3):
            logits = x[rows] @ weight.t()
            total += functional.cross_entropy(logits, labels[rows], reduction="sum")
            excess = (logits.softmax(-1) - functional.one_hot(labels[rows], len(weight))) / len(x)
            grad_x[rows] = excess @ weight
            grad_weight += excess.t() @ x[rows]
        ctx.save_for_backward(grad_x, grad_weight)
        return total / len(x)

    @staticmethod
    def backward(ctx, gradient):
        grad_x, grad_weight = ctx.saved_tensors
        return gradient * grad_x, gradient * grad_weight, None


class WithLabels(Tower):
    """Vectors → logits; vectors and labels → the mean loss, without a call of ``out``."""

    def __init__(self, *layers):
        super().__init__(*layers)
        self.out = nn.Linear(WIDTH, OUTPUTS, bias=False)

    def forward(self, x, labels=None):
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.out(x) if labels is None else FusedCrossEntropy.apply(x, self.out.weight, labels)


class LossInModel(Labels):
    """In training the model returns its loss; an autograd function fuses the head with it, and with both gradients.

    From https://github.com/linkedin/Liger-Kernel/issues/332 (FSDP and the weight of a head that is not called).
    """

    def build_model(self):
        return WithLabels(*(Mixer() for _ in range(2)))

    def loss(self, model, batch):
        inputs, labels = batch
        return model(inputs, labels=labels)


class AddLoss(torch.autograd.Function):
    """Returns ``x``; in the backward pass ``loss`` gets the gradient 1, as if it were added to the final loss."""

    @staticmethod
    def forward(ctx, x, loss):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, gradient.new_ones(())


class Routed(nn.Module):
    """A weighted sum of three experts, with an auxiliary loss that keeps the router's logits small."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        logits = self.router(x)
        weights = logits.softmax(-1)
        result = sum(weights[:, n : n + 1] * expert(x).tanh() for n, expert in enumerate(self.experts))
        if self.training:
            result = AddLoss.apply(result, 0.1 * logits.logsumexp(-1).square().mean())
        return x + result


class LossInBackward(Vectors):
    """Each block adds an auxiliary loss, a mean over samples, that appears in the backward pass only.

    Its gradient does not depend on the final loss, so it is wrong if that is divided by the number of micro-batches.
    From https://github.com/NVIDIA-NeMo/Automodel/pull/1412 (how such gradients are scaled).
    """

    def build_model(self):
        return Tower(*(Routed() for _ in range(2)))

    def blocks(self, model):
        return list(model.layers)
