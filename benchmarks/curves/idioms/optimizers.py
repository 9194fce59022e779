"""Parameter groups, frozen parameters, schedules, and optimizers with unusual states."""

import copy
import math
from abc import abstractmethod

import torch
from torch import nn
from torch.nn import functional

from .points import WIDTH, Points, Stack


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.linear(self.norm(x)).tanh()


class Trained(Points):
    """Two blocks with a normalisation and a linear layer; subclasses choose the optimizer."""

    def build_model(self):
        return Stack(*(Block() for _ in range(2)))

    @abstractmethod
    def optimizer(self, model): ...


class LoraBlock(Block):
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


class FrozenWithDecay(Points):
    """Frozen blocks whose parameters are in the optimizer too, with weight decay that must not touch them.

    From https://github.com/mosaicml/composer/pull/2355 (frozen parameters in the optimizer under FSDP).
    """

    def build_model(self):
        model = Stack(*(Block() for _ in range(3)))
        model.blocks[0].requires_grad_(False)
        model.blocks[2].linear.requires_grad_(False)
        return model

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)


class TwoLearningRates(Trained):
    """The blocks learn slowly and with decay, the head fast and with Nesterov momentum.

    From https://github.com/facebookresearch/fairscale/issues/539 (FSDP with groups differs from DDP).
    """

    def optimizer(self, model):
        groups = [
            {"params": list(model.first.parameters()), "lr": 0.01},
            {"params": list(model.blocks.parameters()), "weight_decay": 0.2},
            {"params": list(model.head.parameters()), "lr": 0.1, "nesterov": True},
        ]
        return torch.optim.SGD(groups, lr=0.02, momentum=0.9)


class NoDecayByName(Trained):
    """Biases and normalisations, found by their names, are not decayed; matrices, found by their shape, are.

    From https://github.com/pytorch/pytorch/issues/101343 (weight decay for some parameters under FSDP).
    """

    def optimizer(self, model):
        parameters = dict(model.named_parameters())
        plain = [name for name, parameter in parameters.items() if parameter.ndim < 2 or "norm" in name]
        groups = [
            {"params": [parameters[name] for name in plain], "weight_decay": 0.0},
            {"params": [parameter for name, parameter in parameters.items() if name not in plain], "weight_decay": 0.3},
        ]
        return torch.optim.SGD(groups, lr=0.05, momentum=0.9)


class ClippedByHook(Trained):
    """A hook before the optimizer's step clips the norm of all gradients together.

    From https://github.com/pytorch/pytorch/issues/72548 (clip_grad_norm under FSDP).
    """

    def optimizer(self, model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def clip(optimizer, args, kwargs):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)

        optimizer.register_step_pre_hook(clip)
        return optimizer


