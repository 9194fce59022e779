"""What NVML tells of this machine's GPUs: which there are, what strangers hold of their memory, how they are linked.

A GPU, a container or an old driver may refuse any query; what it would have told is then unknown, and nothing fails.
How many MiB a node offers, and to whom, is decided elsewhere.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from estimators.model import MIB

RANK_TITLE = re.compile(rb"ray::Rank\b")
"""What Ray makes of a rank's command line: ``ray::Rank``, or ``ray::Rank.run`` in a method."""

PRODUCTS = {
    "P100": r"P100-(SXM2|PCIE)-16GB",
    "V100-16": r"V100-(SXM2|PCIE|DGXS)-16GB",
    "V100-32": r"V100-(SXM2|SXM3|PCIE|DGXS)-32GB",
    "T4": r"T4",
    "L4": r"L4",
    "A100-40": r"A100-(SXM4|PCIE)-40GB",
    "A100-80": r"A100-SXM4?-80GB|A100 80GB PCIE",
    "H100": r"H100 80GB HBM3",
    "H200": r"H200",
    "RTX4090": r"RTX 4090",
}
"""Names of products in NVML, by the kind of ``estimators.devices.catalogue`` that has their chip and as much memory."""


@dataclass(frozen=True, slots=True)
class GpuLinks:
    """``num_nvlinks`` are up: some lead to ``peers``, (index of the other GPU, number of links), ``num_switched`` to
    NVSwitches, the others to what NVML does not tell. Of PCIe the best that GPU and slot can do together, as an idle
    GPU slows down; None: unknown."""

    num_nvlinks: int = 0
    peers: tuple[tuple[int, int], ...] = ()
    num_switched: int = 0
    pcie_generation: int | None = None
    pcie_width: int | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """``total_mib`` is what ``nvidia-smi`` calls so, 0 when unknown. The driver keeps ``reserved_mib`` of it; a driver
    that does not tell (None) has them in ``strangers_mib``.

    Strangers are all who hold memory and are not known to be ranks of ScaMP. So a process counts as one also when it
    cannot be looked up (containers have numbers of their own for processes), or when NVML does not tell what it holds:
    to offer less is the safe side. Ranks of another ScaMP on this machine cannot be told from ours.
    """

    index: int
    uuid: str
    name: str
    total_mib: int
    reserved_mib: int | None
    strangers_mib: int
    mig: bool
    links: GpuLinks

    @property
    def free_mib(self) -> int:
        """What is left to ScaMP, with what its ranks hold now. Nothing in MIG mode: CUDA then shows one instance of the
        GPU, whose size is not asked for here."""
        return 0 if self.mig else max(0, self.total_mib - (self.reserved_mib or 0) - self.strangers_mib)

    @property
    def kind(self) -> str | None:
        """By which ``scamp estimate --device`` knows it."""
        return None if self.mig else known_kind(self.name)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"free_mib": self.free_mib, "kind": self.kind}


