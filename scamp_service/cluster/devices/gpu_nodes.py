"""Decides how many MiB a node with GPUs offers to studies, or says why it offers none. Ray measures on the node."""

from __future__ import annotations

import os

from scamp_service.cluster.devices.gpus import Gpu, inventory, visible

GPU_CONTEXT_MIB = 512
"""MiB per rank and GPU for the CUDA context (about 300) and cuBLAS workspaces, which memory budgets do not count."""


def usable_mib(free_mib: int, max_gangs: int) -> int:
    """MiB of a GPU that a node offers when up to ``max_gangs`` gangs share it; zero or negative if it offers none."""
    return free_mib - GPU_CONTEXT_MIB * max_gangs


def measure_gpus(num_gpus: int) -> tuple[str, Gpu | None]:
    """(device kind, GPU with the least free memory) of the GPUs that this node's Ray has; None when NVML shows none.

    The smallest value counts, because Ray does not let us choose which GPU a bundle gets. Names of different kinds are
    joined.
    """
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES") or None  # Ray may empty it for a task that asks for no GPU
    gpus = visible(inventory(), chosen)[:num_gpus]  # Ray counts them from the first
    least = min(gpus, key=lambda gpu: gpu.free_mib, default=None)
    return " / ".join(sorted({gpu.name for gpu in gpus})), least


def why_nothing(node: str, least: Gpu | None, max_gangs: int) -> str:
    """Why a node offers no devices, and what to do about it; empty when it offers some.

    ``least`` is the GPU that ``measure_gpus`` returns.
    """
    if least is not None and usable_mib(least.free_mib, max_gangs) > 0:
        return ""
    without = "or start that node's Ray without this GPU (CUDA_VISIBLE_DEVICES)"
    if least is None:
        why = "NVML shows none of its Ray's GPUs: install NVIDIA's driver there, or start that Ray with --num-gpus=0"
    elif least.mig:
        why = (
            f"GPU {least.index} ({least.name}) is in MIG mode: "
            f"turn MIG off (nvidia-smi -i {least.index} -mig 0), {without}"
        )
    elif not least.total_mib:
        why = f"NVML does not say how much memory GPU {least.index} ({least.name}) has: check nvidia-smi, {without}"
    else:
        why = (
            f"processes that are not ScaMP's hold {least.other_processes_mib} of {least.total_mib} MiB on GPU "
            f"{least.index} ({least.name}), and CUDA contexts of {max_gangs} gangs (SCAMP_MAX_GANGS_PER_DEVICE) take "
            f"{GPU_CONTEXT_MIB * max_gangs} MiB: end those processes, {without}"
        )
    return f"node {node} offers no devices: {why}"
