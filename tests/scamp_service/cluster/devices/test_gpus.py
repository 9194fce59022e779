"""GPUs as NVML reports them: a small NVML in memory, which refuses what real ones refuse."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from estimators.devices.catalogue import gpu as kind_of
from estimators.model import MIB
from scamp_service.cluster.devices import gpus
from scamp_service.cluster.devices.gpu_nodes import GPU_CONTEXT_MIB, measure_gpus, why_nothing
from scamp_service.cluster.devices.gpus import PRODUCTS, Gpu, GpuLinks, inventory, is_rank, known_kind, visible
from scamp_service.cluster.local import local_ray
from scamp_service.cluster.worker.rank import Rank
from scamp_service.settings import Settings

RANK, NOTEBOOK = 100, 200
"""Process ids; no other is known to be anybody's."""
H100 = "NVIDIA H100 80GB HBM3"


@dataclass
class Card:
    """A GPU of the fake: memory in MiB, processes as (pid, MiB or None), ``nvlinks`` lead to a bus id each."""

    name: str = H100
    total: int = 81559
    reserved: int = 559
    free: int = 81000
    processes: tuple[tuple[int, int | None], ...] = ()
    nvlinks: tuple[str, ...] = ()
    mig: bool = False
    index: int = 0  # given by the fake

    @property
    def bus_id(self) -> str:
        return f"00000000:{self.index:02X}:00.0"


SWITCH = "00000000:C4:00.0"


@dataclass
class FakeNvml:
    """As much of pynvml as ``gpus`` asks. ``refused`` are names of queries and the error that each raises."""

    cards: list[Card]
    refused: Mapping[str, int] = field(default_factory=dict)
    opened: int = 0
    calls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for index, card in enumerate(self.cards):
            card.index = index

    def __getattr__(self, name: str) -> Any:
        """Constants and errors are pynvml's own; a query that it does not have is an AttributeError, as there."""
        real = getattr(pynvml, name)
        if not name.startswith("nvml") or not callable(real):
            return real

        def query(*arguments: Any) -> Any:
            self.calls.append(name)
            if name in self.refused:
                raise pynvml.NVMLError(self.refused[name])
            assert self.opened or name == "nvmlInit", f"{name} while NVML is closed"
            return getattr(self, f"_{name.removeprefix('nvml').removeprefix('DeviceGet').lower()}")(*arguments)

        return query

    def _init(self) -> None:
        self.opened += 1

    def _shutdown(self) -> None:
        self.opened -= 1

    def _count(self) -> int:
        return len(self.cards)

    def _handlebyindex(self, index: int) -> Card:
        return self.cards[index]

    def _name(self, card: Card) -> str:
        return card.name

    def _uuid(self, card: Card) -> str:
        return f"GPU-{card.index:08x}-aaaa"

    def _pciinfo(self, card: Card) -> Any:
        return SimpleNamespace(busId=card.bus_id)

    def _memoryinfo(self, card: Card, version: int | None = None) -> Any:
        sizes = {"total": card.total * MIB, "free": card.free * MIB}
        if version is None:
            return SimpleNamespace(**sizes)
        if "v2" in self.refused:
            raise pynvml.NVMLError(self.refused["v2"])
        return SimpleNamespace(**sizes, reserved=card.reserved * MIB)

    def _computerunningprocesses(self, card: Card) -> list[Any]:
        return [SimpleNamespace(pid=p, usedGpuMemory=None if mib is None else mib * MIB) for p, mib in card.processes]

    def _migmode(self, card: Card) -> list[int]:
        return [int(card.mig), 0]

    def _nvlinkstate(self, card: Card, link: int) -> int:
        if link >= 18:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return int(link < len(card.nvlinks))

    def _nvlinkremotepciinfo(self, card: Card, link: int) -> Any:
        return SimpleNamespace(busId=card.nvlinks[link])

    def _nvlinkremotedevicetype(self, card: Card, link: int) -> int:
        return pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH if card.nvlinks[link] == SWITCH else 0

    def _maxpcielinkgeneration(self, card: Card) -> int:
        return 5

    def _maxpcielinkwidth(self, card: Card) -> int:
        return 16


Install = Callable[..., FakeNvml]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Install:
    """``machine(card, …, refused=…)`` becomes what NVML tells; processes are known by ``RANK``."""

    def install(*cards: Card, refused: Mapping[str, int] | None = None) -> FakeNvml:
        fake = FakeNvml(list(cards), refused or {})
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        monkeypatch.setattr(gpus, "is_rank", lambda pid: pid == RANK)
        return fake

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return install


def only(found_gpus: tuple[Gpu, ...]) -> Gpu:
    assert len(found_gpus) == 1
    return found_gpus[0]


def test_a_gpu_is_told_with_all_that_is_known(machine: Install) -> None:
    fake = machine(Card())
    assert only(inventory()) == Gpu(0, "GPU-00000000-aaaa", H100, 81559, 559, 0, False, GpuLinks(0, (), 0, 5, 16))
    assert fake.opened == 0


