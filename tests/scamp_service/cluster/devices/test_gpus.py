"""What ``gpus`` makes of NVML's answers, by the NVML of rehearsals; ``test_gpu_nodes`` has the real ``pynvml``."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from estimators.devices.catalogue import gpu as kind_of
from estimators.model import MIB
from scamp_service.cluster.devices import gpus, rehearsal
from scamp_service.cluster.devices.gpus import PRODUCTS, Gpu, GpuLinks, inventory, is_rank, known_kind
from scamp_service.cluster.devices.rehearsal import Rehearsed, RehearsedNvml
from scamp_service.cluster.local import local_ray
from scamp_service.cluster.worker.rank import Rank
from scamp_service.errors import InvalidInput
from scamp_service.settings import Settings

RANK, NOTEBOOK = 100, 200
"""Process ids; no other is known to be anybody's."""
H100 = "[gpu 0]\nname = NVIDIA H100 80GB HBM3\nmib = 81559\nreserved_mib = 559\npcie = 5x16\n"
GPU = Gpu(0, "GPU-00000000-0000", "NVIDIA H100 80GB HBM3", 81559, 559, 0, False, GpuLinks(0, (), 0, 5, 16))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the GPUs; processes are known by ``RANK``."""
    monkeypatch.setattr(gpus, "is_rank", {RANK}.__contains__)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path / "gpus.ini"


class Counted(RehearsedNvml):
    """Counts how often it is open."""

    opened = 0

    def nvmlInit(self) -> None:
        super().nvmlInit()
        self.opened += 1

    def nvmlShutdown(self) -> None:
        super().nvmlShutdown()
        self.opened -= 1


Read = Callable[..., Gpu]


@pytest.fixture
def read(file: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """``read(lines, query=answer)`` is an H100 with further lines, and another answer to some queries of NVML."""

    def first_gpu(lines: str = "", **answers: Callable[..., Any]) -> Gpu:
        file.write_text(f"{H100}{lines}")
        for query, answer in answers.items():
            monkeypatch.setitem(rehearsal.ANSWERS, f"nvmlDeviceGet{query}", answer)
        nvml = Counted(file)
        read_gpus = gpus._read(nvml, True)
        assert nvml.opened == 0
        return read_gpus[0]

    return first_gpu


def raises(error: Exception) -> Callable[..., Any]:
    """An answer that is an error."""

    def answer(*_: Any) -> Any:
        raise error

    return answer


def processes(*held: tuple[int, int | None]) -> Callable[[Rehearsed], Any]:
    """NVML's list of these processes, by number and MiB."""
    return lambda _: [SimpleNamespace(pid=pid, usedGpuMemory=mib and mib * MIB) for pid, mib in held]


def test_a_gpu_is_described_with_all_that_is_known(read: Read) -> None:
    assert read() == GPU


def test_a_process_that_nobody_knows_is_not_ours(read: Read) -> None:
    assert read("processes = 999999999:1000\n").other_processes_mib == 1000
    assert not is_rank(999_999_999)


def test_a_rank_whose_memory_nvml_does_not_report_counts_as_another_process(read: Read) -> None:
    gpu = read(f"processes = {RANK}:1000\n", ComputeRunningProcesses=processes((RANK, None)))
    assert (gpu.other_processes_mib, gpu.knows_ranks) == (1000, False)


def test_memory_that_no_listed_process_holds_counts_as_that_of_others(read: Read) -> None:
    assert read(f"processes = {NOTEBOOK}:1000\n", ComputeRunningProcesses=processes()).other_processes_mib == 1000


def test_ranks_cannot_hold_more_than_is_held(read: Read) -> None:
    gpu = read(f"processes = {NOTEBOOK}:1000\n", ComputeRunningProcesses=processes((RANK, 3000)))
    assert gpu.other_processes_mib == 0


def test_an_old_driver_counts_its_own_part_as_that_of_others(read: Read) -> None:
    def first_version(gpu: Rehearsed, version: int | None = None) -> Any:
        if version is not None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return SimpleNamespace(total=81559 * MIB, free=81000 * MIB)

    gpu = read(MemoryInfo=first_version)
    assert (gpu.reserved_mib, gpu.other_processes_mib, gpu.free_mib) == (None, 559, 81000)


def test_parts_of_a_mib_are_never_offered(read: Read) -> None:
    held = SimpleNamespace(total=100 * MIB, reserved=10 * MIB + 1, free=70 * MIB)
    gpu = read(MemoryInfo=lambda *_: held)
    assert (gpu.reserved_mib, gpu.other_processes_mib, gpu.free_mib) == (11, 20, 69)


LINKED = f"nvlinks = 1:1 switch:2\nprocesses = {RANK}:20000 {NOTEBOOK}:1000\n"
OPTIONAL: dict[str, dict[str, Any]] = {
    "nvmlDeviceGetName": {"name": "unknown"},
    "nvmlDeviceGetUUID": {"uuid": ""},
    "nvmlDeviceGetMemoryInfo": {
        "total_mib": 0,
        "reserved_mib": None,
        "other_processes_mib": 0,
        "knows_ranks": False,
    },
    "nvmlDeviceGetComputeRunningProcesses": {"other_processes_mib": 21000, "knows_ranks": False},
    "nvmlDeviceGetMigMode": {},
    "nvmlDeviceGetMaxMigDeviceCount": {},
    "nvmlDeviceGetMigDeviceHandleByIndex": {},
    "nvmlDeviceGetRemappedRows": {},
    "nvmlDeviceGetPciInfo": {},
    "nvmlDeviceGetNvLinkState": {"links": GpuLinks(0, (), 0, 5, 16)},
    "nvmlDeviceGetNvLinkRemotePciInfo": {"links": GpuLinks(3, (), 2, 5, 16)},
    "nvmlDeviceGetNvLinkRemoteDeviceType": {"links": GpuLinks(3, ((1, 1),), 0, 5, 16)},
    "nvmlDeviceGetMaxPcieLinkGeneration": {"links": GpuLinks(3, ((1, 1),), 2, None, 16)},
    "nvmlDeviceGetMaxPcieLinkWidth": {"links": GpuLinks(3, ((1, 1),), 2, 5, None)},
}


