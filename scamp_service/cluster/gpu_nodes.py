"""What a node with GPUs offers to studies: measured there, in a Ray task; or why it offers nothing, in words."""

from __future__ import annotations

import os

from scamp_service.cluster.gpus import Gpu, inventory, visible

GPU_CONTEXT_MIB = 512
"""Per rank and GPU: CUDA context (about 300 MiB) and cuBLAS workspaces, which no budget of ours counts."""


def usable_mib(free_mib: int, max_gangs: int) -> int:
    """MiB of a GPU that a node offers, where up to ``max_gangs`` gangs share it; not positive if it offers none."""
    return free_mib - GPU_CONTEXT_MIB * max_gangs


def measure_gpus(num_gpus: int) -> tuple[str, Gpu | None]:
    """The kinds of the GPUs that this node's Ray has, and the one of them that has least to offer: Ray does not let one
    choose which GPU a bundle gets."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES") or None  # Ray may empty it for a task that asks for no GPU
    found = visible(inventory(), chosen)[:num_gpus]  # Ray counts them from the first
    least = min(found, key=lambda gpu: gpu.free_mib, default=None)
    return " / ".join(sorted({gpu.name for gpu in found})), least


def why_nothing(node: str, least: Gpu | None, max_gangs: int) -> str:
    """Why a node offers no device, and what to do; empty when it offers some. ``least`` as in ``measure_gpus``."""
    if least is not None and usable_mib(least.free_mib, max_gangs) > 0:
        return ""
    without = "or start that node's Ray without it (CUDA_VISIBLE_DEVICES)"
    if least is None:
        why = "NVML shows none of its Ray's GPUs: install NVIDIA's driver there, or start that Ray with --num-gpus=0"
    elif least.mig:
        why = f"GPU {least.index} ({least.name}) is in MIG mode: end it (nvidia-smi -i {least.index} -mig 0), {without}"
    elif not least.total_mib:
        why = f"NVML does not tell how much memory GPU {least.index} ({least.name}) has: look at nvidia-smi, {without}"
    else:
        why = (
            f"processes that are not ScaMP's hold {least.strangers_mib} of {least.total_mib} MiB on GPU {least.index} "
            f"({least.name}), and CUDA contexts of {max_gangs} gangs (SCAMP_MAX_GANGS_PER_DEVICE) take "
            f"{GPU_CONTEXT_MIB * max_gangs} MiB: end those processes, {without}"
        )
    return f"node {node} offers no devices: {why}"
