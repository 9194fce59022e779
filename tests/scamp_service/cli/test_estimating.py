"""Commands in this process, without a service, a GPU or a measurement."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from estimators.devices import catalogue
from estimators.devices.kind import DeviceKind, Rate
from scamp.cli.terminal import err, out
from scamp_service.cli import estimating
from scamp_service.cli.main import app
from scamp_service.cluster.devices import gpus
from scamp_service.cluster.devices.gpus import Gpu, GpuLinks
from scamp_service.errors import InvalidInput
from scamp_service.sizing import calibration

H100 = Gpu(0, "GPU-aaaa", "NVIDIA H100 80GB HBM3", 81559, 559, 21000, mig=False, links=GpuLinks(3, ((1, 2),), 1, 5, 16))
MIG = Gpu(1, "GPU-bbbb", "NVIDIA L40S", 81559, 559, 0, mig=True, links=GpuLinks(0, (), 0, 5, 16))
CPU = DeviceKind("a CPU", {"matmul": Rate(1e-6, 1e-11, 1e-10)}, "measured today")


def scamp(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "160"}, catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out, "_width", 160)


def machine(monkeypatch: pytest.MonkeyPatch, *gpu: Gpu) -> None:
    monkeypatch.setattr(gpus, "inventory", lambda rehearsal="": gpu)


def test_devices_lists_each_gpu_in_a_line(monkeypatch: pytest.MonkeyPatch, wide: None) -> None:
    machine(monkeypatch, H100, MIG)
    heading, first, second = scamp("devices").splitlines()
    assert heading.split()[-1] == "--device"
    assert " ".join(first.split()) == (
        f"0 {H100.name} 81559 21000 60000 3 NVLinks (2 to GPU 1, 1 to a switch), PCIe 5 × 16 H100"
    )
    assert " ".join(second.split()) == "1 NVIDIA L40S (MIG) 81559 0 0 PCIe 5 × 16"


def test_devices_as_json_is_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, H100)
    links = {"num_nvlinks": 3, "peers": [[1, 2]], "num_switched": 1, "pcie_generation": 5, "pcie_width": 16}
    description = {
        "index": 0, "uuid": "GPU-aaaa", "name": H100.name, "total_mib": 81559, "reserved_mib": 559,
        "other_processes_mib": 21000, "free_mib": 60000, "mig": False, "kind": "H100", "links": links,
        "knows_ranks": True, "worn_out": False,
    }  # fmt: skip
    assert json.loads(scamp("devices", "--json")) == {"gpus": [description], "virtual_devices": None, "rehearsal": ""}


def test_devices_without_gpus_says_what_studies_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch)
    for name, number in (("VIRTUAL_DEVICES", "3"), ("VIRTUAL_NODES", "2"), ("DEVICE_MIB", "88")):
        monkeypatch.setenv(f"SCAMP_{name}", number)
    monkeypatch.setenv("SCAMP_REHEARSAL_GPUS", "/gpus.ini")
    first, line = scamp("devices").splitlines()
    assert first == "a rehearsal: these are the GPUs of /gpus.ini, not of this machine"
    assert line == "NVML finds no GPU on this machine: studies run on virtual devices, 6 × 88 MiB"
    virtual = {"count": 6, "mib": 88}
    answer = {"gpus": [], "virtual_devices": virtual, "rehearsal": "/gpus.ini"}
    assert json.loads(scamp("devices", "--json")) == answer


def test_calibrate_measures_the_cpu_then_one_gpu_of_each_model_and_warns_of_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wide: None
) -> None:
    measured: list[Any] = []

    def cpu(*args: Any) -> DeviceKind:
        measured.append(args)
        return CPU

    def gpu(data_dir: Path, device: Gpu) -> DeviceKind:
        measured.append((data_dir, device.uuid))
        return replace(catalogue.gpu("H100"), provenance="measured now")

    machine(monkeypatch, MIG, H100, replace(H100, index=2, uuid="GPU-cccc", other_processes_mib=30000))
    monkeypatch.setattr(calibration, "calibrate_cpu", cpu)
    monkeypatch.setattr(calibration, "calibrate_gpu", gpu)
    monkeypatch.setattr(err, "_file", shown := (tmp_path / "err").open("w"))
    output = scamp("calibrate", "--rounds", "2", "--data-dir", str(tmp_path))
    shown.close()
    assert measured == [(tmp_path, 2), (tmp_path, "GPU-aaaa")]
    assert "other processes hold 21000 MiB of NVIDIA H100 80GB HBM3, so" in (tmp_path / "err").read_text()
    assert output.splitlines()[:3] == [
        "a CPU: measured today",
        "100 GFLOP/s for matrix multiplication",
        "H100: measured now",
    ]
    assert output.splitlines()[-1].endswith("MiB of a process's memory is outside PyTorch's tensors")


def test_a_fit_of_zero_seconds_has_no_speed(capsys: pytest.CaptureFixture[str]) -> None:
    estimating._print_kind(replace(CPU, rates={"matmul": Rate(1e-6, 0.0, 0.0)}))
    assert capsys.readouterr().out == "a CPU: measured today\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["estimate", "vit_digits", "--expandable-segments"], "name a GPU with --device"),
        (["estimate", "vit_digits", "--device", "H1"], "H1"),
        (
            ["screen", "mine.py:build"],
            "no space to screen: name a study in YAML, or run `scamp estimate mine.py:build`",
        ),
    ],
)
def test_a_mistake_is_found_before_anything_is_traced(arguments: list[str], words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as error:
        scamp(*arguments, "--data-dir", str(tmp_path))
    assert words in str(error.value)
    assert list(tmp_path.iterdir()) == []
