"""State besides the parameters: merged weights, extra state, what the first pass initialises, memories of samples."""

import math

import torch
from torch import distributed, nn
from torch.nn import functional

from .base import OUTPUTS, WIDTH, Labels, Mixer, Tower, Vectors


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


class Quantized(nn.Linear):
    """A weight of 16 levels with a learned step size, which the first pass in training computes from the weight."""

    def __init__(self):
        super().__init__(WIDTH, WIDTH)
        self.step = nn.Parameter(torch.ones(1))
        self.register_buffer("is_ready", torch.zeros(1))

    def forward(self, x):
        if self.training and self.is_ready == 0:
            self.step.data.copy_(2 * self.weight.abs().mean() / math.sqrt(7))
            self.is_ready.fill_(1)
        slow = 1 / math.sqrt(self.weight.numel() * 7)
        step = (self.step - self.step * slow).detach() + self.step * slow
        scaled = (self.weight / step).clamp(-8, 7)
        weight = (scaled.round() - scaled).detach() + scaled
        return x + functional.linear(x, weight * step, self.bias).tanh()


class LearnedStepSize(Vectors):
    """The first training pass initialises a parameter from another one, if a buffer says that this is still to do.

    From https://github.com/hustzxd/LSQuantization (learned step size quantization).
    """

    def build_model(self):
        return Tower(*(Quantized() for _ in range(2)))


class Remembering(Tower):
    """Vectors → logits; with numbers of samples also what the model said about them in earlier steps."""

    def __init__(self, num_samples, *layers):
        super().__init__(*layers)
        self.register_buffer("said", torch.zeros(num_samples, OUTPUTS))

    def forward(self, x, numbers=None):
        logits = super().forward(x)
        if numbers is None:
            return logits
        with torch.no_grad():
            self.said[numbers] = 0.7 * self.said[numbers] + 0.3 * logits.softmax(-1)
        return logits, self.said[numbers]


class TargetsBySample(Labels):
    """A buffer has a row for each training sample, its average prediction, which a pass rewrites for its own samples.

    From https://github.com/shengliu66/ELR (early-learning regularization; the target of each sample).
    """

    writes_batch_state = True

    def build_model(self):
        return Remembering(self.num_train, *(Mixer() for _ in range(2)))

    def train_batch(self, indices):
        return *super().train_batch(indices), indices

    def eval_batch(self, indices):
        return super().train_batch(self.num_train + indices)

    def loss(self, model, batch):
        inputs, labels, numbers = batch
        logits, said = model(inputs, numbers)
        agreement = (said * logits.softmax(-1)).sum(-1)
        return (functional.cross_entropy(logits, labels, reduction="none") + (1 - agreement).log()).mean()


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
