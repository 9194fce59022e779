"""AdaScale: the learning rate of a batch that is larger than the one it was chosen for.

A step with S times the batch is worth r steps with the batch itself, where r, the *gain*, is between 1 and S: near 1
where gradients of single samples agree, near S where they are mostly noise. AdaScale multiplies the learning rate by r,
counts r steps, and so ends after as many steps as with the batch that the rate was chosen for:

    r = (σ² + μ²) / (σ² / S + μ²)

σ² is the variance of the gradient with the base batch, summed over all parameters, and μ² the square of its mean.

Source: T. Johnson et al., "AdaScale SGD: A User-Friendly Algorithm for Distributed Training", ICML 2020; formula,
smoothing and debiasing are those of ``fairscale.optim.AdaScale``. That class itself is not used: it estimates σ² from
hooks that see the gradients of whole replicas, so it knows neither shards nor stages, and its rates would depend on how
ranks and micro-batches divide a batch. Here both come from the gradients of consecutive steps, which are the same under
every plan: |g - h|² / 2 estimates the variance with the present batch, and g·h the square of the mean. AdaptDL does so
on one replica (A. Qiao et al., "Pollux", OSDI 2021).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import Optimizer

from workloads.gain import noise_scale_of
from workloads.parallel.forward_state.snapshot import has_fractions, local_part, real_numbers
from workloads.refusals import WorkloadError
from workloads.training.updates.norms import global_sums


@dataclass(slots=True, eq=False)
class AdaScale:
    """The gain of the present step, ``scale`` being S, and what it is estimated from.

    ``previous`` has the gradient of each parameter in the step before. ``variance`` (σ² / S) and ``square`` (μ²) are
    exponential averages that begin with 0, and ``weight`` is that of their terms so far. ``progress`` counts steps of
    the base batch, ``num_steps`` those that were made, and ``num_samples`` their samples. ``mean_loss`` is
    that of the last report.
    """

    base_batch: int
    scale: float = 1.0
    previous: dict[Tensor, Tensor] = field(default_factory=dict)
    previous_norm: float = 0.0  # its square; 0 before the first step
    variance: float = 0.0
    square: float = 0.0
    weight: float = 0.0
    gain: float = 1.0
    progress: float = 0.0
    num_steps: int = 0
    num_samples: int = 0
    mean_loss: float = 0.0
    _rates: list[Any] = field(default_factory=list)

    @torch.no_grad()
    def begin(self, parameters: Iterable[Tensor]) -> None:
        """Make memory for the gradients of parameters that train and have none yet."""
        for parameter in parameters:
            if parameter.requires_grad and has_fractions(parameter) and parameter not in self.previous:
                self.previous[parameter] = torch.zeros_like(parameter)

    @torch.no_grad()
    def measure(self, parameters: Sequence[Tensor], stages: dist.ProcessGroup | None) -> None:
        """Call it before each update, when gradients are reduced and before they are clipped: estimates ``gain``."""
        if any(parameter.grad is not None and parameter.grad.is_sparse for parameter in parameters):
            raise WorkloadError("AdaScale compares gradients of two steps, and needs dense ones: use sparse=False")
        self.begin(parameters)
        sums = global_sums(parameters, stages, self._products, 2)
        for parameter in parameters:
            if (previous := self.previous.get(parameter)) is not None:
                local = local_part(previous)
                gradient = parameter.grad
                local.zero_() if gradient is None else local.copy_(local_part(gradient))
        if not isinstance(sums, FakeTensor):
            norm, product = sums.tolist()
            self._learn(norm, product)

    def _products(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """(|g|², g·h) of this rank's parts of parameters and their gradients."""
        sums = [
            torch.stack([_dot(gradient, gradient), _dot(gradient, real_numbers(local_part(self.previous[owner])))])
            for owner, gradient in pairs
        ]
        return torch.stack(sums).sum(0)

    def _learn(self, norm: float, product: float) -> None:
        """Learn from |g|² and g·h."""
        if norm > 0 and self.previous_norm > 0:
            remains = max(1 - self.scale / 1000, 0.0)
            self.variance = remains * self.variance + (1 - remains) * max(
                0.0, (norm + self.previous_norm) / 2 - product
            )
            self.square = remains * self.square + (1 - remains) * product
            self.weight = remains * self.weight + (1 - remains)
        self.previous_norm = norm
        self.gain = gain_of(self.scale, self.variance, self.square) if norm > 0 else 1.0

    def raise_rates(self, optimizer: Optimizer) -> None:
        """Multiply the learning rates of ``optimizer`` by the gain until ``restore_rates``."""
        self._rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * self.gain

    def restore_rates(self, optimizer: Optimizer) -> None:
        """Give back what schedulers have set."""
        for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate

    @property
    def noise_scale(self) -> float | None:
        """The noise scale in samples (``workloads.gain``); None in the first ``LEAST_COMPARED`` steps of a trial."""
        if self.num_steps <= LEAST_COMPARED:
            return None
        return noise_scale_of(self.variance, self.square, round(self.scale * self.base_batch))

    def end_step(self, batch: int, mean_loss: float) -> None:
        """Count a step with ``batch`` samples."""
        self.mean_loss = mean_loss
        self.progress += self.gain
        self.num_steps += 1
        self.num_samples += batch

    def state(self) -> dict[str, float]:
        """All of it that is not a tensor, as JSON holds it."""
        state = {name: getattr(self, name) for name in _STORED}
        return {**state, "variance": self.variance * self.scale}  # that of the base batch

    def load(self, state: dict[str, Any]) -> None:
        """Continue from what ``state`` returned, maybe with another batch."""
        for name in _STORED:
            setattr(self, name, state[name])
        self.variance /= self.scale


LEAST_COMPARED = 20
"""Steps of whose gradients a mean is taken before anything is decided by the noise scale."""

_STORED = ("previous_norm", "variance", "square", "weight", "progress", "num_steps", "num_samples", "mean_loss")


def gain_of(scale: float, variance: float, square: float) -> float:
    """The gain of a batch ``scale`` times as large, from the variance and squared mean of its gradient.

    Both may have a common factor. The squared mean is estimated, and may be negative where it is near 0.
    """
    variance, square = max(variance, 0.0), max(square, 0.0)
    total = variance + square
    return (scale * variance + square) / total if total > 0 else 1.0


def _dot(first: Tensor, other: Tensor) -> Tensor:
    return torch.dot(first.reshape(-1).float(), other.reshape(-1).float())
