"""An NVML that answers from a file, to rehearse a machine with GPUs on one without. See ``docs/gpus.md``.

It has the functions of ``pynvml`` that ``gpus`` calls, so that a rehearsal reads GPUs as a real machine does. The file
is read again whenever NVML is opened.
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

from estimators.model import MIB
from scamp_service.errors import InvalidInput

SWITCH = "switch"
_SECTION = re.compile(r"gpu (\d+)(?:-(\d+))?")
_KEYS = frozenset({"name", "mib", "reserved_mib", "processes", "nvlinks", "pcie", "mig", "lost", "worn_out", "refuses"})


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """A GPU of the file, or a MIG instance of one; pairs are (name before the colon, number after it)."""

    index: int
    uuid: str
    name: str
    mib: int
    reserved_mib: int = 0
    processes: tuple[tuple[str, int], ...] = ()
    nvlinks: tuple[str, ...] = ()
    pcie: tuple[int, int] = (4, 16)
    mig: tuple[tuple[str, int], ...] = ()
    lost: bool = False
    worn_out: bool = False
    refuses: frozenset[str] = frozenset()

    @property
    def instances(self) -> tuple[Rehearsed, ...]:
        """Its MIG instances."""
        return tuple(
            Rehearsed(self.index, f"MIG-{self.index:08x}-{number:04x}", f"{self.name} MIG {profile}", mib)
            for number, (profile, mib) in enumerate(self.mig)
        )


def read_rehearsal(file: Path) -> tuple[int, tuple[Rehearsed, ...]]:
    """(error of ``nvmlInit``, 0 if it works; the GPUs). Raises ``InvalidInput`` for a file with a mistake."""
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    try:
        parser.read_string(file.read_text())
        gpus = [gpu for section in parser.sections() if section != "driver" for gpu in _gpus(section, parser[section])]
        if [gpu.index for gpu in gpus] != list(range(len(gpus))):
            raise ValueError(f"its GPUs must be numbered from 0, in order, but are {[gpu.index for gpu in gpus]}")
        return parser.getint("driver", "error", fallback=0), tuple(gpus)
    except (OSError, ValueError, KeyError, configparser.Error) as error:
        why = f"it lacks {error}" if isinstance(error, KeyError) else str(error).replace("\n", " ")
        raise InvalidInput(f"SCAMP_REHEARSAL_GPUS, the file {file}: {why}") from None


def _gpus(section: str, values: Mapping[str, str]) -> list[Rehearsed]:
    if not (match := _SECTION.fullmatch(section)):
        raise ValueError(f"[{section}] must be [gpu 0], [gpu 0-3] or [driver]")
    if unknown := sorted(set(values) - _KEYS):
        raise ValueError(f"[{section}] has {', '.join(unknown)}; known are {', '.join(sorted(_KEYS))}")
    first, last = int(match[1]), int(match[2] or match[1])
    generation, _, width = values.get("pcie", "4x16").partition("x")
    gpu = Rehearsed(
        first,
        "",
        values["name"],
        int(values["mib"]),
        int(values.get("reserved_mib", 0)),
        _pairs(values.get("processes", "")),
        tuple(end for end, number in _pairs(values.get("nvlinks", "")) for _ in range(number)),
        (int(generation), int(width)),
        _pairs(values.get("mig", "")),
        values.get("lost", "no") == "yes",
        values.get("worn_out", "no") == "yes",
        frozenset(values.get("refuses", "").split()),
    )
    return [replace(gpu, index=index, uuid=f"GPU-{index:08x}-0000") for index in range(first, last + 1)]


def _pairs(text: str) -> tuple[tuple[str, int], ...]:
    """The pairs of, for example, ``4321:20480 4400:300``."""
    parts = (part.rpartition(":") for part in text.split())
    return tuple((name, int(number)) for name, _, number in parts)


def _bus_of(end: str | int) -> str:
    return "00000000:FF:00.0" if end == SWITCH else f"00000000:{int(end):02X}:00.0"


class RehearsedNvml:
    """Has the functions of ``pynvml`` that ``gpus`` calls; its constants and errors are those of ``pynvml``."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._gpus: tuple[Rehearsed, ...] = ()

    def nvmlInit(self) -> None:
        """Read the file. Raises the error that it gives the driver."""
        error, self._gpus = read_rehearsal(self._file)
        if error:
            raise pynvml.NVMLError(error)

    def nvmlShutdown(self) -> None:
        """Forget the GPUs."""
        self._gpus = ()

    def nvmlDeviceGetCount(self) -> int:
        """Number of GPUs."""
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Rehearsed:
        """A GPU, also a lost one: it refuses all queries."""
        return self._gpus[index]

    def __getattr__(self, name: str) -> Any:
        if name in ANSWERS:
            return partial(_answer, name)
        return getattr(pynvml, name)


def _answer(query: str, gpu: Rehearsed, *arguments: Any) -> Any:
    if gpu.lost:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    if gpu.refuses & {query, "all"}:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return ANSWERS[query](gpu, *arguments)


def _memory(gpu: Rehearsed, version: int | None = None) -> Any:
    held_mib = sum(mib for _, mib in gpu.processes)
    free = gpu.mib - gpu.reserved_mib - held_mib
    return SimpleNamespace(total=gpu.mib * MIB, reserved=gpu.reserved_mib * MIB, free=max(0, free) * MIB)


def _instance(gpu: Rehearsed, number: int) -> Rehearsed:
    if number >= len(gpu.instances):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
    return gpu.instances[number]


ANSWERS: dict[str, Callable[..., Any]] = {
    "nvmlDeviceGetPciInfo": lambda gpu: SimpleNamespace(busId=_bus_of(gpu.index)),
    "nvmlDeviceGetUUID": lambda gpu: gpu.uuid,
    "nvmlDeviceGetName": lambda gpu: gpu.name,
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetComputeRunningProcesses": lambda gpu: [
        SimpleNamespace(pid=int(pid), usedGpuMemory=mib * MIB) for pid, mib in gpu.processes
    ],
    "nvmlDeviceGetMigMode": lambda gpu: [int(bool(gpu.mig))] * 2,
    "nvmlDeviceGetMaxMigDeviceCount": lambda gpu: 7,
    "nvmlDeviceGetMigDeviceHandleByIndex": _instance,
    "nvmlDeviceGetRemappedRows": lambda gpu: [0, int(gpu.worn_out), 0, int(gpu.worn_out)],
    "nvmlDeviceGetNvLinkState": lambda gpu, link: int(link < len(gpu.nvlinks)),
    "nvmlDeviceGetNvLinkRemotePciInfo": lambda gpu, link: SimpleNamespace(busId=_bus_of(gpu.nvlinks[link])),
    "nvmlDeviceGetNvLinkRemoteDeviceType": lambda gpu, link: (
        pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH if gpu.nvlinks[link] == SWITCH else pynvml.NVML_NVLINK_DEVICE_TYPE_GPU
    ),
    "nvmlDeviceGetMaxPcieLinkGeneration": lambda gpu: gpu.pcie[0],
    "nvmlDeviceGetMaxPcieLinkWidth": lambda gpu: gpu.pcie[1],
}
"""Answer to each query of a GPU."""
