"""Models of torch alone, of the kinds that the families of ``transformers`` do not have.

``make(model=…)`` returns what ``scamp estimate benchmarks/covering/plain.py:make`` takes. All have weights and
activations of tens of MiB, so that memory of constant size weighs little.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from workloads.function import FunctionWorkload

Made = tuple[nn.Module, Callable[[int], Any], Callable[[nn.Module, Any], Tensor]]


def _ints(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape)


def _classes(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch[0]).float(), batch[1])


def _same(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.mse_loss(model(batch[0]).float(), batch[1].float())


def _pictures(side: int, classes: int = 100) -> Callable[[int], tuple[Tensor, Tensor]]:
    return lambda batch: (torch.randn(batch, 3, side, side), _ints(classes, batch))


def _sequences(length: int, width: int, classes: int = 100) -> Callable[[int], tuple[Tensor, Tensor]]:
    return lambda batch: (torch.randn(batch, length, width), _ints(classes, batch))


def _texts(length: int, words: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    return lambda batch: (_ints(words, batch, length), _ints(words, batch, length))


def _next_word(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch[0]).flatten(0, 1).float(), batch[1].flatten())


class Last(nn.Module):
    """A recurrent network, of whose last state a class is made."""

    def __init__(self, net: nn.Module, width: int, batch_first: bool = True) -> None:
        super().__init__()
        self.net, self.head, self.batch_first = net, nn.Linear(width, 100), batch_first

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.net(x if self.batch_first else x.transpose(0, 1))
        logits: Tensor = self.head(states[:, -1] if self.batch_first else states[-1])
        return logits


def lstm() -> Made:
    """Three layers, in both directions, with dropout."""
    net = nn.LSTM(128, 384, 3, batch_first=True, bidirectional=True, dropout=0.2)
    return Last(net, 768), _sequences(96, 128), _classes


def gru() -> Made:
    """Two layers, time first."""
    return Last(nn.GRU(256, 768, 2), 768, batch_first=False), _sequences(128, 256), _classes


def rnn() -> Made:
    """A plain recurrent network with ReLU, in both directions."""
    net = nn.RNN(256, 768, 3, nonlinearity="relu", batch_first=True, bidirectional=True)
    return Last(net, 1536), _sequences(96, 256), _classes


class ConvNextBlock(nn.Module):
    """Depthwise 7×7, norm and MLP over the last dimension, layer scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(1e-6 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(functional.gelu(self.up(inner)))).permute(0, 3, 1, 2)


def _head(width: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 100)]


def convnext() -> Made:
    """Two stages of ``ConvNextBlock``, initialised by ``trunc_normal_``."""
    layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), *(ConvNextBlock(96) for _ in range(3))]
    layers += [nn.Conv2d(96, 192, 2, 2), *(ConvNextBlock(192) for _ in range(3))]
    model = nn.Sequential(*layers, *_head(192))
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
    return model, _pictures(128), _classes


