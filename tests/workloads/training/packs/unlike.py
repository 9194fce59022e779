"""Models that could train another curve with others, or fail them."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from scamp import TransformersWorkload, Workload

WIDTH = 16


class Plain(Workload):
    """A frozen layer, something in between that subclasses define, and a head that trains."""

    default_batch = 8
    num_train, num_eval = 64, 16

    def between(self) -> nn.Module:
        return nn.Tanh()

    def build_model(self) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(int(self.params.get("backbone", 0)))
            body = nn.Sequential(nn.Linear(WIDTH, WIDTH), self.between(), nn.Linear(WIDTH, WIDTH), nn.Tanh())
        body.requires_grad_(False)
        return nn.Sequential(body, nn.Linear(WIDTH, int(self.params.get("classes", 4))))

    def train_batch(self, indices: Tensor) -> Any:
        x = torch.sin(indices[:, None] * torch.arange(1.0, WIDTH + 1))
        return x, indices % 4

    eval_batch = train_batch

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(model(batch[0]), batch[1], reduction="none")}

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=float(self.params.get("lr", 0.1)))


class Centred(nn.Module):
    """Compares the samples of a batch with each other."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Coupled(Plain):
    def between(self) -> nn.Module:
        return Centred()


class WithBatchNorm(Plain):
    def between(self) -> nn.Module:
        return nn.BatchNorm1d(WIDTH)


class Merged(nn.Module):
    """A frozen layer with an adapter, which is added to the frozen weight itself in evaluation mode."""

    kept: Tensor | None = None

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, WIDTH)), nn.Parameter(torch.randn(WIDTH, 2))

    def train(self, mode: bool = True) -> Merged:
        weight = self.base.weight.data
        if not mode and self.kept is None:
            self.kept = weight.clone()
            weight += self.up.detach() @ self.down.detach()
        elif mode and self.kept is not None:
            weight.copy_(self.kept)
            self.kept = None
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.base(x)
        return output if self.kept is not None else output + x @ self.down.t() @ self.up.t()


class Merging(Plain):
    def build_model(self) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return nn.Sequential(Merged(), nn.Tanh(), nn.Linear(WIDTH, 4))


class Noise(nn.Module):
    """Draws from Python's generator, outside of what trains."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + 0.1 * random.random())


class Noisy(Plain):
    def between(self) -> nn.Module:
        return Noise()


class Dropped(Plain):
    """Drops units outside of what trains, which a pass with others would draw otherwise."""

    def between(self) -> nn.Module:
        return nn.Dropout(0.5)


class Scaled(nn.Module):
    """Multiplies by a number that is no parameter and no attribute."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.function = lambda x: x * factor

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Hidden(Plain):
    def between(self) -> nn.Module:
        return Scaled(float(self.params.get("factor", 1.0)))


class Diverging(Plain):
    """Computes nan in step 3 if asked."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        loss = super().loss(model, batch)
        self.calls = getattr(self, "calls", 0) + 1
        if self.params.get("fails") == "nan" and self.calls == 3:
            return loss * float("nan")
        if self.params.get("fails") == "error" and self.calls == 3:
            raise ArithmeticError("as asked")
        return loss


class Adapted(nn.Module):
    """A frozen layer with a low-rank adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.options, self.dropout = nn.Linear(WIDTH, WIDTH), {"scale": 1.0}, nn.Dropout(0.1)
        self.down, self.up = nn.Parameter(torch.randn(2, WIDTH)), nn.Parameter(torch.randn(WIDTH, 2))
        self.base.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.options["scale"] * self.dropout(x) @ self.down.t() @ self.up.t()


