"""Parameters that only some samples, some steps or no step at all use."""

import torch
from torch import nn
from torch.nn import functional

from .points import CLASSES, FEATURES, WIDTH, Points, Stack


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.linear(x).tanh()


class UnusedBlock(Block):
    def __init__(self):
        super().__init__()
        self.old = nn.Linear(WIDTH, 3)
        self.norm = nn.LayerNorm(WIDTH)


class UnusedLayers(Points):
    """Layers that no pass uses: in every block, and a head as well.

    From https://github.com/NVIDIA-BioNeMo/KERMT/issues/23 (heads of pretraining that fine-tuning never calls).
    """

    def build_model(self):
        model = Stack(*(UnusedBlock() for _ in range(2)))
        model.pretraining_head = nn.Linear(WIDTH, 7)
        return model


class Extras(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.extra = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, use_extra):
        x = x + self.linear(x).tanh()
        return x + self.extra(x).tanh() if use_extra else x


class EvenSteps(Points):
    """A layer of each block takes part only at even steps; on_step says which step it is.

    From https://github.com/huggingface/accelerate/issues/1191 (layers that one step leaves out).
    """

    class Net(Stack):
        def forward(self, x, use_extra):
            x = self.first(x)
            for block in self.blocks:
                x = block(x, use_extra)
            return self.head(x)

    use_extra = True

    def build_model(self):
        return self.Net(*(Extras() for _ in range(2)))

    def on_step(self, step, steps, optimizer):
        self.use_extra = step % 2 == 0

    def losses(self, model, batch):
        points, labels = batch
        return functional.cross_entropy(model(points, self.use_extra), labels, reduction="none")


class SkippedBlocks(Points):
    """Each step leaves out one whole block, in turn; on_step writes which into the model (progressive layer drop).

    From https://github.com/facebookresearch/fairscale/issues/796 (layer drop hangs under FSDP).
    """

    class Net(Stack):
        skipped = -1

        def forward(self, x):
            x = self.first(x)
            for number, block in enumerate(self.blocks):
                if not (self.training and number == self.skipped):
                    x = block(x)
            return self.head(x)

    def build_model(self):
        return self.Net(*(Block() for _ in range(3)))

    def optimizer(self, model):
        self.model = model
        return super().optimizer(model)

    def on_step(self, step, steps, optimizer):
        self.model.skipped = step % 4


class SkippedBySamples(Points):
    """A block is left out if no sample of the batch asks for it.

    From https://github.com/deepspeedai/DeepSpeed/issues/1888 (layers that run on some ranks only).
    """

    class Net(Stack):
        def forward(self, x):
            mask = x[:, 0] > 0.6
            x = self.first(x)
            for number, block in enumerate(self.blocks):
                if number == 0:
                    x = block(x)
                elif mask.any():
                    x = torch.where(mask[:, None], block(x), x)
            return self.head(x)

    def build_model(self):
        return self.Net(*(Block() for _ in range(3)))


class GradualUnfreezing(Points):
    """Blocks begin to learn one after the other, from the last to the first; on_step sets requires_grad.

    From https://github.com/pytorch/pytorch/pull/104186 (FSDP: unfreezing parameters after some steps).
    """

    def build_model(self):
        return Stack(*(Block() for _ in range(3)))

    def optimizer(self, model):
        self.model = model
        return super().optimizer(model)

    def on_step(self, step, steps, optimizer):
        for number, block in enumerate(self.model.blocks):
            block.requires_grad_(step >= len(self.model.blocks) - 1 - number)


class UnfrozenByGroups(Points):
    """The blocks' group of parameters joins at step 2 (no gradients, learning rate 0); one layer is in no group.

    From https://github.com/allenai/rslearn/pull/632 (freezing that toggles requires_grad of groups).
    """

    def build_model(self):
        return Stack(*(Block() for _ in range(2)))

    def optimizer(self, model):
        groups = [{"params": list(model.blocks.parameters())}, {"params": list(model.head.parameters())}]
        return torch.optim.SGD(groups, lr=0.05, momentum=0.9)

    def on_step(self, step, steps, optimizer):
        features = optimizer.param_groups[0]
        features["lr"] = 0.05 if step >= 2 else 0.0
        for parameter in features["params"]:
            parameter.requires_grad_(step >= 2)


class HeadsByTask(Points):
    """Each sample belongs to one of three tasks, and each task has a head: a batch may leave heads out.

    From https://github.com/pytorch/pytorch/issues/60844 (DDP: one model, several heads, unused ones).
    """

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(FEATURES, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(2))
            self.heads = nn.ModuleDict({name: nn.Linear(WIDTH, CLASSES) for name in ("sort", "rank", "tag")})

        def forward(self, points, tasks):
            x = self.first(points)
            for block in self.blocks:
                x = block(x)
            logits = x.new_zeros(len(x), CLASSES)
            for task, head in enumerate(self.heads.values()):
                mine = tasks == task
                if mine.any():
                    logits[mine] = head(x[mine])
            return logits

    def build_model(self):
        return self.Net()

    def train_batch(self, indices):
        points, labels = super().train_batch(indices)
        return points, labels, indices // 5 % 3

    def eval_batch(self, indices):
        points, labels = super().eval_batch(indices)
        return points, labels, indices % 2

    def losses(self, model, batch):
        points, labels, tasks = batch
        return functional.cross_entropy(model(points, tasks), labels, reduction="none")


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, WIDTH)) for _ in range(4)
        )

    def forward(self, x):
        chances = self.router(x).softmax(-1)
        chance, chosen = chances.max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mine = (chosen == number).nonzero()[:, 0]
            if len(mine):
                out = out.index_add(0, mine, chance[mine, None] * expert(x[mine]))
        return x + out


class MixtureOfExperts(Points):
    """A router sends each sample to the best of four experts; an expert without samples gets no gradient.

    From https://github.com/deepspeedai/DeepSpeed/issues/4808 (ZeRO-3 waits for experts that no sample chose).
    """

    def blocks(self, model):
        return list(model.blocks)

    def build_model(self):
        return Stack(*(Experts() for _ in range(2)))


class ExpertsAsBlocks(MixtureOfExperts):
    """Without ``blocks``: the longest list of modules is that of one layer's experts.

    From https://github.com/deepspeedai/DeepSpeed/issues/4808 (experts that are gathered one by one).
    """

    def blocks(self, model):
        return Points.blocks(self, model)


class RareBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.rare = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x):
        far = (x.detach().square().mean(-1) > 2.5).nonzero()[:, 0]
        x = x + self.linear(x).tanh()
        return x.index_add(0, far, self.rare.expand(len(far), -1)) if len(far) else x


class RareSamples(Points):
    """A bias of each block that only outliers add, so that most micro-batches do not use it.

    From https://github.com/ScienceOne-AI/DeepSeek-671B-SFT-Guide/issues/7 (parts of a model that see no tokens).
    """

    def build_model(self):
        return Stack(*(RareBlock() for _ in range(2)))
