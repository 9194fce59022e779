"""``vit_digits`` with an injected fault, memory that no trace can show, to demonstrate how ScaMP heals a trial."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from workloads.models.parameters import number_in
from workloads.models.vit_digits import VitDigits


class VitDigitsWithFault(VitDigits):
    """``VitDigits`` with two more parameters, ``spike_mib`` 0 and ``spike_step`` -1.

    In optimizer step ``spike_step`` the first forward pass allocates ``spike_mib`` MiB and holds them until the next
    step, as a workload with data-dependent memory would. Plans of more micro-batches need no more of it.
    """

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__(params)
        self.spike_bytes = number_in(params, "spike_mib", 0) * 2**20
        self.spike_step = number_in(params, "spike_step", -1)
        self._step = -1
        self._spikes: list[Tensor] = []

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        if self.spike_bytes and self._step == self.spike_step and not self._spikes:
            images, _ = batch
            self._spikes.append(torch.ones(self.spike_bytes, dtype=torch.uint8, device=images.device))
        return super().loss(model, batch)

    def on_step(self, step: int, steps: int, optimizer: torch.optim.Optimizer) -> None:
        super().on_step(step, steps, optimizer)
        self._step = step
        self._spikes.clear()
