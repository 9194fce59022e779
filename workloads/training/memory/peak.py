"""Measures the peak memory of one training step: the most bytes of tensors alive at once."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.autograd.profiler import profile
from torch.distributed.tensor import DTensor

from workloads.training.updates.update import kept_of


def measure_peak(
    device: torch.device, model: nn.Module, optimizer: torch.optim.Optimizer, step: Callable[[], object]
) -> int:
    """Run ``step`` and return its peak: the most bytes of tensors alive at once, optimizer states included."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    live = state_bytes(model, optimizer)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise the profiler writes two lines to stderr at each use
    with profile(profile_memory=True) as profiler:
        step()
    # Raw events, because the profiler's Python tree of events would take half a second and tens of MiB.
    events = profiler.kineto_results.events()
    changes = sorted((e.start_ns(), i, e.nbytes()) for i, e in enumerate(events) if e.name() == "[memory]")
    change = highest = 0
    for _, _, num_bytes in changes:
        change += num_bytes
        highest = max(highest, change)
    return live + highest


def state_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Bytes of this rank's parameters, what is kept for each, buffers, gradients and optimizer states.

    A shared storage counts once.
    """
    tensors: list[Tensor] = [*model.parameters(), *model.buffers()]
    tensors += [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    tensors += [tensor for of_parameter in kept_of(model).values() for tensor in of_parameter]
    tensors += [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    storages = {storage.data_ptr(): storage.nbytes() for storage in (tensor.untyped_storage() for tensor in local)}
    return sum(storages.values())
