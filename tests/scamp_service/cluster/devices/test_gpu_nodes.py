"""GPUs through the real ``pynvml``, which loads ``nvml/nvml.c`` as the driver's library; a rehearsal reads the same."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from scamp_service.cluster.devices import gpus
from scamp_service.cluster.devices.gpu_nodes import kind_of, offered_mib, why_nothing
from scamp_service.cluster.devices.gpus import Gpu, GpuLinks, visible
from scamp_service.cluster.devices.rehearsal import RehearsedNvml, read_rehearsal
from scamp_service.errors import InvalidInput
from scamp_service.settings import ROOT

SOURCE = Path(__file__).parent / "nvml" / "nvml.c"
RANK = 100
"""The process id of a rank of ours."""

SERVER = f"""
import json, pickle, sys
from scamp_service.cluster.devices import gpus
gpus.is_rank = {{{RANK}}}.__contains__
for line in sys.stdin:
    chosen, sees_all = json.loads(line)
    gpus.sees_all_processes = lambda: sees_all
    print(pickle.dumps(gpus.visible(gpus.inventory(), chosen)).hex(), flush=True)
"""

A100 = "[gpu {}]\nname = NVIDIA A100-SXM4-80GB\nmib = 81920\nreserved_mib = 600\n"
L40S_AND_T4 = """
[gpu 0-3]
name = NVIDIA L40S
mib = 46068
reserved_mib = 601
[gpu 4-7]
name = Tesla T4
mib = 15360
reserved_mib = 424
pcie = 3x16
"""
FULL_MIB = 81920 - 600 - 2048
"""MiB that an A100 offers to four gangs."""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the library."""
    if not (compiler := shutil.which("cc") or shutil.which("gcc")):
        assert not os.environ.get("CI"), "a C compiler (cc) is not installed"
        pytest.skip("a C compiler (cc) is not installed")
    folder = tmp_path_factory.mktemp("nvml")
    target = folder / "libnvidia-ml.so.1"
    flags = ["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, "-o", str(target), str(SOURCE)], check=True)
    return folder


@dataclass
class Machine:
    """A process with the library. Its GPUs are those of ``file``, which may change at any time."""

    file: Path
    process: subprocess.Popen[str]

    def gpus(self, chosen: str | None = None, *, sees_all: bool = True) -> tuple[Gpu, ...]:
        """The GPUs that ``CUDA_VISIBLE_DEVICES`` chooses; in a container ScaMP may not see all processes."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([chosen, sees_all]) + "\n")
        self.process.stdin.flush()
        shown_gpus: tuple[Gpu, ...] = pickle.loads(bytes.fromhex(self.process.stdout.readline()))
        return shown_gpus


def environment(library: Path, file: Path) -> dict[str, str]:
    variables = {"LD_LIBRARY_PATH": str(library), "NVML_STAND_IN": str(file), "PYTHONPATH": str(ROOT)}
    return {**os.environ, **variables}


@pytest.fixture(scope="session")
def running(library: Path) -> Iterator[Machine]:
    file = library / "gpus.ini"
    command = [sys.executable, "-P", "-c", SERVER]
    with subprocess.Popen(
        command, env=environment(library, file), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Machine(file, process)
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def machine(running: Machine) -> Machine:
    running.file.unlink(missing_ok=True)
    return running


def offers(gpu: Gpu, max_gangs: int = 4) -> str:
    """What a GPU offers, or why nothing, in words."""
    return why_nothing(gpu, max_gangs) or f"{kind_of(gpu)}: {offered_mib(gpu, max_gangs)}"


@dataclass(frozen=True)
class Case:
    """What the GPUs of a file offer, or words of why they offer nothing; ``CUDA_VISIBLE_DEVICES`` is ``chosen``."""

    file: str
    offers: tuple[str, ...]
    chosen: str | None = None
    sees_all: bool = True


FREE = f"A100-80: {FULL_MIB}"
MIG = A100.format(0) + "mig = 3g.40gb:40192 3g.40gb:40192\n" + A100.format(1)
LOST = A100.format("0-2") + A100.format(3) + "lost = yes\n"

CASES = {
    "eight with NVSwitch": Case(A100.format("0-7") + "nvlinks = switch:12\n", (FREE,) * 8),
    "two kinds in one host": Case(L40S_AND_T4, ("L40S: 43419",) * 4 + ("T4: 12888",) * 4),
    "one in MIG mode": Case(MIG, ("is in MIG mode: name its instances", FREE)),
    "MIG instances by UUID": Case(
        MIG,
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb: 38144",) * 2,
        "MIG-00000000-0001,MIG-00000000-0000",
    ),
    "one is lost": Case(LOST, (FREE, FREE, FREE, "as if it was lost")),
    "a lost one is not chosen": Case(LOST, (FREE, FREE), "0,2"),
    "chosen by number": Case(L40S_AND_T4, ("T4: 12888", "L40S: 43419"), "5,2"),
    "chosen by UUID": Case(L40S_AND_T4, ("T4: 12888",), "GPU-00000004"),
    "none is chosen": Case(L40S_AND_T4, (), ""),
    "a number that none has ends the list": Case(L40S_AND_T4, ("L40S: 43419",), "0,8,1"),
    "a container with two of eight": Case(
        A100.format(0) + A100.format(1) + "processes = 999999:2048\n",
        (FREE, f"A100-80: {FULL_MIB - 2048}"),
        sees_all=False,
    ),
    "ranks of ours hold some": Case(
        A100.format(0) + f"processes = {RANK}:30000 4321:1000\n", (f"A100-80: {FULL_MIB - 1024}",)
    ),
    "others hold all": Case(A100.format(0) + "processes = 4321:80000\n", ("hold 80000 MiB",)),
    "small memory": Case("[gpu 0]\nname = NVIDIA T400\nmib = 2048\n", ("SCAMP_MAX_GANGS_PER_DEVICE to a smaller",)),
    "memory errors": Case(A100.format(0) + "worn_out = yes\n" + A100.format(1), ("cannot repair", FREE)),
    "every query is refused": Case(A100.format(0) + "refuses = all\n", ("does not say how much memory",)),
    "some queries are refused": Case(
        A100.format(0)
        + "refuses = nvmlDeviceGetMigMode nvmlDeviceGetRemappedRows nvmlDeviceGetNvLinkState nvmlDeviceGetPciInfo "
        + "nvmlDeviceGetMaxPcieLinkWidth\n",
        (FREE,),
    ),
    "no name": Case(A100.format(0) + "refuses = nvmlDeviceGetName\n", (f"unknown: {FULL_MIB}",)),
    "no list of processes": Case(
        A100.format(0) + f"refuses = nvmlDeviceGetComputeRunningProcesses\nprocesses = {RANK}:512\n",
        (f"A100-80: {FULL_MIB - 512}",),
    ),
    "the library is of another version than the driver": Case("[driver]\nerror = 18\n" + A100.format(0), ()),
    "the driver is not loaded": Case("[driver]\nerror = 9\n", ()),
}


@pytest.mark.parametrize("name", CASES)
def test_every_gpu_offers_what_is_its_own_or_says_why_not(
    name: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    machine.file.write_text(case.file)
    shown_gpus = machine.gpus(case.chosen, sees_all=case.sees_all)
    assert len(shown_gpus) == len(case.offers)
    for gpu, words in zip(shown_gpus, case.offers, strict=True):
        assert words in offers(gpu)
    monkeypatch.setattr(gpus, "is_rank", {RANK}.__contains__)
    rehearsed = gpus._read(RehearsedNvml(machine.file), case.sees_all)
    assert visible(rehearsed, case.chosen) == shown_gpus, "a rehearsal reads the same from the same file"


def test_without_a_library_or_its_file_there_are_no_gpus(machine: Machine) -> None:
    assert machine.gpus() == ()


def test_links_are_counted_by_where_they_lead(machine: Machine) -> None:
    machine.file.write_text(
        A100.format(0) + "nvlinks = 1:2 2:1 switch:6\n" + A100.format("1-2") + "nvlinks = 0:1\npcie = 5x8\n"
    )
    first, second, _ = (gpu.links for gpu in machine.gpus())
    assert first == GpuLinks(9, ((1, 2), (2, 1)), 6, 4, 16)
    assert second == GpuLinks(1, ((0, 1),), 0, 5, 8)


def test_a_process_of_others_that_comes_and_goes_is_seen_each_time(machine: Machine) -> None:
    machine.file.write_text(A100.format("0-1"))
    assert [offers(gpu) for gpu in machine.gpus()] == [FREE, FREE]
    machine.file.write_text(A100.format(0) + A100.format(1) + "processes = 4321:20480\n")
    assert [offers(gpu) for gpu in machine.gpus()] == [FREE, f"A100-80: {FULL_MIB - 20480}"]
    machine.file.write_text(A100.format("0-1"))
    assert [offers(gpu) for gpu in machine.gpus()] == [FREE, FREE]


def test_small_changes_of_what_others_hold_change_nothing(machine: Machine) -> None:
    offered = set()
    for mib in (5, 300, 512):
        machine.file.write_text(A100.format(0) + f"processes = 4321:{mib}\n")
        offered.add(offers(machine.gpus()[0]))
    assert offered == {f"A100-80: {FULL_MIB - 512}"}


def test_a_gpu_that_is_lost_in_the_middle_and_a_driver_that_is_reloaded_come_back(machine: Machine) -> None:
    for file, offering in [
        (A100.format("0-3"), 4),
        (LOST, 3),
        ("[driver]\nerror = 18\n" + A100.format("0-3"), 0),
        ("[driver]\nerror = 1\n" + A100.format("0-3"), 0),
        (A100.format("0-3"), 4),
    ]:
        machine.file.write_text(file)
        assert sum(not why_nothing(gpu, 4) for gpu in machine.gpus()) == offering


def test_the_command_lists_the_gpus_and_their_mig_instances(library: Path, tmp_path: Path) -> None:
    file = tmp_path / "gpus.ini"
    file.write_text(MIG)
    command = [sys.executable, "-P", "-m", "scamp", "devices", "--json"]
    shown = subprocess.run(command, env=environment(library, file), capture_output=True, text=True, check=True)
    listed = json.loads(shown.stdout)["gpus"]
    assert [(gpu["index"], gpu["free_mib"]) for gpu in listed] == [(0, 0), (0, 40192), (0, 40192), (1, 81320)]


@pytest.mark.full
def test_calibration_asks_for_the_memory_that_a_gpu_holds(library: Path, tmp_path: Path) -> None:
    file = tmp_path / "gpus.ini"
    file.write_text(A100.format("0-1") + "processes = 4321:100\n")
    code = "from workloads.calibration.measure import held_bytes; print(held_bytes('GPU-00000001-0000') >> 20)"
    shown = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment(library, file), capture_output=True, text=True, check=True
    )
    assert int(shown.stdout) == 700


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("[gpu 0]\nname = T4\n", "it lacks 'mib'"),
        ("[gpu 1]\nname = T4\nmib = 1\n", "must be numbered from 0"),
        ("[card 0]\n", "[card 0] must be [gpu 0], [gpu 0-3] or [driver]"),
        ("[gpu 0]\nname = T4\nmib = 1\nmemory = 2\n", "[gpu 0] has memory; known are"),
        ("[gpu 0]\nname = T4\nmib = many\n", "'many'"),
        ("gpus\n", "no section headers"),
    ],
)
def test_a_mistake_in_the_file_of_a_rehearsal_is_named(file: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "gpus.ini"
    path.write_text(file)
    with pytest.raises(InvalidInput, match="SCAMP_REHEARSAL_GPUS") as error:
        read_rehearsal(path)
    assert words in str(error.value)
    with pytest.raises(InvalidInput, match="No such file"):
        read_rehearsal(tmp_path / "none")
