"""State besides the parameters: merged weights, extra state, what the first pass initialises, memories of samples."""

import torch
from torch import distributed, nn
from torch.nn import functional

from .base import WIDTH, Tower, Vectors


class MergingLinear(nn.Linear):
    """A frozen linear layer with an adapter of rank 3 that is added to its weight while it is evaluated."""

    def __init__(self):
        super().__init__(WIDTH, WIDTH)
        self.weight.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(3, WIDTH) / 4)
        self.b = nn.Parameter(torch.zeros(WIDTH, 3))
        self.merged = False

    def train(self, mode=True):
        super().train(mode)
        if mode and self.merged:
            self.weight.data -= self.b @ self.a
            self.merged = False
        elif not mode and not self.merged:
            self.weight.data += self.b @ self.a
            self.merged = True
        return self

    def forward(self, x):
        result = super().forward(x)
        return result if self.merged else result + x @ self.a.t() @ self.b.t()


class MergedInEvaluation(Vectors):
    """``eval()`` adds adapters to the weights of their layers, and ``train()`` takes them out again.

    From https://github.com/Lightning-AI/litgpt/pull/296 (weights that are sharded when train and eval change them).
    """

    def build_model(self):
        return Tower(*(nn.Sequential(MergingLinear(), nn.Tanh(), MergingLinear()) for _ in range(2)))


class AmaxLinear(nn.Linear):
    """Divides its weight by twice its first largest value, or by its largest so far: no buffer, but extra state."""

    def __init__(self):
        super().__init__(WIDTH, WIDTH)
        self.amax = torch.zeros(())

    def forward(self, x):
        if self.training:
            now = self.weight.detach().abs().amax()
            self.amax = torch.where(self.amax == 0, 2 * now, torch.maximum(self.amax, now))
        return x + functional.linear(x, self.weight / self.amax, self.bias).tanh()

    def get_extra_state(self):
        return {"amax": self.amax}

    def set_extra_state(self, state):
        self.amax = state["amax"]


class ExtraState(Vectors):
    """Blocks keep a largest value in an attribute and save it by get_extra_state, as layers for fp8 do.

    From https://github.com/NVIDIA/TransformerEngine/issues/1860 (extra state in checkpoints of FSDP2).
    """

    def build_model(self):
        return Tower(*(AmaxLinear() for _ in range(2)))


class Centred(nn.Module):
    """Subtracts a centre, which follows the mean of all ranks' samples, from what its layer says."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("centre", torch.zeros(1, WIDTH))

    def forward(self, x):
        said = self.linear(x)
        result = x + (said - self.centre).tanh()
        if self.training:
            self.follow(said)
        return result

    @torch.no_grad()
    def follow(self, said):
        total, num = said.sum(0, keepdim=True), len(said)
        if distributed.is_available() and distributed.is_initialized():
            distributed.all_reduce(total)
            num *= distributed.get_world_size()
        self.centre = 0.8 * self.centre + 0.2 * total / num


class OwnAllReduce(Vectors):
    """Blocks call torch.distributed themselves, if it is initialised, to average a statistic over all ranks.

    From https://github.com/facebookresearch/dino (main_dino.py: DINOLoss.update_center).
    """

    writes_batch_state = True

    def build_model(self):
        return Tower(*(Centred() for _ in range(2)))