class Offset(nn.Module):
    """Adds an attribute and a buffer."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.offset = 0.0
        self.register_buffer("shift", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.offset + self.shift


CHANGES: dict[str, Any] = {
    "scale": lambda body: body[0].options.update(scale=0.5),
    "dropout": lambda body: setattr(body[0].dropout, "p", 0.7),
    "attribute": lambda body: setattr(body[1], "offset", 1.0),
    "buffer": lambda body: body[1].shift.fill_(1.0),
    "hook": lambda body: body[1].register_forward_hook(lambda module, inputs, output: 2 * output),
    "part": lambda body: setattr(body, "1", nn.Tanh()),
    "unfrozen": lambda body: body[2].requires_grad_(True),
    "other weights": lambda body: setattr(body[2].weight, "data", body[2].weight.data * 2),
    "weights": lambda body: body[2].weight.data.mul_(2),
    "buffer behind the back": lambda body: body[1].shift.data.fill_(1.0),
}
"""What a training may do to its model between two steps."""


class Changing(Plain):
    """Changes its model ``after`` so many steps, by default at a time when no pass is compared."""

    def build_model(self) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            body = nn.Sequential(Adapted(), Offset(), nn.Linear(WIDTH, WIDTH), nn.Tanh())
        body[2].requires_grad_(False)
        return nn.Sequential(body, nn.Linear(WIDTH, 4))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        self.body: Any = next(model.children())
        return torch.optim.SGD(model.parameters(), lr=float(self.params.get("lr", 0.1)))

    def on_step(self, step: int, steps: int, optimizer: torch.optim.Optimizer) -> None:
        if step == self.params.get("after", 6) and (how := self.params.get("change")):
            CHANGES[how](self.body)


class Odd(Plain):
    """Has frozen weights that begin anywhere in a larger memory, as those that are read from a file may."""

    def build_model(self) -> nn.Module:
        model = super().build_model()
        for parameter in [each for each in model.parameters() if not each.requires_grad]:
            memory = torch.empty(parameter.numel() + 1)
            memory[1:] = parameter.detach().flatten()
            parameter.data = memory[1:].view_as(parameter)
        return model


class Teaching(Plain):
    """A layer that does not train follows one that does, if asked."""

    def build_model(self) -> nn.Module:
        self.student, self.teacher = (nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.teacher.requires_grad_(False)
        return nn.Sequential(self.student, self.teacher)

    def on_step(self, step: int, steps: int, optimizer: torch.optim.Optimizer) -> None:
        if self.params["teaches"]:
            with torch.no_grad():
                self.teacher.weight.lerp_(self.student.weight, 0.1)


class Bert(TransformersWorkload):
    """A small classifier of transformers with an adapter of peft, whose loss the model computes itself."""

    default_batch = 4

    @property
    def model_class(self) -> Any:
        from transformers import AutoModelForSequenceClassification

        return AutoModelForSequenceClassification

    def config(self) -> Any:
        from transformers import BertConfig

        return BertConfig(
            vocab_size=64,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=16,
            num_labels=3,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )

    def build_model(self) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return super().build_model()

    def peft(self) -> Any:
        from peft import LoraConfig, TaskType

        targets = self.params.get("targets", "query value").split()
        return LoraConfig(
            r=self.params["rank"], target_modules=targets, lora_dropout=0.1, task_type=TaskType.SEQ_CLS, lora_alpha=8
        )

    def dataset(self, split: str) -> list[Any]:
        return [
            {"input_ids": [(n * 7 + place) % 64 for place in range(10)], "labels": n % 3}
            for n in range(48 if split == "train" else 12)
        ]


class InTheMiddle(Plain):
    """Its second layer trains, too, as ``between`` the frozen ones."""

    def between(self) -> nn.Module:
        return nn.Linear(WIDTH, WIDTH)

    def build_model(self) -> nn.Module:
        model = super().build_model()
        model[0][1].requires_grad_(True)  # type: ignore[index]
        return model


class Recomputing(nn.Module):
    """Calls its layer again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.layer, x, use_reentrant=False)


class Checkpointed(Plain):
    def between(self) -> nn.Module:
        return Recomputing()

    def build_model(self) -> nn.Module:
        model = super().build_model()
        model[0][1].layer[0].requires_grad_(True)  # type: ignore[index]
        return model


class TwoNames(Plain):
    def build_model(self) -> nn.Module:
        model = super().build_model()
        model.first = model[0]  # type: ignore[index]
        model.forward = lambda x: model[1](model.first(x))  # type: ignore
        return model


class KeptByHook(InTheMiddle):
    """Its loss depends on hidden values that a hook keeps."""

    def build_model(self) -> nn.Module:
        model = super().build_model()
        model[0][2].register_forward_hook(self.keep)  # type: ignore[index]
        return model

    def keep(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        self.hidden = output

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return super().loss(model, batch) + 0.1 * self.hidden.square().mean()


class Penalty(InTheMiddle):
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return super().loss(model, batch) + 0.1 * sum(p.square().sum() for p in model.parameters() if p.requires_grad)


class TwoPasses(InTheMiddle):
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return super().loss(model, batch) + 0.1 * (model(batch[0]) - model(batch[0] * 0.9)).square().mean()


class ReadsAnObject(nn.Module):
    """Reads a number from an object that it holds."""

    def __init__(self, settings: SimpleNamespace) -> None:
        super().__init__()
        self.settings = settings

    def forward(self, x: Tensor) -> Tensor:
        return x * self.settings.scale


class Configured(Plain):
    """Its configuration changes while it trains."""

    def between(self) -> nn.Module:
        self.settings = SimpleNamespace(scale=1.0)
        return ReadsAnObject(self.settings)

    def on_step(self, step: int, num_steps: int, optimizer: torch.optim.Optimizer) -> None:
        if step == 5:
            self.settings.scale = float(self.params.get("scale", 2.0))
