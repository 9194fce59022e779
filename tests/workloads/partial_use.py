"""Workloads whose ranks use different parts of their model. Not a test module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from workloads.protocol import Chain, Workload

WIDTH = 6


class Net(nn.Module):
    """A trunk, and parts of which each idiom uses others; ``parts`` are what FSDP shards one by one."""

    def __init__(self, idiom: str) -> None:
        super().__init__()
        self.idiom, self.step = idiom, 0
        self.table = nn.Embedding(5, WIDTH)
        self.trunk = nn.Linear(WIDTH, WIDTH)
        self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, 1)
        self.unused = nn.Linear(3, 3)

    def forward(self, x: Tensor, kind: Tensor) -> Tensor:
        hidden = (self.trunk(x) + self.table(kind)).tanh()
        return self.head(hidden + getattr(self, self.idiom, self.heads)(hidden, kind))[:, 0]

    def experts(self, hidden: Tensor, kind: Tensor) -> Tensor:
        """The largest of some features chooses the expert."""
        chosen, out = hidden[:, : len(self.parts)].argmax(1), torch.zeros_like(hidden)
        for number, expert in enumerate(self.parts):
            if (mine := chosen == number).any():
                out = out.index_put((mine.nonzero()[:, 0],), expert(hidden[mine]))
        return out

    def heads(self, hidden: Tensor, kind: Tensor) -> Tensor:
        """The task of a sample has its part; the last one first, so parts do not run in the order of their names."""
        out = torch.zeros_like(hidden)
        for task in sorted(set(kind.tolist()), reverse=True):
            if task < len(self.parts):
                mine = (kind == task)[:, None]
                out = out + mine * self.parts[task](hidden)
        return out

    def drops(self, hidden: Tensor, kind: Tensor) -> Tensor:
        for part in self.parts:
            if torch.rand(()) < 0.5:
                hidden = hidden + part(hidden)
        return hidden

    def odd_steps(self, hidden: Tensor, kind: Tensor) -> Tensor:
        for number, part in enumerate(self.parts):
            if number % 2 == self.step % 2:
                hidden = part(hidden)
        return hidden

    def twice(self, hidden: Tensor, kind: Tensor) -> Tensor:
        """A part that runs as often as there are kinds of samples, even after later ones have."""
        for task in range(5):
            if (kind == task).any():
                hidden = hidden + (kind == task)[:, None] * self.parts[task % 2](hidden)
        return hidden


class Stages(Chain):
    enters, leaves = ("enter_layer",), ("leave_layer",)

    def __init__(self, idiom: str) -> None:
        super().__init__()
        self.idiom, self.step = idiom, 0
        self.enter_layer, self.leave_layer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.blocks = nn.ModuleList(Block(WIDTH, idiom) for _ in range(4))

    def enter(self, inputs: Tensor) -> Tensor:
        return self.enter_layer(inputs)

    def leave(self, x: Tensor) -> Tensor:
        return self.leave_layer(x)[:, 0]

    def hidden_shape(self, num_samples: int) -> tuple[int, ...]:
        return num_samples, WIDTH

    def forward(self, x: Tensor) -> Tensor:
        if self.is_first:
            x = self.enter(x)
        for block in self.blocks:
            if self.idiom != "drops" or torch.rand(()) < 0.5:
                x = block(x)
        return self.leave(x) if self.is_last else x


class Block(nn.Module):
    def __init__(self, width: int, idiom: str) -> None:
        super().__init__()
        self.idiom = idiom
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        out, chosen = x, x[:, :2].argmax(1)
        for number, expert in enumerate(self.experts):
            if (mine := chosen == number).any():
                out = out.index_put((mine.nonzero()[:, 0],), x[mine] + expert(x[mine]).tanh())
        return out


class Partial(Workload):
    num_train, num_eval, default_batch = 64, 8, 16

    def build_model(self) -> nn.Module:
        idiom = self.params["idiom"]
        return Stages(idiom) if self.params.get("stages") else Net(idiom)

    def samples(self, indices: Tensor) -> Any:
        numbers = torch.arange(WIDTH) + 1.0
        x = (indices[:, None] * numbers * 0.37).sin()
        return x if self.params.get("stages") else (x, indices % 5)

    train_batch = eval_batch = samples

    def errors(self, model: nn.Module, batch: Any) -> Tensor:
        if self.params.get("stages"):
            return (model(batch) - batch.sum(1).sin()) ** 2
        x, kind = batch
        return (model(x, kind) - x.sum(1).sin()) ** 2

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        if isinstance(model, Net):
            model.step = self.step
        return self.errors(model, batch).mean()

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"loss": self.errors(model, batch)}

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        if self.params["idiom"] == "unfrozen":
            for parameter in [*model.trunk.parameters(), *model.parts.parameters()]:
                parameter.requires_grad_(False)
            self.late = list(model.parts.parameters())
        return torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.5)

    def on_step(self, step: int, steps: int, optimizer: torch.optim.Optimizer) -> None:
        self.step = step
        if self.params["idiom"] == "unfrozen":
            for parameter in self.late:
                parameter.requires_grad_(step >= 3)
