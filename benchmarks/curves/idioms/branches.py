"""Parameters that only some samples, some steps or no step at all use."""

import torch
from torch import nn

from .points import WIDTH, Block, Points, Stack, Stacked


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


class GradualUnfreezing(Stacked):
    """Blocks begin to learn one after the other, from the last to the first; on_step sets requires_grad.

    From https://github.com/pytorch/pytorch/pull/104186 (FSDP: unfreezing parameters after some steps).
    """

    block = Block
    num_blocks = 3

    def optimizer(self, model):
        self.model = model
        return super().optimizer(model)

    def on_step(self, step, steps, optimizer):
        for number, block in enumerate(self.model.blocks):
            block.requires_grad_(step >= len(self.model.blocks) - 1 - number)


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


class MixtureOfExperts(Stacked):
    """A router sends each sample to the best of four experts; an expert without samples gets no gradient.

    From https://github.com/deepspeedai/DeepSpeed/issues/4808 (ZeRO-3 waits for experts that no sample chose).
    """

    def blocks(self, model):
        return list(model.blocks)

    block = Experts
