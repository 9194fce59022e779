"""The devices that a trace can stand for, and the one place that chooses among them.

``CPU`` knows what the kernels of torch and oneDNN need, ``UNKNOWN_CPU`` knows nothing and has a margin instead, and
``CUDA`` takes the code paths of a GPU.
"""

from __future__ import annotations

from estimators.tracing.device.cpu import CPU, can_ask_onednn
from estimators.tracing.device.cuda import CUDA
from estimators.tracing.device.device import Device, Workspace
from estimators.tracing.device.objects import Objects, module_bytes
from estimators.tracing.device.unknown_cpu import UNKNOWN_CPU

__all__ = ["CPU", "CUDA", "UNKNOWN_CPU", "Device", "Objects", "Workspace", "device_for", "module_bytes"]


def device_for(*, on_cuda: bool) -> Device:
    """A GPU, or the CPU of this process: an unknown one where oneDNN cannot be asked (docs/decisions/0026)."""
    if on_cuda:
        return CUDA
    return CPU if can_ask_onednn() else UNKNOWN_CPU
