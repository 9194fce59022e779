"""Parameters and buffers that are not contiguous fp32 matrices: other strides, types, sizes and shapes."""

import torch
from torch import nn
from torch.nn import functional

from .points import WIDTH, Block, Images, Points, Stack, Stacked


class ConvBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)

    def forward(self, x):
        return x + self.norm(self.conv(x)).relu()


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 8, 3, padding=1)
        self.blocks = nn.ModuleList(ConvBlock() for _ in range(3))
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class ChannelsLast(Images):
    """A convolutional net whose weights are stored channels-last.

    From https://github.com/pytorch/pytorch/pull/137382 (FSDP loses the memory format).
    """

    def build_model(self):
        return ConvNet().to(memory_format=torch.channels_last)


class TransposedBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter((torch.randn(WIDTH, 2 * WIDTH) * 0.1).t())
        self.back = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.back(functional.linear(x, self.weight).tanh())


class TransposedWeights(Stacked):
    """Weights made as [in, out] and transposed, as a loader of another framework's files does.

    From https://github.com/pytorch/torchtitan/pull/1180 ("FSDP does not support non-contiguous parameters yet").
    """

    block = TransposedBlock


class FourierBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(WIDTH // 2 + 1, dtype=torch.complex64) * 0.3)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        filtered = torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=WIDTH)
        return x + self.linear(filtered).tanh()


class ComplexFilters(Stacked):
    """Complex filters and real weights, as in Fourier neural operators.

    From https://github.com/pytorch/pytorch/issues/158753 (DDP drops the imaginary part of gradients).
    """

    block = FourierBlock


class ScalarBlock(Block):
    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.tensor(0.1))

    def forward(self, x):
        return x + self.gate * self.linear(x).tanh()


class ScalarGates(Stacked):
    """A parameter without dimensions in each block: the gate of ReZero, LayerScale or a temperature.

    From https://github.com/pytorch/pytorch/pull/132934 ("fully_shard doesn't support scalar parameters").
    """

    block = ScalarBlock
    num_blocks = 3


class EmptyBlock(Block):
    def __init__(self, rank):
        super().__init__()
        self.down = nn.Parameter(torch.randn(rank, WIDTH) * 0.1)
        self.up = nn.Parameter(torch.zeros(WIDTH, rank))

    def forward(self, x):
        adapted = functional.linear(functional.linear(x, self.down), self.up)
        return x + (self.linear(x) + adapted).tanh()


class EmptyParameters(Points):
    """Adapters of rank 0 in two of three blocks: parameters without elements, and blocks of different sizes.

    From https://github.com/mindspore-ai/hyper-parallel/issues/196 (ranks whose shard of a parameter is empty).
    """

    def build_model(self):
        return Stack(EmptyBlock(0), EmptyBlock(2), EmptyBlock(0))


class DoubleBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, dtype=torch.float64)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.linear(self.norm(x.double()).float()).tanh()


class TwoTypes(Stacked):
    """Normalisation in fp64 and linear layers in fp32, in the same block.

    From https://github.com/pytorch/pytorch/issues/156784 (FSDP2: different dtypes for parameters of one group).
    """

    block = DoubleBlock


class HalfBackboneBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16).requires_grad_(False)
        self.down = nn.Linear(WIDTH, 2, bias=False)
        self.up = nn.Linear(2, WIDTH, bias=False)

    def forward(self, x):
        return x + (self.base(x.bfloat16()).float() + self.up(self.down(x))).tanh()


class HalfBackbone(Stacked):
    """Frozen layers in bf16 with trained adapters in fp32, as parameter-efficient fine-tuning does.

    From https://github.com/huggingface/peft/issues/484 ("FlatParameter requires uniform dtype").
    """

    block = HalfBackboneBlock
    rounds_to_bf16 = True


class BufferBlock(Block):
    """A linear layer behind buffers of five types; one is not saved, one is None."""

    def __init__(self, shift):
        super().__init__()
        self.register_buffer("order", torch.arange(WIDTH).roll(shift))
        self.register_buffer("kept", torch.arange(WIDTH) % 5 != shift)
        self.register_buffer("levels", torch.arange(WIDTH, dtype=torch.uint8))
        self.register_buffer("scale", torch.linspace(0.5, 1.5, WIDTH), persistent=False)
        self.register_buffer("temperature", torch.tensor(0.7, dtype=torch.float64))
        self.register_buffer("offset", None)

    def forward(self, x):
        hidden = (x[:, self.order] * self.kept * self.scale + self.levels / 100) * self.temperature.float()
        return x + self.linear(hidden).tanh()


class OddBuffers(Points):
    """Buffers of integers, booleans, bytes and fp64, without dimensions, not persistent, or None.

    From https://github.com/coreweave/tensorizer/pull/96 (non-persistent buffers that a loader leaves out).
    """

    def build_model(self):
        return Stack(*(BufferBlock(shift) for shift in range(3)))
