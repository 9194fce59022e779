"""Inputs, outputs and batches that are not plain tensors in a fixed order."""

from dataclasses import dataclass
from typing import NamedTuple

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
class Hidden:
    x: Tensor
    gate: Tensor | None = None


class DataclassBlock(Gated):
    def forward(self, hidden):
        return Hidden(*self.compute(hidden.x))


class DataclassNet(Net):
    def forward(self, points):
        hidden = Hidden(self.first(points))
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden.x) * hidden.gate.mean(-1, keepdim=True)


class DataclassBlocks(Points):
    """Blocks take and return a dataclass.

    From https://github.com/pytorch/pytorch/issues/77812 (FSDP and outputs that are dataclasses).
    """

    def build_model(self):
        return DataclassNet(DataclassBlock)


class State:
    """Holds tensors in attributes and in a list; no library knows how to look inside."""

    def __init__(self, x):
        self.x, self.gates = x, []


class ObjectBlock(Gated):
    def forward(self, state):
        after = State(None)
        after.x, gate = self.compute(state.x)
        after.gates = [*state.gates, gate]
        return after


class ObjectNet(Net):
    def forward(self, points):
        state = State(self.first(points))
        for block in self.blocks:
            state = block(state)
        return self.head(state.x + state.gates[0])


class ObjectBlocks(Points):
    """Blocks take and return an object of a class of the user's own.

    From https://github.com/pytorch/pytorch/pull/173415 (FSDP2 finds no tensors in such outputs).
    """

    def build_model(self):
        return ObjectNet(ObjectBlock)


class DictBlock(Gated):
    def forward(self, hidden):
        x, gate = self.compute(hidden["x"])
        return {**hidden, "x": x, "gates": {**hidden["gates"], len(hidden["gates"]): gate}}


class DictNet(Net):
    def forward(self, points):
        hidden = {"x": self.first(points), "gates": {}, "name": "points"}
        for block in self.blocks:
            hidden = block(hidden)
        return {"logits": self.head(hidden["x"]), "gates": list(hidden["gates"].values())}


class DictBlocks(Points):
    """Blocks take and return dictionaries with a nested dictionary and a string; the loss uses all parts of them.

    From https://github.com/pytorch/pytorch/issues/77812 (outputs of modules that FSDP has to look through).
    """

    def build_model(self):
        return DictNet(DictBlock)

    def losses(self, model, batch):
        points, labels = batch
        out = model(points)
        surprise = functional.cross_entropy(out["logits"], labels, reduction="none")
        return surprise + 0.1 * sum(gate.mean(-1) for gate in out["gates"])


class Step(NamedTuple):
    x: Tensor
    gate: Tensor | None
    depth: int


class NamedTupleBlock(Gated):
    def forward(self, step):
        x, gate = self.compute(step.x)
        return Step(x, gate if step.gate is None else gate * step.gate, step.depth + 1)


class NamedTupleNet(Net):
    def forward(self, points):
        step = Step(self.first(points), None, 0)
        for block in self.blocks:
            step = block(step)
        return self.head(step.x * step.gate) / step.depth


class NamedTupleBlocks(Points):
    """Blocks take and return a named tuple with a None and an integer.

    From https://github.com/pytorch/pytorch/issues/77812 (outputs of modules that FSDP has to look through).
    """

    def build_model(self):
        return NamedTupleNet(NamedTupleBlock)


class TupleBlock(Gated):
    def forward(self, x, mask=None, *, output_gates=False):
        x, gate = self.compute(x if mask is None else x * mask)
        return (x, None, gate) if output_gates else (x, None)


class TupleNet(Net):
    def forward(self, points):
        x, gates, mask = self.first(points), (), None
        for block in self.blocks:
            x, _, *rest = block(x, mask, output_gates=mask is not None)
            gates += tuple(rest)
            mask = (x > -1).float()
        return self.head(x + sum(gates))


class TupleBlocks(Points):
    """Blocks return tuples of different lengths with a None, as those of older transformers do.

    From https://github.com/pytorch/pytorch/issues/79887 (activation checkpointing of T5 under FSDP).
    """

    def build_model(self):
        return TupleNet(TupleBlock)


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


class HolderBlock(Gated):
    def forward(self, holder):
        holder.x, holder.gate = self.compute(holder.x)
        return holder.x


class ChangedObject(Points):
    """Blocks change an object that the model gives them: recompute must begin from what it was."""

    def build_model(self):
        class Changed(Net):
            def forward(self, x):
                holder = Hidden(self.first(x))
                for block in self.blocks:
                    block(holder)
                return self.head(holder.x * holder.gate)

        return Changed(HolderBlock)
