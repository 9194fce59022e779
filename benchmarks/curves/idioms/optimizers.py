"""Parameter groups, frozen parameters, schedules, and optimizers with unusual states."""

import copy

import torch
from torch import nn
from torch.nn import functional

from .points import WIDTH, NormedBlock, Points, Stack, Stacked


class LoraBlock(NormedBlock):
    def __init__(self):
        super().__init__()
        self.requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        y = self.norm(x)
        return x + (self.linear(y) + self.up(self.down(y))).tanh()


class LoraAdapters(Points):
    """Adapters next to frozen layers; the optimizer gets only what is trained.

    From https://github.com/pytorch/pytorch/issues/83204 (freezing parts of a model under FSDP).
    """

    def build_model(self):
        model = Stack(LoraBlock(), LoraBlock())
        model.first.requires_grad_(False)
        return model

    def optimizer(self, model):
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return torch.optim.SGD(trained, lr=0.1, momentum=0.9)


class NoDecayByName(Stacked):
    """Biases and normalisations, found by their names, are not decayed; matrices, found by their shape, are.

    From https://github.com/pytorch/pytorch/issues/101343 (weight decay for some parameters under FSDP).
    """

    block = NormedBlock

    def optimizer(self, model):
        parameters = dict(model.named_parameters())
        plain = [name for name, parameter in parameters.items() if parameter.ndim < 2 or "norm" in name]
        groups = [
            {"params": [parameters[name] for name in plain], "weight_decay": 0.0},
            {"params": [parameter for name, parameter in parameters.items() if name not in plain], "weight_decay": 0.3},
        ]
        return torch.optim.SGD(groups, lr=0.05, momentum=0.9)


class AveragedWeights(Points):
    """A hook after the optimizer's step moves a frozen average of the model, with which evaluation works.

    From https://github.com/facebookresearch/fairscale/issues/789 (an average of the weights under FSDP).
    """

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.trained = Stack(*(NormedBlock() for _ in range(2)))
            self.average = copy.deepcopy(self.trained).requires_grad_(False)

        def forward(self, points):
            return self.trained(points) if self.training else self.average(points)

    def build_model(self):
        return self.Net()

    def optimizer(self, model):
        optimizer = torch.optim.SGD(model.trained.parameters(), lr=0.05, momentum=0.9)

        @torch.no_grad()
        def follow(optimizer, args, kwargs):
            for average, trained in zip(model.average.parameters(), model.trained.parameters(), strict=True):
                average.lerp_(trained, 0.3)

        optimizer.register_step_post_hook(follow)
        return optimizer


class LossWithNorms(Stacked):
    """The loss contains norms of the parameters (weight decay as a term of the loss).

    From https://github.com/pytorch/pytorch/issues/88621 (norms of divided parameters).
    """

    block = NormedBlock

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def losses(self, model, batch):
        points, labels = batch
        logits = model(points)
        decay = sum(p.square().sum() for name, p in model.named_parameters() if "norm" not in name)
        return functional.cross_entropy(logits, labels, reduction="none") + 0.01 * decay
