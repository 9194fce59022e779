"""An average of a model's weights over its steps, which evaluations use in their place (EMA, SWA).

Each rank averages what it holds: shards, its stage, or whole replicas. Buffers are averaged where a candidate asks for
it. An average begins with the weight before its first update, so a frozen parameter has none until it trains.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from workloads.parallel.forward_state.snapshot import has_fractions, local_part

WARMUPS: Mapping[str, Callable[[int], float]] = {
    "none": lambda num_before: 1.0,
    "copy": lambda num_before: float(num_before > 0),
    "ratio": lambda num_before: (1 + num_before) / (10 + num_before) if num_before else 0.0,
    "power": lambda num_before: 1 - (1 + num_before) ** (-2 / 3),
}
"""The most that an average may keep of itself in an update before which there were ``num_before``, by the warm-up.

``copy`` is that of torch's ``AveragedModel``, which begins with the weights after the first update. ``ratio`` is that
of diffusers' ``EMAModel`` (``get_decay``), and of TensorFlow's ``ExponentialMovingAverage``. ``power`` is that of
``EMAModel`` with ``use_ema_warmup``, and of timm's ``ModelEmaV3`` with ``use_warmup``, both with their default power of
2/3. All but ``none`` keep nothing in the first update.
"""


@dataclass(slots=True, eq=False)
class Averages:
    """Averages of parameters, as tensors like them, and of buffers by name if ``with_buffers``.

    With ``decay`` an average keeps this share of itself in each step, or less while it warms up. Without it, it is the
    mean of the weights after each step from ``start`` on, and before the weights themselves.
    """

    decay: float | None
    start: int = 0
    warmup: str = "none"
    with_buffers: bool = False
    of: dict[Tensor, Tensor] = field(default_factory=dict)
    of_buffers: dict[str, Tensor] = field(default_factory=dict)

    @torch.no_grad()
    def begin(self, parameters: Iterable[Tensor]) -> None:
        """Call it before an update: parameters that train and have no average yet get one, their present value."""
        for parameter in parameters:
            if parameter.requires_grad and has_fractions(parameter) and parameter not in self.of:
                self.of[parameter] = parameter.detach().clone()

    @torch.no_grad()
    def begin_buffers(self, model: nn.Module, names: Collection[str] | None = None) -> None:
        """Have the buffers with these ``names`` begin an average with their present values; None: those without one."""
        if names is not None:
            self.of_buffers.clear()
        for name, buffer in self._buffers(model):
            average = self.of_buffers.get(name)
            is_new = average is None or (average.shape, average.dtype) != (buffer.shape, buffer.dtype)
            if is_new and (names is None or name in names):
                self.of_buffers[name] = buffer.detach().clone()

    @torch.no_grad()
    def update(self, parameters: Iterable[Tensor], num_before: int, num_until_start: int) -> None:
        """Call it after an update of parameters, before which there were ``num_before``.

        There are ``num_until_start`` of them before ``start``.
        """
        averaged = [parameter for parameter in parameters if parameter in self.of]
        share = self._share(num_before, num_until_start)
        _blend([self.of[parameter] for parameter in averaged], averaged, share)

    @torch.no_grad()
    def update_buffers(self, model: nn.Module, step: int) -> None:
        """Call it after the last update of ``step``, counted from 0."""
        self.begin_buffers(model)
        pairs = [(self.of_buffers[name], buffer) for name, buffer in self._buffers(model)]
        _blend([average for average, _ in pairs], [buffer for _, buffer in pairs], self._share(step, self.start))

    @contextmanager
    def used(self, model: nn.Module) -> Iterator[None]:
        """Exchange the weights for their averages while the context lasts; it takes as much as the largest of them."""
        self._exchange(model)
        try:
            yield
        finally:
            self._exchange(model)

    def pairs(self, model: nn.Module) -> dict[Tensor, Tensor]:
        """Each parameter and buffer of ``model`` that has an average → its average."""
        of_buffers = {buffer: self.of_buffers[name] for name, buffer in self._buffers(model) if name in self.of_buffers}
        return {**self.of, **of_buffers}

    def _buffers(self, model: nn.Module) -> list[tuple[str, Tensor]]:
        """The buffers that are averaged; counters are not."""
        buffers = model.named_buffers() if self.with_buffers else ()
        return [(name, buffer) for name, buffer in buffers if has_fractions(buffer)]

    def _share(self, num_before: int, num_until_start: int) -> float:
        """The share of the present weights in an average that is updated."""
        if self.decay is None:
            return 1 / max(1, num_before + 1 - num_until_start)
        return 1 - min(self.decay, WARMUPS[self.warmup](num_before))

    @torch.no_grad()
    def _exchange(self, model: nn.Module) -> None:
        for present, average in self.pairs(model).items():
            weight, mean = local_part(present.detach()), local_part(average)
            own_weight = weight.clone()
            weight.copy_(mean)
            mean.copy_(own_weight)


def _blend(averages: Sequence[Tensor], present: Sequence[Tensor], share: float) -> None:
    """Move each average by this share of the way to the present value."""
    if averages:
        local = [local_part(tensor.detach()) for tensor in present]
        torch._foreach_lerp_([local_part(average) for average in averages], local, share)