def inventory() -> tuple[Gpu, ...]:
    """All GPUs that NVML knows, by index; none where there is no NVIDIA driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        handles = [
            _told(pynvml, pynvml.nvmlDeviceGetHandleByIndex, index)
            for index in range(_told(pynvml, pynvml.nvmlDeviceGetCount) or 0)
        ]
        devices = [_Device(pynvml, handle) for handle in handles]
        buses = [device.told(pynvml.nvmlDeviceGetPciInfo) for device in devices]
        places = {bus.busId.lower(): index for index, bus in enumerate(buses) if bus is not None}
        return tuple(_gpu(index, device, places) for index, device in enumerate(devices))
    finally:
        _told(pynvml, pynvml.nvmlShutdown)


def visible(gpus: tuple[Gpu, ...], chosen: str | None) -> tuple[Gpu, ...]:
    """Those of ``gpus`` that ``CUDA_VISIBLE_DEVICES`` chooses by index or UUID, in its order; None chooses all.

    As in CUDA, what follows a name that nothing has is not seen.
    """
    if chosen is None:
        return gpus
    found: list[Gpu] = []
    for name in map(str.strip, chosen.split(",")):
        gpu = next((gpu for gpu in gpus if name == str(gpu.index) or _begins(gpu.uuid, name)), None)
        if gpu is None:
            break
        found.append(gpu)
    return tuple(found)


def known_kind(name: str) -> str | None:
    """The kind for ``scamp estimate --device``; None for a product whose memory or speed is not that of any kind.

    Cards in PCIe slots are named by the kind of their chip where speed and memory agree within a sixth, so its NVLinks
    may be missing.
    """
    product = re.sub(r"^(NVIDIA |TESLA |GEFORCE )+", "", name.strip().upper())
    return next((kind for kind, pattern in PRODUCTS.items() if re.fullmatch(pattern, product)), None)


def is_rank(pid: int) -> bool:
    """Whether the process is known to be a rank of ScaMP; as ``_kill_process`` of the executor, by its title."""
    try:
        return RANK_TITLE.search(Path(f"/proc/{pid}/cmdline").read_bytes()) is not None
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class _Device:
    nvml: Any
    handle: Any  # None: NVML counts this GPU, and cannot reach it

    def told(self, query: Any, *arguments: Any) -> Any:
        return None if self.handle is None else _told(self.nvml, query, self.handle, *arguments)


def _told(nvml: Any, query: Any, *arguments: Any) -> Any:
    """None where NVML cannot or may not tell."""
    try:
        return query(*arguments)
    except (nvml.NVMLError, nvml.NVMLLibraryMismatchError):
        return None


def _gpu(index: int, device: _Device, places: Mapping[str, int]) -> Gpu:
    nvml = device.nvml
    total, reserved, strangers = _memory(device)
    mig = device.told(nvml.nvmlDeviceGetMigMode)  # [now, after the next reset]
    return Gpu(
        index=index,
        uuid=device.told(nvml.nvmlDeviceGetUUID) or "",
        name=device.told(nvml.nvmlDeviceGetName) or "unknown",
        total_mib=total // MIB,
        reserved_mib=None if reserved is None else -(-reserved // MIB),
        strangers_mib=-(-strangers // MIB),
        mig=mig is not None and mig[0] == nvml.NVML_DEVICE_MIG_ENABLE,
        links=_links(device, places),
    )


def _memory(device: _Device) -> tuple[int, int | None, int]:
    """In bytes: the total, what the driver reserves, what strangers hold.

    From ``free``: NVIDIA's pages do not agree on whether ``used`` of version 2 has ``reserved`` in it.
    """
    query = device.nvml.nvmlDeviceGetMemoryInfo
    found = device.told(query, device.nvml.nvmlMemory_v2)
    reserved = None if found is None else int(found.reserved)
    found = found or device.told(query)
    if found is None:
        return 0, None, 0
    held = found.total - found.free - (reserved or 0)
    return int(found.total), reserved, max(0, int(held) - _held_by_ranks(device))


def _held_by_ranks(device: _Device) -> int:
    processes = device.told(device.nvml.nvmlDeviceGetComputeRunningProcesses) or []
    return sum(int(process.usedGpuMemory or 0) for process in processes if is_rank(process.pid))


def _links(device: _Device, places: Mapping[str, int]) -> GpuLinks:
    """``places`` are the indices of GPUs by their PCI bus ids."""
    nvml = device.nvml
    up = [
        link
        for link in range(nvml.NVML_NVLINK_MAX_LINKS)
        if device.told(nvml.nvmlDeviceGetNvLinkState, link) == nvml.NVML_FEATURE_ENABLED
    ]
    ends = [device.told(nvml.nvmlDeviceGetNvLinkRemotePciInfo, link) for link in up]
    peers = Counter(places[end.busId.lower()] for end in ends if end is not None and end.busId.lower() in places)
    types = [device.told(nvml.nvmlDeviceGetNvLinkRemoteDeviceType, link) for link in up]
    return GpuLinks(
        num_nvlinks=len(up),
        peers=tuple(sorted(peers.items())),
        num_switched=types.count(nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH),
        pcie_generation=device.told(nvml.nvmlDeviceGetMaxPcieLinkGeneration),
        pcie_width=device.told(nvml.nvmlDeviceGetMaxPcieLinkWidth),
    )


def _begins(uuid: str, name: str) -> bool:
    return name.startswith("GPU-") and uuid.startswith(name)
