"""Inputs, outputs and batches that are not plain tensors in a fixed order."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.utils import ModelOutput

from .points import CLASSES, FEATURES, WIDTH, Points


class Net(nn.Module):
    """A linear layer, two blocks and a head; subclasses say how blocks are called."""

    def __init__(self, block):
        super().__init__()
        self.first = nn.Linear(FEATURES, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(2))
        self.head = nn.Linear(WIDTH, CLASSES)


class Gated(nn.Module):
    """The parts of every block here: x → (x plus an update, the update's gate)."""

    def __init__(self):
        super().__init__()
        self.update = nn.Linear(WIDTH, WIDTH)
        self.gate = nn.Linear(WIDTH, WIDTH)

    def compute(self, x):
        gate = self.gate(x).sigmoid()
        return x + gate * self.update(x).tanh(), gate


@dataclass
class Said(ModelOutput):
    logits: Tensor | None = None
    hidden: tuple[Tensor, ...] | None = None


class ModelOutputNet(Net):
    def forward(self, *, points, mask=None, return_dict=True):
        x, hidden = self.first(points), ()
        for block in self.blocks:
            x = block(x=x, mask=mask)
            hidden += (x,)
        said = Said(logits=self.head(x), hidden=hidden)
        return said if return_dict else said.to_tuple()


class KeywordBlock(Gated):
    def forward(self, *, x, mask=None):
        return self.compute(x if mask is None else x * mask)[0]


class KeywordsAndModelOutput(Points):
    """Model and blocks take keywords only, a mask that is None in evaluation, and return a ModelOutput.

    From https://github.com/pytorch/pytorch/pull/80987 (keyword arguments of checkpointed blocks).
    """

    def build_model(self):
        return ModelOutputNet(KeywordBlock)

    def losses(self, model, batch):
        points, labels = batch
        mask = (points[:, :1] < 1).float() if model.training else None
        out = model(points=points, mask=mask)
        surprise = functional.cross_entropy(out.logits, labels, reduction="none")
        return surprise + 0.05 * out.hidden[0].square().mean(-1)


class NestedNet(Net):
    def forward(self, inputs):
        x = self.first(inputs["points"]) + inputs["more"][0][:, None]
        if inputs["missing"] is not None:
            x = x + inputs["missing"]
        for block in self.blocks:
            x = block(x=x)
        return self.head(x)


class NestedBatch(Points):
    """A batch is a dictionary of dictionaries, lists and tuples, with a None and a string in it.

    From https://github.com/hiyouga/LlamaFactory/issues/1931 (inputs whose types ZeRO-3 cannot look through).
    """

    def build_model(self):
        return NestedNet(KeywordBlock)

    def nested(self, points, labels):
        inputs = {"points": points, "more": [points[:, 0], {"even": labels % 2 == 0}], "missing": None}
        return {"inputs": inputs, "targets": (labels, torch.ones(len(labels), dtype=torch.float64)), "name": "points"}

    def train_batch(self, indices):
        return self.nested(*super().train_batch(indices))

    def eval_batch(self, indices):
        return self.nested(*super().eval_batch(indices))

    def losses(self, model, batch):
        labels, weights = batch["targets"]
        surprise = functional.cross_entropy(model(batch["inputs"]), labels, reduction="none")
        return surprise * weights.float() * (1 + 0.5 * batch["inputs"]["more"][1]["even"])


class FillingBlock(Gated):
    def forward(self, x, outputs, seen):
        x, outputs["gate"] = self.compute(x)
        seen.append(x)
        return x


class FilledContainers(Points):
    """Blocks write into a dictionary and append to a list that the model gives them, and the head reads both.

    From https://github.com/pytorch/pytorch/issues/173415 (FSDP2 rebuilds the arguments of a module).
    """

    def build_model(self):
        class Filled(Net):
            def forward(self, x):
                x, outputs, seen = self.first(x), {}, []
                for block in self.blocks:
                    x = block(x, outputs, seen)
                return self.head(sum(seen) * outputs["gate"])

        return Filled(FillingBlock)
