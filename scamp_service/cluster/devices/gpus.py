"""Reads this machine's GPUs from NVML: which there are, how much of their memory other processes hold, their links.

A GPU, a container or an old driver may refuse any query. The value is then unknown, and nothing fails. ``gpu_nodes``
decides how many MiB a GPU offers. A rehearsal has another NVML, which answers from a file.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from estimators.model import MIB
from scamp_service.errors import InvalidInput

FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the namespace in which the driver numbers processes (``PROC_PID_INIT_INO`` of Linux), not in containers."""

RANK_TITLE = re.compile(rb"ray::Rank\b")
"""Command line that Ray gives a rank process: ``ray::Rank``, or ``ray::Rank.run`` inside a method."""

PRODUCTS = {
    "P100": r"P100-(SXM2|PCIE)-16GB",
    "V100-16": r"V100-(SXM2|PCIE|DGXS)-16GB",
    "V100-32": r"V100-(SXM2|SXM3|PCIE|DGXS)-32GB",
    "T4": r"T4",
    "A10": r"A10",
    "A10G": r"A10G",
    "L4": r"L4",
    "L40S": r"L40S",
    "A100-40": r"A100-(SXM4|PCIE)-40GB",
    "A100-80": r"A100-SXM4?-80GB|A100 80GB PCIE",
    "H100": r"H100 80GB HBM3",
    "H200": r"H200",
    "B200": r"B200",
    "RTX2080Ti": r"RTX 2080 TI",
    "RTX3090": r"RTX 3090",
    "RTX4090": r"RTX 4090",
}
"""Product names in NVML, by the kind of ``estimators.devices.catalogue`` that has the same chip and memory size."""


@dataclass(frozen=True, slots=True)
class GpuLinks:
    """Links of one GPU.

    ``num_nvlinks`` counts the NVLinks that are up. ``peers`` are (index of the other GPU, number of links), and
    ``num_switched`` links lead to NVSwitches. NVML does not say where the remaining links lead. PCIe generation and
    width are the best that GPU and slot support together, because an idle GPU slows down; None means unknown.
    """

    num_nvlinks: int = 0
    peers: tuple[tuple[int, int], ...] = ()
    num_switched: int = 0
    pcie_generation: int | None = None
    pcie_width: int | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or one MIG instance of GPU ``index``, and its memory.

    ``total_mib`` is the total that ``nvidia-smi`` shows, 0 when unknown. The driver keeps ``reserved_mib`` of it; when
    the driver does not report that (None), ``other_processes_mib`` includes it.

    ``other_processes_mib`` is memory not known to belong to ranks of ScaMP. It includes processes that cannot be
    looked up (containers number processes differently) and processes whose memory NVML does not report, because it is
    safer to offer less. Ranks of another ScaMP on this machine cannot be distinguished from ours. Only if
    ``knows_ranks`` is it certain that none of it is memory of our own ranks.

    A GPU that is ``worn_out`` has memory errors that it cannot repair by replacing rows.
    """

    index: int
    uuid: str
    name: str
    total_mib: int
    reserved_mib: int | None
    other_processes_mib: int
    mig: bool
    links: GpuLinks
    knows_ranks: bool = True
    worn_out: bool = False

    @property
    def is_instance(self) -> bool:
        """Whether this is a MIG instance."""
        return self.uuid.startswith("MIG-")

    @property
    def free_mib(self) -> int:
        """MiB available to ScaMP, including what its ranks hold now.

        It is 0 in MIG mode, in which only instances can be used, and of a GPU that is worn out.
        """
        if self.mig or self.worn_out:
            return 0
        return max(0, self.total_mib - (self.reserved_mib or 0) - self.other_processes_mib)

    @property
    def kind(self) -> str | None:
        """Name for ``scamp estimate --device``; None when there is none."""
        return None if self.mig else known_kind(self.name)

    def to_json(self) -> dict[str, Any]:
        """All fields, ``free_mib`` and ``kind``."""
        return asdict(self) | {"free_mib": self.free_mib, "kind": self.kind}


def inventory(rehearsal: str = "") -> tuple[Gpu, ...]:
    """All GPUs that NVML finds, by index, each followed by its MIG instances; empty without an NVIDIA driver.

    With a ``rehearsal`` they are those of this file. Raises ``InvalidInput`` if the file has a mistake, or if this
    machine has real GPUs, on which ranks would train.
    """
    import pynvml

    if not rehearsal:
        return _read(pynvml, sees_all_processes())
    if real := _read(pynvml, True):
        raise InvalidInput(
            f"SCAMP_REHEARSAL_GPUS is set, but this machine has GPUs ({real[0].name}): unset it, or rehearse on a "
            "machine without GPUs"
        )
    from scamp_service.cluster.devices.rehearsal import RehearsedNvml

    return _read(RehearsedNvml(Path(rehearsal)), True)


def expect_rehearsal(rehearsal: str) -> None:
    """Raise ``InvalidInput`` if there is a file to rehearse with that cannot be used; see ``inventory``."""
    if rehearsal:
        inventory(rehearsal)


def _read(nvml: Any, sees_all: bool) -> tuple[Gpu, ...]:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return ()
    try:
        handles = [
            _query(nvml, nvml.nvmlDeviceGetHandleByIndex, index)
            for index in range(_query(nvml, nvml.nvmlDeviceGetCount) or 0)
        ]
        devices = [_Device(nvml, index, handle, sees_all) for index, handle in enumerate(handles)]
        buses = [device.query(nvml.nvmlDeviceGetPciInfo) for device in devices]
        places = {bus.busId.lower(): index for index, bus in enumerate(buses) if bus is not None}
        return tuple(gpu for device in devices for gpu in _with_instances(device, places))
    finally:
        _query(nvml, nvml.nvmlShutdown)


def driver_trouble() -> str:
    """Why NVIDIA's driver does not answer, in its words; empty if it does, or is not installed."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return "" if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND else str(error)
    _query(pynvml, pynvml.nvmlShutdown)
    return ""


