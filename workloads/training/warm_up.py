"""Prepares a process for training, so that memory which torch allocates once and keeps is part of the baseline."""

from __future__ import annotations

import gc
from functools import cache

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from estimators.model import Layout
from workloads.models.transformer import Block
from workloads.parallel.apply import apply_plan
from workloads.training.memory.peak import measure_peak
from workloads.training.memory.process_memory import configure_malloc


def prepare_process() -> None:
    """Set the number of threads of a new rank's process, and warm it up for its first job."""
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # several ranks share the cores
    warm_up(torch.device("cuda" if torch.cuda.is_available() else "cpu"), None)


def warm_up(device: torch.device, mesh: DeviceMesh | None) -> None:
    """Make torch allocate what it keeps permanently (threads, lazy imports, caches) before a baseline is taken.

    It does so once for a process and for each gang. Call it after the process group is made, if there is one, so that
    the group's threads and buffers exist.
    """
    if device.type == "cpu":
        configure_malloc()
    _warm_process(device)
    if mesh is not None:
        _warm_step(device, mesh)
    _exempt_from_collection()


@cache
def _warm_process(device: torch.device) -> None:
    _warm_step(device, None)


def _warm_step(device: torch.device, mesh: DeviceMesh | None) -> None:
    model: nn.Module = Block(64, 2, 4.0, 0.1, 1.0, causal=True).to(device)
    if mesh is not None:
        mesh = DeviceMesh(device.type, list(range(mesh.size())), mesh_dim_names=("dp",))
    model = apply_plan(model, [], Layout(dp_shard=mesh.size() if mesh else 1), mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    sample = torch.randn(4, 16, 64, device=device)

    def step() -> None:
        model(sample).flatten(0, 1).logsumexp(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()
    measure_peak(device, model, optimizer, step)


@cache
def _exempt_from_collection() -> None:
    """Exempt all present objects, mostly torch's modules, from garbage collection: it then takes 10 ms, not 200."""
    gc.collect()
    gc.freeze()
