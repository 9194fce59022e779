"""Makes a process ready to train: what torch allocates once and keeps is there before a memory baseline is taken."""

from __future__ import annotations

import gc
from functools import cache

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from estimators.model import Layout
from workloads.models.transformer import Block
from workloads.parallel.apply import apply_plan
from workloads.training.peak import measure_peak
from workloads.training.process_memory import configure_malloc


def prepare_process() -> None:
    """Choose the threads of a new rank, and warm it up for its first job."""
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # several ranks share the cores
    warm_up(torch.device("cuda" if torch.cuda.is_available() else "cpu"), None)


def warm_up(device: torch.device, mesh: DeviceMesh | None) -> None:
    """Make torch allocate what it keeps for good, before a baseline is taken: threads, lazy imports, caches.

    Cheap when repeated. With a process group it must come after it, whose threads and buffers then exist.
    """
    if device.type == "cpu":
        configure_malloc()
    _warm_step(device, mesh)
    _exempt_from_collection()


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
    """What torch has imported stays: a full collection without it takes 10 ms in place of 200."""
    gc.collect()
    gc.freeze()