def test_without_a_driver_there_are_no_gpus(machine: Install) -> None:
    for error in (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED):
        fake = machine(Card(), refused={"nvmlInit": error})
        assert inventory() == ()
        assert fake.calls == ["nvmlInit"], "what was not opened is not closed"


def test_what_other_processes_hold_is_not_offered(machine: Install) -> None:
    machine(Card(free=61000, processes=((NOTEBOOK, 20000),)))
    gpu = only(inventory())
    assert (gpu.other_processes_mib, gpu.free_mib) == (20000, 61000)


def test_what_our_own_ranks_hold_counts_as_free(machine: Install) -> None:
    machine(Card(free=51000, processes=((NOTEBOOK, 20000), (RANK, 10000))))
    gpu = only(inventory())
    assert (gpu.other_processes_mib, gpu.free_mib) == (20000, 61000)


def test_a_process_that_nobody_knows_is_a_stranger(machine: Install) -> None:
    machine(Card(free=80000, processes=((999_999_999, 1000),)))
    assert only(inventory()).other_processes_mib == 1000
    assert not is_rank(999_999_999)


def test_a_rank_of_which_nvml_does_not_tell_what_it_holds_is_a_stranger(machine: Install) -> None:
    machine(Card(free=80000, processes=((RANK, None),)))
    assert only(inventory()).other_processes_mib == 1000


def test_memory_that_no_listed_process_holds_counts_as_that_of_others(machine: Install) -> None:
    machine(Card(free=80000))  # a process with graphics only, or one that a container does not show
    assert only(inventory()).other_processes_mib == 1000


def test_ranks_cannot_hold_more_than_is_held(machine: Install) -> None:
    machine(Card(free=80000, processes=((RANK, 3000),)))
    assert only(inventory()).other_processes_mib == 0


def test_an_old_driver_counts_its_own_part_as_that_of_others(machine: Install) -> None:
    machine(Card(), refused={"v2": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND})
    gpu = only(inventory())
    assert (gpu.reserved_mib, gpu.other_processes_mib, gpu.free_mib) == (None, 559, 81000)


def test_parts_of_a_mib_are_never_offered(machine: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = machine(Card())
    held = SimpleNamespace(total=100 * MIB, reserved=10 * MIB + 1, free=70 * MIB)
    monkeypatch.setattr(fake, "_memoryinfo", lambda card, version: held, raising=False)
    gpu = only(inventory())
    assert (gpu.reserved_mib, gpu.other_processes_mib, gpu.free_mib) == (11, 20, 69)


OPTIONAL: dict[str, dict[str, Any]] = {
    "nvmlDeviceGetName": {"name": "unknown"},
    "nvmlDeviceGetUUID": {"uuid": ""},
    "nvmlDeviceGetMemoryInfo": {"total_mib": 0, "reserved_mib": None, "other_processes_mib": 0},
    "nvmlDeviceGetComputeRunningProcesses": {"other_processes_mib": 21000},
    "nvmlDeviceGetMigMode": {},
    "nvmlDeviceGetPciInfo": {"links": GpuLinks(3, (), 2, 5, 16)},
    "nvmlDeviceGetNvLinkState": {"links": GpuLinks(0, (), 0, 5, 16)},
    "nvmlDeviceGetNvLinkRemotePciInfo": {"links": GpuLinks(3, (), 2, 5, 16)},
    "nvmlDeviceGetNvLinkRemoteDeviceType": {"links": GpuLinks(3, ((1, 1),), 0, 5, 16)},
    "nvmlDeviceGetMaxPcieLinkGeneration": {"links": GpuLinks(3, ((1, 1),), 2, None, 16)},
    "nvmlDeviceGetMaxPcieLinkWidth": {"links": GpuLinks(3, ((1, 1),), 2, 5, None)},
}


@pytest.mark.parametrize("query", OPTIONAL)
@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION])
def test_what_a_gpu_does_not_tell_is_unknown_and_the_rest_is_told(machine: Install, query: str, error: int) -> None:
    def cards() -> tuple[Card, Card]:
        linked = ("00000000:01:00.0", SWITCH, SWITCH)
        return Card(free=60000, processes=((RANK, 20000), (NOTEBOOK, 1000)), nvlinks=linked), Card()

    machine(*cards())
    full = inventory()[0]
    assert (full.other_processes_mib, full.links) == (1000, GpuLinks(3, ((1, 1),), 2, 5, 16))
    fake = machine(*cards(), refused={query: error})
    assert inventory()[0] == replace(full, **OPTIONAL[query])
    assert fake.opened == 0


