"""Reads the GPU of a bundle on its node, and decides how many MiB it offers to studies, or says why it offers none."""

from __future__ import annotations

import os

from scamp_service.cluster.devices.gpus import Gpu, inventory, visible
from scamp_service.errors import InvalidInput

GPU_CONTEXT_MIB = 512
"""MiB per rank and GPU for the CUDA context (about 300) and cuBLAS workspaces, which memory budgets do not count."""
OTHERS_STEP_MIB = 512
"""Memory of other processes counts in such steps, so that what a GPU offers does not change with every look at it."""


def usable_mib(free_mib: int, max_gangs: int) -> int:
    """MiB of a GPU that a node offers when up to ``max_gangs`` gangs share it; zero or negative if it offers none."""
    return free_mib - GPU_CONTEXT_MIB * max_gangs


def offered_mib(gpu: Gpu, max_gangs: int) -> int:
    """MiB that this GPU offers to gangs together; zero or negative if it offers none."""
    to_whole_step = -gpu.other_processes_mib % OTHERS_STEP_MIB
    return usable_mib(gpu.free_mib - to_whole_step, max_gangs)


def kind_of(gpu: Gpu) -> str:
    """Kind of its device: the catalogue's name, or else that of the product."""
    return gpu.kind or gpu.name


def measure_gpu(rehearsal: str) -> Gpu | str:
    """The GPU that Ray has given to this process, or why there is none.

    ``rehearsal`` is the file of GPUs to rehearse with; empty: the GPUs are real.
    """
    try:
        gpus = visible(inventory(rehearsal), os.environ.get("CUDA_VISIBLE_DEVICES"))
    except InvalidInput as error:
        return str(error)
    nothing = "NVML shows none of its Ray's GPUs: check nvidia-smi there, or start that Ray with --num-gpus=0"
    return gpus[0] if gpus else nothing


def why_nothing(gpu: Gpu, max_gangs: int) -> str:
    """Why this GPU offers nothing, and what to do about it; empty when it offers some MiB."""
    without = "or start that node's Ray without this GPU (CUDA_VISIBLE_DEVICES)"
    if offered_mib(gpu, max_gangs) > 0:
        return ""
    if gpu.mig:
        why = (
            "is in MIG mode: name its instances when you start that node's Ray (CUDA_VISIBLE_DEVICES=MIG-…, from "
            f"nvidia-smi -L), or turn MIG off (nvidia-smi -i {gpu.index} -mig 0)"
        )
    elif gpu.worn_out:
        why = f"has memory errors that it cannot repair (nvidia-smi -q -d ROW_REMAPPER): replace it, {without}"
    elif not gpu.total_mib:
        why = f"does not say how much memory it has, as if it was lost: check nvidia-smi and dmesg, {without}"
    elif gpu.total_mib - (gpu.reserved_mib or 0) <= GPU_CONTEXT_MIB * max_gangs:
        why = (
            f"has {gpu.total_mib} MiB, which CUDA contexts of {max_gangs} gangs use up: set "
            "SCAMP_MAX_GANGS_PER_DEVICE to a smaller number"
        )
    else:
        why = (
            f"has {gpu.total_mib} MiB, of which other processes hold {gpu.other_processes_mib} MiB, and the CUDA "
            f"contexts of {max_gangs} gangs (SCAMP_MAX_GANGS_PER_DEVICE) need {GPU_CONTEXT_MIB * max_gangs} MiB: end "
            f"those processes, {without}"
        )
    return f"GPU {gpu.index} ({gpu.name}) {why}"