class Bottleneck(nn.Module):
    """A ResNet bottleneck; with groups, a ResNeXt one."""

    def __init__(self, width: int, groups: int = 1, norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        inner = width // 2
        self.net = nn.Sequential(
            nn.Conv2d(width, inner, 1, bias=False), norm(inner), nn.ReLU(True),
            nn.Conv2d(inner, inner, 3, padding=1, groups=groups, bias=False), norm(inner), nn.ReLU(True),
            nn.Conv2d(inner, width, 1, bias=False), norm(width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.net(x), inplace=True)


def _resnet(groups: int = 1, norm: Callable[[int], nn.Module] = nn.BatchNorm2d, side: int = 96) -> Made:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), norm(64), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    for before, after in pairwise((64, 256, 512)):
        layers += [
            nn.Conv2d(before, after, 3, 1 + (before > 64), 1),
            *(Bottleneck(after, groups, norm) for _ in range(3)),
        ]
    return nn.Sequential(*layers, *_head(512)), _pictures(side), _classes


def resnet() -> Made:
    """Bottlenecks with batch normalisation."""
    return _resnet()


def resnet_group_norm() -> Made:
    """Bottlenecks with group normalisation."""
    return _resnet(norm=lambda width: nn.GroupNorm(16, width))


def _last_channels(parts: Made) -> Made:
    model: Any  # the types of ``Module.to`` have no memory format
    model, inputs, loss = parts

    def pictures(batch: int) -> Any:
        first, *others = inputs(batch)
        return first.to(memory_format=torch.channels_last), *others

    return model.to(memory_format=torch.channels_last), pictures, loss


def resnet_channels_last() -> Made:
    """``resnet`` with channels last."""
    return _last_channels(_resnet())


class UNet(nn.Module):
    """A U-Net of ``dims`` dimensions."""

    def __init__(self, width: int, levels: int, dims: int = 2) -> None:
        super().__init__()
        conv, grow, norm = (getattr(nn, f"{kind}{dims}d") for kind in ("Conv", "ConvTranspose", "BatchNorm"))
        self.pool = getattr(functional, f"max_pool{dims}d")

        def twice(before: int, after: int) -> nn.Module:
            first = [conv(before, after, 3, padding=1), norm(after), nn.ReLU(True)]
            return nn.Sequential(*first, conv(after, after, 3, padding=1), norm(after), nn.ReLU(True))

        pairs = list(pairwise(width << level for level in range(levels + 1)))
        self.first, self.head = twice(3, width), conv(width, 3, 1)
        self.down = nn.ModuleList(twice(*pair) for pair in pairs)
        self.grow = nn.ModuleList(grow(after, before, 2, 2) for before, after in reversed(pairs))
        self.up = nn.ModuleList(twice(after, before) for before, after in reversed(pairs))

    def forward(self, x: Tensor) -> Tensor:
        skipped = [self.first(x)]
        for down in self.down:
            skipped.append(down(self.pool(skipped[-1], 2)))
        x = skipped.pop()
        for grow, up in zip(self.grow, self.up, strict=True):
            x = up(torch.cat([skipped.pop(), grow(x)], 1))
        result: Tensor = self.head(x)
        return result


def _pair(*shape: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    return lambda batch: (torch.randn(batch, *shape), torch.randn(batch, *shape))


def unet() -> Made:
    """A U-Net for images."""
    return UNet(32, 3), _pair(3, 96, 96), _same


def unet_channels_last() -> Made:
    """``unet`` with channels last."""
    return _last_channels(unet())


def unet_3d() -> Made:
    """A U-Net for volumes."""
    return UNet(16, 2, dims=3), _pair(3, 24, 24, 24), _same


def conv_1d() -> Made:
    """Dilated convolutions over sound with weight normalisation, like WaveNet."""

    class Dilated(nn.Module):
        def __init__(self, dilation: int) -> None:
            super().__init__()
            wide = nn.Conv1d(128, 256, 3, padding=dilation, dilation=dilation)
            self.wide = nn.utils.parametrizations.weight_norm(wide)
            self.out = nn.Conv1d(128, 128, 1)

        def forward(self, x: Tensor) -> Tensor:
            filtered, gate = self.wide(x).chunk(2, 1)
            mixed: Tensor = self.out(torch.tanh(filtered) * torch.sigmoid(gate))
            return x + mixed

    layers = [nn.Conv1d(3, 128, 1), *(Dilated(2**power) for power in range(8)), nn.Conv1d(128, 3, 1)]
    return nn.Sequential(*layers), _pair(3, 2048), _same


def positional_conv() -> Made:
    """The grouped convolution with a kernel of 128 that wav2vec 2.0 uses for positions, and Transformer layers."""

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            conv = nn.Conv1d(512, 512, 128, padding=64, groups=16)
            self.conv = nn.utils.parametrizations.weight_norm(conv, dim=2)
            self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 1024, batch_first=True), 2)
            self.head = nn.Linear(512, 100)

        def forward(self, x: Tensor) -> Tensor:
            places = functional.gelu(self.conv(x.transpose(1, 2))[..., :-1]).transpose(1, 2)
            logits: Tensor = self.head(self.layers(x + places).mean(1))
            return logits

    return Positions(), _sequences(256, 512), _classes


def conv_3d() -> Made:
    """Convolutions over videos, factorised into space and time."""
    layers: list[nn.Module] = []
    for before, after in pairwise((3, 48, 96, 96)):
        layers += [nn.Conv3d(before, after, (1, 3, 3), padding=(0, 1, 1)), nn.BatchNorm3d(after), nn.ReLU(True)]
        layers += [nn.Conv3d(after, after, (3, 1, 1), padding=(1, 0, 0)), nn.BatchNorm3d(after), nn.ReLU(True)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(96, 100))
    return model, lambda batch: (torch.randn(batch, 3, 8, 32, 32), _ints(100, batch)), _classes