class ClippedBySum(Trained):
    """A hook before the optimizer's step computes the norm of gradients by hand and scales them in place.

    From https://github.com/pytorch/pytorch/issues/88621 (FSDP produces other gradient norms than DDP).
    """

    def optimizer(self, model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def clip(optimizer, args, kwargs):
            gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
            for gradient in gradients:
                gradient.mul_(min(1.0, 0.3 / norm))

        optimizer.register_step_pre_hook(clip)
        return optimizer


class Adagrad(Trained):
    """Adagrad, whose sums exist before the first step.

    From https://github.com/pytorch/pytorch/pull/59834 (states of optimizers that are divided).
    """

    def optimizer(self, model):
        return torch.optim.Adagrad(model.parameters(), lr=0.05, initial_accumulator_value=0.1)


class CentredRmsProp(Trained):
    """RMSprop, centred and with momentum: three states for each parameter.

    From https://github.com/pytorch/pytorch/pull/59834 (states of optimizers that are divided).
    """

    def optimizer(self, model):
        return torch.optim.RMSprop(model.parameters(), lr=0.005, eps=0.05, centered=True, momentum=0.5)


class AmsGrad(Trained):
    """Adam with amsgrad, decoupled decay and betas that differ between groups.

    From https://github.com/pytorch/pytorch/pull/59834 (states of optimizers that are divided).
    """

    def optimizer(self, model):
        groups = [
            {"params": list(model.blocks.parameters()), "betas": (0.8, 0.9)},
            {"params": [*model.first.parameters(), *model.head.parameters()]},
        ]
        return torch.optim.AdamW(groups, lr=0.02, eps=0.05, amsgrad=True, weight_decay=0.1)


class Factored(torch.optim.Optimizer):
    """Second moments of matrices by rows and columns (Adafactor); updates are limited by their root mean square."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state, squares = self.state[parameter], parameter.grad.square() + 1e-3
                if not state:
                    state["step"] = 0
                    state["rows"] = torch.zeros_like(squares.mean(-1))
                    state["columns"] = torch.zeros_like(squares.mean(0))
                state["step"] += 1
                decay = 1 - state["step"] ** -0.8
                state["rows"].mul_(decay).add_(squares.mean(-1), alpha=1 - decay)
                state["columns"].mul_(decay).add_(squares.mean(0), alpha=1 - decay)
                if parameter.ndim == 2:
                    rows = state["rows"] / state["rows"].mean()
                    update = parameter.grad / (rows[:, None] * state["columns"][None]).sqrt()
                else:
                    update = parameter.grad / squares.sqrt()
                update = update / update.square().mean().sqrt().clamp(min=1.0)
                parameter.sub_(update * group["lr"])


class FactoredMoments(Trained):
    """An optimizer of the user's own with moments of rows and columns, as Adafactor has.

    From https://github.com/pytorch/pytorch/issues/109581 (Adafactor and FSDP: a mean over divided rows).
    """

    def optimizer(self, model):
        return Factored(model.parameters(), lr=0.02)


class LayerWise(torch.optim.Optimizer):
    """Each tensor's step is as long as its norm says (LARS); a tensor without dimensions and a number are its state."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["trust"], state["num_steps"] = torch.ones(()), 0
                state["num_steps"] += 1
                ratio = (parameter.norm() + 0.1) / (parameter.grad.norm() + 0.1)
                state["trust"].mul_(0.5).add_(float(ratio), alpha=0.5)
                parameter.sub_(parameter.grad * float(state["trust"]) * group["lr"] / state["num_steps"] ** 0.5)


class LayerWiseRates(Trained):
    """An optimizer of the user's own that uses norms of whole tensors, with scalar state.

    From https://github.com/facebookresearch/fairscale/issues/696 (FSDP and optimizers such as LARC).
    """

    def optimizer(self, model):
        return LayerWise(model.parameters(), lr=0.05)


class Orthogonalized(torch.optim.Optimizer):
    """Steps of matrices are orthogonal matrices near the momentum (Muon); those of other tensors are plain."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                momentum = state.setdefault("momentum", torch.zeros_like(parameter))
                momentum.mul_(0.9).add_(parameter.grad)
                step = momentum
                if parameter.ndim == 2:
                    step = momentum / (momentum.norm() + 1e-3)
                    for _ in range(4):
                        step = 1.5 * step - 0.5 * step @ step.t() @ step
                parameter.sub_(step * group["lr"])


class OrthogonalSteps(Trained):
    """An optimizer of the user's own that multiplies whole matrices with each other, as Muon does.

    From https://github.com/MoonshotAI/Moonlight/issues/27 (Newton-Schulz iterations under FSDP).
    """

    def optimizer(self, model):
        return Orthogonalized(model.parameters(), lr=0.05)


class WarmUp(Trained):
    """on_step sets the learning rate, the momentum and the decay of each group.

    From https://github.com/pytorch/torchtitan/pull/2859 (groups with rates of their own).
    """

    def optimizer(self, model):
        groups = [{"params": list(model.blocks.parameters()), "scale": 0.5}]
        groups.append({"params": [*model.first.parameters(), *model.head.parameters()], "scale": 1.0})
        return torch.optim.SGD(groups, lr=0.0, momentum=0.9)

    def on_step(self, step, steps, optimizer):
        for group in optimizer.param_groups:
            group["lr"] = group["scale"] * 0.1 * min(1.0, (step + 1) / 4)
            group["momentum"] = 0.5 if step < 2 else 0.9
            group["weight_decay"] = 0.01 * step


class AveragedWeights(Points):
    """A hook after the optimizer's step moves a frozen average of the model, with which evaluation works.

    From https://github.com/facebookresearch/fairscale/issues/789 (an average of the weights under FSDP).
    """

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.trained = Stack(*(Block() for _ in range(2)))
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


class LossWithNorms(Trained):
    """The loss contains norms of the parameters (weight decay as a term of the loss).

    From https://github.com/pytorch/pytorch/issues/88621 (norms of divided parameters).
    """

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def losses(self, model, batch):
        points, labels = batch
        logits = model(points)
        decay = sum(p.square().sum() for name, p in model.named_parameters() if "norm" not in name)
        return functional.cross_entropy(logits, labels, reduction="none") + 0.01 * decay
