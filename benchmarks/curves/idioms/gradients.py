"""Gradients that the user's own hooks and functions change, or that are part of the loss."""

import torch
from torch import nn
from torch.func import functional_call, jvp, vmap
from torch.nn import functional

from .points import WIDTH, Block, Points, Stack, Stacked


class HooksOnParameters(Points):
    """A hook on a parameter of each block removes the gradient of half of its rows.

    From https://github.com/meta-pytorch/torchrec/pull/4268 (hooks on parameters never fire under FSDP2).
    """

    def build_model(self):
        model = Stack(*(Block() for _ in range(2)))
        mask = (torch.arange(WIDTH, device="cpu") % 2 == 0).float()[:, None]
        for block in model.blocks:
            block.linear.weight.register_hook(lambda gradient: gradient * mask)
        return model


class PrunedBlock(Block):
    """Half of the weights are 0 before each pass, and stay so."""

    def __init__(self):
        super().__init__()
        self.register_buffer("kept", (torch.arange(WIDTH * WIDTH).view(WIDTH, WIDTH) % 3 > 0).float())
        self.linear.register_forward_pre_hook(self.prune)

    def prune(self, linear, inputs):
        with torch.no_grad():
            linear.weight.data.mul_(self.kept)


class PrunedWeights(Stacked):
    """A forward hook sets pruned weights to 0 in place, because the optimizer's momentum moves them.

    From https://github.com/pytorch/pytorch/issues/103958 (how to keep pruned weights at 0 under FSDP).
    """

    block = PrunedBlock


class GradientPenalty(Stacked):
    """The loss contains the size of the gradient by the input: a double backward pass (WGAN-GP, R1).

    From https://github.com/pytorch/pytorch/issues/7714 (gradient penalties).
    """

    block = Block

    def losses(self, model, batch):
        points, labels = batch
        with torch.enable_grad():
            points = points.detach().requires_grad_()
            losses = functional.cross_entropy(model(points), labels, reduction="none")
            (slopes,) = torch.autograd.grad(losses.sum(), points, create_graph=model.training)
        return losses + 0.5 * slopes.square().sum(-1)


class DirectionalDerivative(Stacked):
    """The loss contains a derivative along a direction, by forward-mode differentiation of the model.

    From https://github.com/pytorch/pytorch/issues/182641 (jvp through FSDP2).
    """

    block = Block

    def losses(self, model, batch):
        points, labels = batch
        logits, slopes = jvp(model, (points,), (torch.ones_like(points),))
        return functional.cross_entropy(logits, labels, reduction="none") + 0.05 * slopes.square().mean(-1)


class FunctionalCall(Stacked):
    """The loss calls the model a second time, with smaller weights in place of its parameters.

    From https://github.com/soran-ghaderi/torchebm/pull/251 (functional_call under FSDP2).
    """

    block = Block

    def losses(self, model, batch):
        points, labels = batch
        smaller = {name: 0.9 * parameter for name, parameter in model.named_parameters()}
        logits = model(points)
        distances = (logits - functional_call(model, smaller, (points,))).square().mean(-1)
        return functional.cross_entropy(logits, labels, reduction="none") + 0.5 * distances


class MappedBlock(Block):
    def forward(self, x):
        return vmap(super().forward)(x)


class MappedOverSamples(Stacked):
    """Blocks compute one sample, and vmap applies them to all of a batch.

    From https://github.com/pytorch/pytorch/issues/102197 (transforms of torch.func and DDP).
    """

    block = MappedBlock


class Binarize(torch.autograd.Function):
    """The sign in the forward pass; in the backward pass, the gradient where the weight is small."""

    @staticmethod
    def forward(ctx, weight, scale):
        ctx.save_for_backward(weight, scale)
        return weight.sign() * scale

    @staticmethod
    def backward(ctx, gradient):
        weight, scale = ctx.saved_tensors
        return gradient * scale * (weight.abs() < 0.24), (gradient * weight.sign()).sum(1, keepdim=True)


class BinaryBlock(Block):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((WIDTH, 1), 0.2))

    def forward(self, x):
        weight = Binarize.apply(self.linear.weight, self.scale)
        return x + functional.linear(x, weight, self.linear.bias).tanh()


class BinaryWeights(Stacked):
    """Blocks use the signs of their weights, by an autograd function with a gradient of its own.

    From https://github.com/pytorch/pytorch/issues/103958 (gradients that the user changes under FSDP).
    """

    block = BinaryBlock
