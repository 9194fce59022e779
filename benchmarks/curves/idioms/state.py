"""State that a forward pass changes: averages of weights, clamped weights, counters, statistics, queues."""

import copy

import torch
from torch import nn
from torch.nn import functional

from .points import WIDTH, Block, Images, Points, Stack, Stacked


class MovingTarget(nn.Module):
    """A layer and a target that follows it; the block adds what both say. Subclasses define ``follow``."""

    def __init__(self):
        super().__init__()
        self.online = nn.Linear(WIDTH, WIDTH)
        self.target = nn.Linear(WIDTH, WIDTH).requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            if self.training:
                self.follow()
            target = self.target(x).tanh()
        return x + self.online(x).tanh() - 0.5 * target


class InPlaceTarget(MovingTarget):
    def follow(self):
        for target, online in zip(self.target.parameters(), self.online.parameters(), strict=True):
            target.mul_(0.8).add_(online, alpha=0.2)


class EmaInPlace(Stacked):
    """Each block's forward moves a target layer towards the trained one, in place.

    From https://github.com/facebookresearch/fairscale/issues/805 (parameters that are averages of others).
    """

    block = InPlaceTarget


class Shadowed(Block):
    def __init__(self):
        super().__init__()
        self.register_buffer("shadow", self.linear.weight.detach().clone())

    def forward(self, x):
        if self.training:
            self.shadow = 0.8 * self.shadow + 0.2 * self.linear.weight.detach()
        return x + self.linear(x).tanh() - 0.5 * functional.linear(x, self.shadow).tanh()


class EmaReassigned(Stacked):
    """Each block's forward replaces a buffer by a new average of the block's weight.

    From https://github.com/lucidrains/vector-quantize-pytorch/pull/57 (averages that are kept as buffers).
    """

    block = Shadowed


class MeanTeacher(nn.Module):
    """Points → logits of the student, and of the teacher, which follows at the start of each training pass."""

    def __init__(self):
        super().__init__()
        self.student = Stack(*(Block() for _ in range(3)))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, points):
        if self.training:
            with torch.no_grad():
                for teacher, student in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                    teacher.lerp_(student, 0.2)
        with torch.no_grad():
            targets = self.teacher(points)
        return self.student(points), targets


class EmaOfWholeModel(Points):
    """The model's forward moves a whole teacher towards the student by lerp_ (mean teacher, BYOL, DINO).

    From https://github.com/pytorch/pytorch/issues/117742 (an EMA model updated by hand under FSDP).
    """

    def build_model(self):
        return MeanTeacher()

    def losses(self, model, batch):
        points, labels = batch
        logits, targets = model(points)
        return functional.cross_entropy(logits, labels, reduction="none") + 0.3 * (logits - targets).square().mean(-1)


class ClampedByDataBlock(Block):
    def forward(self, x):
        for parameter in self.parameters():
            parameter.data.clamp_(-0.15, 0.15)
        return super().forward(x)


class ClampedByData(Stacked):
    """Each forward clamps the block's weights through ``.data``, as the critic of a Wasserstein GAN does.

    From https://github.com/martinarjovsky/WassersteinGAN/issues/32 (which parameters are clamped).
    """

    block = ClampedByDataBlock


class RememberingBlock(Block):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        if self.training:
            self.calls += 1
        return x + min(1.0, self.calls / 6) * self.linear(x).tanh()


class CounterAttribute(Stacked):
    """A gate opens with the number of training passes, which a plain Python attribute counts.

    From https://github.com/pytorch/pytorch/pull/4594 (checkpointed modules that count their passes).
    """

    block = RememberingBlock


class NormedConv(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(6, 6, 3, padding=1), norm

    def forward(self, x):
        return x + self.norm(self.conv(x)).relu()


class NormedNet(nn.Module):
    def __init__(self, *norms):
        super().__init__()
        self.first = nn.Conv2d(2, 6, 3, padding=1)
        self.blocks = nn.ModuleList(NormedConv(norm) for norm in norms)
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class BatchNormBlocks(Images):
    """Batch normalisation inside of blocks, whose statistics recompute must not update twice.

    From https://github.com/pytorch/pytorch/issues/96136 (checkpoint updates batch normalisation twice).
    """

    depends_on_division = True

    def build_model(self):
        return NormedNet(*(nn.BatchNorm2d(6) for _ in range(2)))


class Quantizer(Block):
    """The nearest of eight codes; in training, codes move to the mean of what they stand for."""

    def __init__(self):
        super().__init__()
        codes = torch.randn(8, WIDTH)
        self.register_buffer("codes", codes)
        self.register_buffer("sums", codes.clone())
        self.register_buffer("counts", torch.ones(8))

    def forward(self, x):
        hidden = self.linear(x)
        nearest = torch.cdist(hidden.detach(), self.codes).argmin(-1)
        quantized = self.codes[nearest]
        if self.training:
            members = functional.one_hot(nearest, 8).to(hidden)
            with torch.no_grad():
                self.counts.mul_(0.9).add_(members.sum(0), alpha=0.1)
                self.sums.mul_(0.9).add_(members.t() @ hidden.detach(), alpha=0.1)
                self.codes.copy_(self.sums / self.counts[:, None])
        return x + hidden + (quantized - hidden).detach()


class CodebookByEma(Stacked):
    """Vector quantization: a codebook that follows the batch by exponential averages, without gradients.

    From https://github.com/lucidrains/vector-quantize-pytorch/issues/222 (codebooks that differ between workers).
    """

    writes_batch_state = True

    block = Quantizer


class ActNorm(Block):
    """Scale and shift whose first values make the first batch of mean 0 and deviation 1."""

    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))
        self.register_buffer("initialized", torch.tensor(False))

    def forward(self, x):
        if self.training and not self.initialized:
            with torch.no_grad():
                self.scale.copy_(1 / (x.std(0, correction=0) + 0.1))
                self.shift.copy_(-x.mean(0) * self.scale)
                self.initialized.fill_(True)
        return x + self.linear(x * self.scale + self.shift).tanh()


class InitializedByData(Stacked):
    """Parameters that the first batch initializes (ActNorm of Glow, weight normalisation by data).

    From https://github.com/lucidrains/vector-quantize-pytorch/pull/17 (initialization from each replica's batch).
    """

    writes_batch_state = True

    block = ActNorm


class Memory(Block):
    """Keeps the size of its activations, one number for each sample, in a plain list."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        hidden = self.linear(x).tanh()
        self.seen.append(hidden.square().mean(-1))
        return x + hidden


class StashedOutputs(Stacked):
    """Blocks leave an auxiliary loss of each sample in an attribute, which the loss reads after the pass.

    From https://github.com/deepspeedai/DeepSpeed/issues/4808 (models with losses besides their output).
    """

    block = Memory

    def losses(self, model, batch):
        points, labels = batch
        for block in model.blocks:
            block.seen.clear()
        surprise = functional.cross_entropy(model(points), labels, reduction="none")
        return surprise + 0.1 * sum(block.seen[0] for block in model.blocks)