def test_the_queries_that_may_be_refused_are_all_that_a_gpu_is_asked(machine: Install) -> None:
    fake = machine(Card(nvlinks=(SWITCH,)))
    inventory()
    needed = {"nvmlInit", "nvmlShutdown", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"}
    assert set(fake.calls) == needed | set(OPTIONAL)


def test_a_gpu_that_is_lost_is_listed_and_offers_nothing(machine: Install) -> None:
    fake = machine(Card(), refused={"nvmlDeviceGetHandleByIndex": pynvml.NVML_ERROR_GPU_IS_LOST})
    gpu = only(inventory())
    assert (gpu.name, gpu.free_mib) == ("unknown", 0)
    assert fake.opened == 0


def test_nvml_is_closed_also_after_an_error_of_ours(machine: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = machine(Card())
    monkeypatch.setattr(gpus, "_gpu", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        inventory()
    assert fake.opened == 0


def test_a_library_of_another_version_than_its_driver_is_like_a_refusal(
    machine: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mismatch(card: Card) -> None:
        raise pynvml.NVMLLibraryMismatchError("processes")

    fake = machine(Card(free=80000, processes=((RANK, 1000),)))
    monkeypatch.setattr(fake, "_computerunningprocesses", mismatch, raising=False)
    assert only(inventory()).other_processes_mib == 1000


def test_nvlinks_are_counted_by_the_gpu_that_they_lead_to(machine: Install) -> None:
    first_bus, two = "00000000:01:00.0", "00000000:02:00.0"
    machine(Card(nvlinks=(two, first_bus, two, two)), Card(), Card())
    assert inventory()[0].links == GpuLinks(4, ((1, 1), (2, 3)), 0, 5, 16)


def test_a_gpu_in_mig_mode_says_so_and_offers_nothing(machine: Install) -> None:
    machine(Card(mig=True))
    gpu = only(inventory())
    assert gpu.mig
    assert gpu.free_mib == 0
    assert gpu.kind is None


def test_a_gpu_can_be_sent_by_ray(machine: Install) -> None:
    machine(Card())
    assert pickle.loads(pickle.dumps(inventory())) == inventory()


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


def test_cuda_visible_devices_chooses_by_index_or_uuid(machine: Install) -> None:
    machine(Card(), Card(), Card())
    inventory_gpus = inventory()
    for chosen, indices in [
        (None, [0, 1, 2]),
        ("", []),
        ("2,0", [2, 0]),
        (" 1", [1]),
        ("GPU-00000001,2", [1, 2]),
        ("0,7,1", [0]),
        ("-1", []),
        ("MIG-0123", []),
    ]:
        assert [gpu.index for gpu in visible(inventory_gpus, chosen)] == indices, chosen


def test_a_node_offers_what_its_fullest_gpu_has_left(machine: Install) -> None:
    machine(Card(), Card(free=41000), Card("NVIDIA H200", total=143771, free=143000))
    kind, least = measure_gpus(3)
    assert kind == f"{H100} / NVIDIA H200"
    assert least is not None and (least.index, least.free_mib) == (1, 41000)


def test_gpus_that_ray_does_not_have_do_not_count(machine: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(Card(free=0), Card(free=70000), Card(free=60000))
    for chosen, num_gpus, index in [("1,2", 2, 2), ("1,2", 1, 1), ("", 3, 0)]:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
        least = measure_gpus(num_gpus)[1]
        assert least is not None and least.index == index


def test_a_node_that_offers_something_needs_no_reason(machine: Install) -> None:
    machine(Card(free=4 * GPU_CONTEXT_MIB + 1))
    assert why_nothing("4af3", only(inventory()), 4) == ""


@pytest.mark.parametrize(
    ("card", "words"),
    [
        (None, ["none of its Ray's GPUs", "driver", "--num-gpus=0"]),
        (Card(mig=True), ["MIG mode", "nvidia-smi -i 0 -mig 0"]),
        (Card(total=0, reserved=0, free=0), ["does not say how much memory"]),
        (Card(free=4 * GPU_CONTEXT_MIB), ["hold 78952 of 81559 MiB", H100, "end those processes", "2048 MiB"]),
    ],
)
def test_a_node_that_offers_nothing_says_why_and_what_to_do(
    machine: Install, card: Card | None, words: list[str]
) -> None:
    machine(*([card] if card else []))
    reason = why_nothing("4af3", measure_gpus(1)[1], 4)
    assert reason.startswith("node 4af3 offers no devices: ")
    assert all(word in reason for word in words), reason


def test_the_local_ray_has_the_gpus_that_are_visible_or_else_virtual_devices(
    machine: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine(Card(), Card(), Card())
    settings = Settings(data_dir=tmp_path, virtual_devices=5)
    for chosen, gpu, virtual in [("0,2", 2, None), ("", 0, 5)]:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
        head = local_ray._nodes(settings)[0]
        assert (head["num_gpus"], head["resources"].get("virtual_device")) == (gpu, virtual)


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
        ("NVIDIA L40S", None),
        ("A100-SXM4-40GB", "A100-40"),
        ("NVIDIA A100-SXM4-40GB", "A100-40"),
        ("NVIDIA A100-PCIE-40GB", "A100-40"),
        ("NVIDIA A100-SXM4-80GB", "A100-80"),
        ("NVIDIA A100 80GB PCIe", "A100-80"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA A10", None),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA B200", None),
        ("unknown", None),
    ],
)
def test_a_product_is_named_only_by_a_kind_that_has_its_memory_and_speed(product: str, kind: str | None) -> None:
    assert known_kind(product) == kind


def test_estimate_knows_every_kind_that_is_named() -> None:
    assert all(kind_of(kind).name == kind for kind in PRODUCTS)