class Words(nn.Module):
    """Word embeddings, ``body`` over [n, t, width], and the embeddings' weight as the last layer."""

    def __init__(self, body: nn.Module, width: int, words: int, tied: bool = True) -> None:
        super().__init__()
        self.words, self.body, self.head = nn.Embedding(words, width), body, nn.Linear(width, words, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(self.words(ids)))
        return logits


def encoder() -> Made:
    """nn.TransformerEncoder, which copies its layer with deepcopy, and tied embeddings."""
    layer = nn.TransformerEncoderLayer(384, 6, 1536, batch_first=True, norm_first=True)
    return Words(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), 384, 4000), _texts(128, 4000), _next_word


class Masked(nn.Module):
    """nn.MultiheadAttention with a causal mask and a mask of padding, time first."""

    def __init__(self) -> None:
        super().__init__()
        self.attentions = nn.ModuleList(nn.MultiheadAttention(384, 6, dropout=0.1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        padding = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        causal = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device).isinf()
        x = x.transpose(0, 1)
        for attention in self.attentions:
            mixed, _ = attention(x, x, x, key_padding_mask=padding, attn_mask=causal, need_weights=False)
            x = x + mixed
        return x.transpose(0, 1)


def masked_attention() -> Made:
    """See ``Masked``."""
    return Words(Masked(), 384, 4000), _texts(192, 4000), _next_word


def transformer() -> Made:
    """nn.Transformer: an encoder and a decoder, time first."""

    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(4000, 256), nn.Linear(256, 4000)
            self.net = nn.Transformer(256, 8, 3, 3, 1024)

        def forward(self, source: Tensor, target: Tensor) -> Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=source.device)
            states = self.net(self.words(source).transpose(0, 1), self.words(target).transpose(0, 1), tgt_mask=mask)
            logits: Tensor = self.head(states.transpose(0, 1))
            return logits

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return functional.cross_entropy(model(*batch).flatten(0, 1).float(), batch[1].flatten())

    return Translator(), _texts(96, 4000), loss