@pytest.mark.parametrize("query", OPTIONAL)
def test_an_answer_that_a_gpu_refuses_is_unknown_and_the_others_are_known(read: Read, query: str) -> None:
    second = H100.replace("gpu 0", "gpu 1")
    full = read(f"{LINKED}{second}")
    assert (full.other_processes_mib, full.links) == (1000, GpuLinks(3, ((1, 1),), 2, 5, 16))
    assert read(f"{LINKED}refuses = {query}\n{second}") == replace(full, **OPTIONAL[query])


def test_the_queries_that_may_be_refused_are_all_that_a_gpu_is_asked() -> None:
    assert rehearsal.ANSWERS.keys() == OPTIONAL.keys()


def test_nvml_is_closed_also_after_an_error_of_ours(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(H100)
    nvml = Counted(file)
    monkeypatch.setattr(gpus, "_gpu", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        gpus._read(nvml, True)
    assert nvml.opened == 0


def test_a_library_of_another_version_than_its_driver_is_like_a_refusal(read: Read) -> None:
    mismatch = raises(pynvml.NVMLLibraryMismatchError("processes"))
    assert read(f"processes = {RANK}:1000\n", ComputeRunningProcesses=mismatch).other_processes_mib == 1000


def test_a_gpu_can_be_sent_by_ray(read: Read) -> None:
    assert pickle.loads(pickle.dumps(read())) == GPU


@pytest.mark.parametrize(
    ("title", "ours"),
    [
        (b"ray::Rank", True),
        (b"ray::Rank.run\0\0\0", True),
        (b"ray::Rank.__init__   ", True),
        (b"ray::Ranker.run", False),
        (b"ray::IDLE", False),
        (b"ray::measure_gpus", False),
        (b"python\0train.py", False),
        (b"", False),
    ],
)
def test_a_rank_is_known_by_its_title(
    title: bytes, ours: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cmdline").write_bytes(title)
    monkeypatch.setattr(gpus, "Path", lambda _: tmp_path / "cmdline")
    assert is_rank(1) is ours


def test_the_title_is_that_of_the_class_of_ranks() -> None:
    assert gpus.RANK_TITLE.fullmatch(f"ray::{Rank.__name__}".encode())


def test_the_local_ray_has_the_gpus_that_are_visible_or_else_virtual_devices(
    file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file.write_text(H100.replace("gpu 0", "gpu 0-2"))
    settings = Settings(data_dir=tmp_path, virtual_devices=5, rehearsal_gpus=str(file))
    for chosen, gpu, virtual in [("0,2", 2, None), ("", 0, 5)]:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
        head = local_ray._nodes(settings)[0]
        assert (head["num_gpus"], head["resources"].get("virtual_device")) == (gpu, virtual)


def test_a_rehearsal_is_refused_where_ranks_would_train_on_real_gpus(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(H100)
    monkeypatch.setattr(gpus, "_read", lambda nvml, sees_all: (replace(GPU, name="NVIDIA T4"),))
    with pytest.raises(InvalidInput, match=r"this machine has GPUs \(NVIDIA T4\)"):
        inventory(str(file))


@pytest.mark.parametrize(
    ("product", "kind"),
    [
        ("Tesla P100-SXM2-16GB", "P100"),
        ("Tesla P100-PCIE-16GB", "P100"),
        ("Tesla P100-PCIE-12GB", None),
        ("Tesla V100-SXM2-16GB", "V100-16"),
        ("Tesla V100-SXM2-32GB", "V100-32"),
        ("Tesla V100-SXM3-32GB", "V100-32"),
        ("Tesla V100-PCIE-16GB", "V100-16"),
        ("Tesla V100S-PCIE-32GB", None),
        ("Tesla T4", "T4"),
        ("NVIDIA T4G", None),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40", None),
        ("NVIDIA L40S", "L40S"),
        ("A100-SXM4-40GB", "A100-40"),
        ("NVIDIA A100-SXM4-40GB", "A100-40"),
        ("NVIDIA A100-PCIE-40GB", "A100-40"),
        ("NVIDIA A100-SXM4-80GB", "A100-80"),
        ("NVIDIA A100 80GB PCIe", "A100-80"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A16", None),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX2080Ti"),
        ("NVIDIA GeForce RTX 2080", None),
        ("NVIDIA GeForce RTX 3090", "RTX3090"),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", None),
        ("unknown", None),
    ],
)
def test_a_product_is_named_only_by_a_kind_that_has_its_memory_and_speed(product: str, kind: str | None) -> None:
    assert known_kind(product) == kind


def test_estimate_knows_every_kind_that_is_named() -> None:
    assert all(kind_of(kind).name == kind for kind in PRODUCTS)