def processes_on(index: int) -> tuple[int, ...]:
    """Ids of the processes on a GPU that are not known to be ranks of ScaMP; a container may see none, or other ids."""
    import pynvml

    if driver_trouble():
        return ()
    pynvml.nvmlInit()
    device = _Device(pynvml, index, _query(pynvml, pynvml.nvmlDeviceGetHandleByIndex, index), True)
    pids = tuple(each.pid for each in device.query(pynvml.nvmlDeviceGetComputeRunningProcesses) or ())
    _query(pynvml, pynvml.nvmlShutdown)
    return tuple(pid for pid in pids if not is_rank(pid))


def visible(gpus: tuple[Gpu, ...], chosen: str | None) -> tuple[Gpu, ...]:
    """GPUs and MIG instances that the value of ``CUDA_VISIBLE_DEVICES`` chooses by index or UUID, in its order.

    None chooses all GPUs. As in CUDA, everything after a name that matches none is ignored.
    """
    if chosen is None:
        return tuple(gpu for gpu in gpus if not gpu.is_instance)
    shown: list[Gpu] = []
    for name in map(str.strip, chosen.split(",")):
        gpu = next((gpu for gpu in gpus if _is_called(gpu, name)), None)
        if gpu is None:
            break
        shown.append(gpu)
    return tuple(shown)


def known_kind(name: str) -> str | None:
    """Kind for ``scamp estimate --device``; None for a product that matches no kind in memory and speed.

    A PCIe card gets the kind of its chip when speed and memory agree within a sixth; it may lack that kind's NVLinks.
    """
    product = re.sub(r"^(NVIDIA |TESLA |GEFORCE )+", "", name.strip().upper())
    return next((kind for kind, pattern in PRODUCTS.items() if re.fullmatch(pattern, product)), None)


def is_rank(pid: int) -> bool:
    """Whether the title of the process shows that it is a rank of ScaMP; False when it cannot be read."""
    try:
        return RANK_TITLE.search(Path(f"/proc/{pid}/cmdline").read_bytes()) is not None
    except OSError:
        return False