def _mlp_block(width: int) -> nn.Module:
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class Checkpointed(nn.Module):
    """Blocks that are computed again in the backward pass, by torch's ``checkpoint``."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.blocks, self.reentrant = nn.ModuleList(_mlp_block(384) for _ in range(6)), reentrant

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=self.reentrant)
        return x


def checkpointed() -> Made:
    """``Checkpointed`` without reentrance."""
    return Words(Checkpointed(False), 384, 4000), _texts(128, 4000), _next_word


def routed_experts() -> Made:
    """A mixture of experts: each expert sees its tokens alone, whose number depends on values."""

    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.experts = nn.Linear(256, 6), nn.ModuleList(_mlp_block(256) for _ in range(6))

        def forward(self, x: Tensor) -> Tensor:
            flat = x.flatten(0, 1)
            best, which = self.gate(flat).softmax(-1).topk(2, -1)
            mixed = torch.zeros_like(flat)
            for number, expert in enumerate(self.experts):
                rows, places = torch.where(which == number)
                mixed = mixed.index_add(0, rows, (expert(flat[rows]) * best[rows, places, None]).to(mixed.dtype))
            return x + mixed.view_as(x)

    return Words(nn.Sequential(Mixture(), Mixture()), 256, 4000), _texts(128, 4000), _next_word


def scan() -> Made:
    """A state-space layer whose scan is a Python loop over time, like Mamba's slow path."""

    class Scan(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.out = nn.Linear(192, 384), nn.Linear(192, 192)
            self.step, self.both = nn.Linear(192, 192), nn.Linear(192, 32)
            self.rate = nn.Parameter(torch.rand(192, 16))

        def forward(self, x: Tensor) -> Tensor:
            inner, gate = self.into(x).chunk(2, -1)
            step, (before, after) = functional.softplus(self.step(inner)), self.both(inner).chunk(2, -1)
            decay = torch.exp(-step[..., None] * self.rate.exp())
            added = (step * inner)[..., None] * before[..., None, :]
            state, outputs = torch.zeros_like(added[:, 0]), []
            for moment in range(x.shape[1]):
                state = decay[:, moment] * state + added[:, moment]
                outputs.append((state * after[:, moment, None, :]).sum(-1))
            mixed: Tensor = self.out(torch.stack(outputs, 1) * functional.silu(gate))
            return x + mixed

    return Words(nn.Sequential(Scan(), Scan()), 192, 4000), _texts(48, 4000), _next_word


def bag_sparse() -> Made:
    """Embedding bags with sparse gradients."""
    model = nn.Sequential(nn.EmbeddingBag(120_000, 64, mode="mean", sparse=True))
    return model, lambda batch: (_ints(120_000, 256 * batch, 32), torch.randn(256 * batch, 64)), _same


def embedding_sparse() -> Made:
    """Embeddings with sparse gradients."""
    model = nn.Sequential(nn.Embedding(120_000, 64, sparse=True))
    return model, lambda batch: (_ints(120_000, batch, 512), torch.randn(batch, 512, 64)), _same


def random_masks() -> Made:
    """Spans masked by numpy, and layers dropped by ``random``, in the forward pass."""

    class Masks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mask, self.blocks = nn.Parameter(torch.zeros(384)), nn.ModuleList(_mlp_block(384) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.from_numpy(numpy.random.default_rng(0).random(x.shape[:2]) < 0.3)
            x = torch.where(hidden[..., None], self.mask, x)
            for block in self.blocks:
                x = x + block(x) * (1 + random.random())
            return x

    return Words(Masks(), 384, 4000), _texts(128, 4000), _next_word


def mlp() -> Made:
    """Linear layers, with most memory in weights: shows optimizers."""
    layers = [nn.Linear(512, 2560), nn.ReLU(), nn.Linear(2560, 2560), nn.ReLU(), nn.Linear(2560, 100)]
    return nn.Sequential(*layers), lambda batch: (torch.randn(64 * batch, 512), _ints(100, 64 * batch)), _classes


def mlp_matrices() -> Made:
    """Linear layers without biases, because Muon takes matrices alone."""
    layers = [nn.Linear(512, 1536, bias=False), nn.ReLU(), nn.Linear(1536, 1536, bias=False), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(1536, 100, bias=False))
    return model, lambda batch: (torch.randn(64 * batch, 512), _ints(100, 64 * batch)), _classes


MODELS: Mapping[str, Callable[[], Made]] = {
    maker.__name__: maker
    for maker in (
        lstm, gru, rnn, convnext, resnet, resnet_group_norm, resnet_channels_last, unet, unet_channels_last,
        unet_3d, conv_1d, positional_conv, conv_3d, encoder, masked_attention, transformer, checkpointed,
        routed_experts, scan, bag_sparse, embedding_sparse, random_masks, mlp, mlp_matrices,
    )
}  # fmt: skip
OPTIMIZERS = ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
              "Adafactor", "Muon", "SparseAdam")  # fmt: skip


def make(
    model: str, arithmetic: str = "fp32", optimizer: str = "AdamW", clip: str = "", ema: bool = False, batch: int = 2
) -> tuple[Any, ...]:
    """One of ``MODELS`` with inputs, loss and optimizer.

    ``arithmetic`` is fp32, bf16 (parameters, too) or amp (autocast to bf16). ``clip`` limits gradients before each
    update: by their ``norm`` or their ``value``. With ``ema``, an average of the weights is updated after each update.
    """
    built, inputs, own_loss = MODELS[model]()
    if arithmetic == "bf16":
        built = built.bfloat16()

    def cast(size: int) -> Any:
        parts = inputs(size)
        return tuple(p.bfloat16() if arithmetic == "bf16" and p.is_floating_point() else p for p in parts)

    def loss(module: nn.Module, sample: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=arithmetic == "amp"):
            return own_loss(module, sample)

    average = AveragedModel(built, multi_avg_fn=get_ema_multi_avg_fn(0.999)) if ema else None

    def optimized(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        kept = list(parameters)
        torch_optimizer: torch.optim.Optimizer = getattr(torch.optim, optimizer)(kept, lr=1e-3)
        if clip:
            limits: dict[str, Callable[..., Any]] = {
                "norm": nn.utils.clip_grad_norm_,
                "value": nn.utils.clip_grad_value_,
            }
            limit = limits[clip]

            def clipped(*_: Any) -> None:
                limit(kept, 1.0)

            torch_optimizer.register_step_pre_hook(clipped)
        if average is not None:
            torch_optimizer.register_step_post_hook(lambda *_: average.update_parameters(built))
        return torch_optimizer

    return built, cast, loss, optimized


class Averaged(FunctionWorkload):
    """A model with an average of its weights that is updated before each step, as a training loop would do."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__(make, params)
        self._average: AveragedModel | None = None

    def build_model(self) -> nn.Module:
        """The model; its average is made beside it."""
        self._model = super().build_model()
        self._average = AveragedModel(self._model, use_buffers=True)
        return self._model

    def on_step(self, step: int, steps: int, optimizer: torch.optim.Optimizer) -> None:
        """Update the average."""
        assert self._average is not None
        self._average.update_parameters(self._model)