def sees_all_processes() -> bool:
    """Whether the numbers by which NVML lists processes are those of this process's ``/proc``."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == FIRST_PID_NAMESPACE
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class _Device:
    nvml: Any
    index: int
    handle: Any  # None: NVML counts this GPU, but cannot reach it
    sees_all: bool

    def query(self, function: Any, *arguments: Any) -> Any:
        return None if self.handle is None else _query(self.nvml, function, self.handle, *arguments)


def _query(nvml: Any, function: Any, *arguments: Any) -> Any:
    """Answer of an NVML function; None when NVML cannot or may not answer."""
    try:
        return function(*arguments)
    except (nvml.NVMLError, nvml.NVMLLibraryMismatchError):
        return None


def _with_instances(device: _Device, places: Mapping[str, int]) -> Iterator[Gpu]:
    """The GPU and its MIG instances."""
    nvml = device.nvml
    gpu = _gpu(device, places)
    yield gpu
    for number in range((device.query(nvml.nvmlDeviceGetMaxMigDeviceCount) or 0) if gpu.mig else 0):
        handle = device.query(nvml.nvmlDeviceGetMigDeviceHandleByIndex, number)
        if handle is not None:  # there are fewer instances than there may be
            yield replace(_gpu(replace(device, handle=handle), {}), mig=False, links=GpuLinks())


def _gpu(device: _Device, places: Mapping[str, int]) -> Gpu:
    nvml = device.nvml
    total, reserved, others, knows_ranks = _memory(device)
    mig = device.query(nvml.nvmlDeviceGetMigMode)  # [now, after the next reset]
    rows = device.query(nvml.nvmlDeviceGetRemappedRows)  # [after correctable, after other errors, pending, failed]
    return Gpu(
        index=device.index,
        uuid=device.query(nvml.nvmlDeviceGetUUID) or "",
        name=device.query(nvml.nvmlDeviceGetName) or "unknown",
        total_mib=total // MIB,
        reserved_mib=None if reserved is None else -(-reserved // MIB),
        other_processes_mib=-(-others // MIB),
        mig=mig is not None and mig[0] == nvml.NVML_DEVICE_MIG_ENABLE,
        links=_links(device, places),
        knows_ranks=knows_ranks,
        worn_out=rows is not None and bool(rows[3]),
    )


def _memory(device: _Device) -> tuple[int, int | None, int, bool]:
    """(total, reserved by the driver, held by processes that are not known to be our ranks), in bytes, and whether all
    of our ranks are known.

    Computed from ``free``: NVIDIA's pages disagree on whether ``used`` of version 2 includes ``reserved``.
    """
    memory_info = device.nvml.nvmlDeviceGetMemoryInfo
    memory = device.query(memory_info, device.nvml.nvmlMemory_v2)
    reserved = None if memory is None else int(memory.reserved)
    memory = memory or device.query(memory_info)
    if memory is None:
        return 0, None, 0, False
    held = memory.total - memory.free - (reserved or 0)
    processes = device.query(device.nvml.nvmlDeviceGetComputeRunningProcesses)
    of_ranks = [process.usedGpuMemory for process in processes or () if is_rank(process.pid)]
    knows_ranks = device.sees_all and processes is not None and None not in of_ranks
    others = int(held) - sum(int(bytes_held or 0) for bytes_held in of_ranks)
    return int(memory.total), reserved, max(0, others), knows_ranks


def _links(device: _Device, places: Mapping[str, int]) -> GpuLinks:
    """``places`` maps PCI bus ids to GPU indices."""
    nvml = device.nvml
    up = [
        link
        for link in range(nvml.NVML_NVLINK_MAX_LINKS)
        if device.query(nvml.nvmlDeviceGetNvLinkState, link) == nvml.NVML_FEATURE_ENABLED
    ]
    ends = [device.query(nvml.nvmlDeviceGetNvLinkRemotePciInfo, link) for link in up]
    peers = Counter(places[end.busId.lower()] for end in ends if end is not None and end.busId.lower() in places)
    types = [device.query(nvml.nvmlDeviceGetNvLinkRemoteDeviceType, link) for link in up]
    return GpuLinks(
        num_nvlinks=len(up),
        peers=tuple(sorted(peers.items())),
        num_switched=types.count(nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH),
        pcie_generation=device.query(nvml.nvmlDeviceGetMaxPcieLinkGeneration),
        pcie_width=device.query(nvml.nvmlDeviceGetMaxPcieLinkWidth),
    )


def _is_called(gpu: Gpu, name: str) -> bool:
    """Whether ``CUDA_VISIBLE_DEVICES`` may call it so: by its index, or by the beginning of its UUID."""
    if name.startswith(("GPU-", "MIG-")):
        return gpu.uuid.startswith(name)
    return name == str(gpu.index) and not gpu.is_instance
