"""Measurements that are kept and found again, and what is said about them. Most children are a shell script."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from estimators.devices import catalogue
from estimators.devices.kind import DeviceKind, Rate
from estimators.work import COLLECTIVES
from placement.model import VIRTUAL_KIND, Cluster, Device
from scamp_service.cluster.devices.gpus import Gpu, GpuLinks
from scamp_service.errors import InvalidInput
from scamp_service.sizing import calibration
from scamp_service.sizing.calibration import (
    calibrate_cpu,
    calibrate_cpu_quickly,
    calibrate_gpu,
    calibrated,
    device_kind_of,
    one_of_each,
    speed_words,
)
from tests.conftest import Scamp

KIND = DeviceKind("a CPU", {"matmul": Rate(1e-6, 1e-11, 1e-10)}, "measured today")
PRINTS = f"""echo 'a warning of torch'; echo '{json.dumps(asdict(KIND))}'; echo "$CUDA_VISIBLE_DEVICES $*" >&2"""


@pytest.fixture(autouse=True)
def lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_LOCK", f"\0scamp-test-{id(monkeypatch)}")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def use(source: str) -> None:
        monkeypatch.setattr(calibration, "COMMAND", ["/bin/sh", "-c", source, "measure"])

    return use


def gpu(index: int, name: str, others_mib: int = 0, mig: bool = False) -> Gpu:
    return Gpu(index, f"GPU-{index}", name, 80_000, None, others_mib, mig, GpuLinks())


def test_one_gpu_of_each_product_is_measured_the_one_that_others_use_least() -> None:
    gpus = [gpu(0, "A", 50), gpu(1, "A", 10), gpu(2, "B", 70), gpu(3, "A", 0, mig=True), gpu(4, "C", mig=True)]
    assert {gpu_info.index for gpu_info in one_of_each(gpus)} == {1, 2}
    assert one_of_each([]) == []


def test_a_measurement_is_the_last_line_and_is_kept_with_its_seconds_only_if_it_was_quick(
    tmp_path: Path, script: Callable[[str], None]
) -> None:
    folder = tmp_path / "data"
    script(PRINTS)
    assert calibrate_cpu(folder, 3) == KIND == calibrated(folder)
    assert (folder.stat().st_mode & 0o777, calibrated(tmp_path)) == (0o700, None)
    quick = calibrate_cpu_quickly(folder)
    assert quick.quick_seconds is not None and replace(quick, quick_seconds=None) == KIND
    assert calibrated(folder) == quick


def test_a_gpu_alone_is_seen_and_kept_under_the_name_by_which_it_is_asked_for(
    tmp_path: Path, script: Callable[[str], None]
) -> None:
    script(f'echo "$CUDA_VISIBLE_DEVICES $*" >{tmp_path}/asked; {PRINTS}')
    calibrate_gpu(tmp_path, gpu(7, "NVIDIA H100 80GB HBM3"))
    assert (tmp_path / "asked").read_text() == "GPU-7 --gpu GPU-7 --name H100\n"
    assert calibrated(tmp_path, "H100") == calibrated(tmp_path, " h100") == KIND
    calibrate_gpu(tmp_path, gpu(8, "A new/../GPU"))
    assert calibrated(tmp_path, "A new/../GPU") == KIND
    assert calibrated(tmp_path, "H200") is calibrated(tmp_path) is None
    assert {file.parent for file in tmp_path.rglob("*.json")} == {tmp_path / "device_kinds"}


@pytest.mark.full
def test_this_cpu_is_measured_in_seconds(tmp_path: Path) -> None:
    quick = calibrate_cpu_quickly(tmp_path)
    assert calibrated(tmp_path) == quick
    assert quick.quick_seconds is not None
    assert "one round" in quick.provenance
    expect_a_measurement(quick)


@pytest.mark.soak
def test_a_full_measurement_replaces_a_quick_one(tmp_path: Path, scamp: Scamp) -> None:
    quick = calibrate_cpu_quickly(tmp_path)
    output = scamp(tmp_path, "calibrate", "--rounds", "1").stdout
    kind = calibrated(tmp_path)
    assert kind is not None and kind.quick_seconds is None
    assert quick.rates.keys() == kind.rates.keys()
    assert kind.name in output and kind.provenance.startswith("measured 20")
    expect_a_measurement(kind)


def expect_a_measurement(kind: DeviceKind) -> None:
    """Every kind of operation and collective of a CPU has a speed that a machine may have."""
    assert kind.rates["matmul"].per_flop > 0
    assert kind.rates["other"].per_op > 0
    assert kind.rates["sharded"].per_op > 0
    assert kind.links is not None and kind.links.paces.keys() == set(COLLECTIVES) - {"all_to_all"}
    assert all(pace.bytes_per_second.value < 1e12 for pace in kind.links.paces.values())
    assert kind.cores is not None and kind.cores.value > 0.5


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("echo 'Traceback …' >&2; echo 'no memory is left' >&2; exit 1", "cannot be measured: no memory is left"),
        ("exit 3", "cannot be measured: exit code 3"),
    ],
)
def test_a_child_that_fails_says_why_and_nothing_is_kept(
    source: str, words: str, tmp_path: Path, script: Callable[[str], None]
) -> None:
    script(source)
    with pytest.raises(InvalidInput, match=f"this machine {words}$"):
        calibrate_cpu(tmp_path, 1)
    assert calibrated(tmp_path) is None


def test_a_data_directory_that_takes_no_file_says_so(tmp_path: Path, script: Callable[[str], None]) -> None:
    (tmp_path / "device_kinds").write_text("a file, not a folder")
    script(PRINTS)
    with pytest.raises(InvalidInput, match=r"the speed of this machine cannot be kept: .*device_kinds"):
        calibrate_cpu(tmp_path, 1)


def test_a_file_of_another_version_or_a_damaged_one_counts_as_none(
    tmp_path: Path, script: Callable[[str], None]
) -> None:
    script(PRINTS)
    calibrate_cpu(tmp_path, 1)
    (file,) = (tmp_path / "device_kinds").iterdir()
    content = file.read_text()
    for text in (content[:-2], content.replace("matmul", "an operation that is gone"), ""):
        file.write_text(text)
        assert calibrated(tmp_path) is None
    file.write_text(content)
    assert calibrated(tmp_path) == KIND


def test_a_measured_kind_comes_before_the_catalogue_and_virtual_devices_are_the_cpu(
    tmp_path: Path, script: Callable[[str], None]
) -> None:
    clusters = {name: Cluster((Device("n/0", "n", 0, name, 96),)) for name in ("H100", "odd", VIRTUAL_KIND)}
    assert device_kind_of(tmp_path, clusters["H100"]) == catalogue.gpu("H100")
    assert device_kind_of(tmp_path, clusters["odd"]) is device_kind_of(tmp_path, clusters[VIRTUAL_KIND]) is None
    script(PRINTS)
    calibrate_cpu(tmp_path, 1)
    assert (
        device_kind_of(tmp_path, clusters[VIRTUAL_KIND]) == KIND and device_kind_of(tmp_path, clusters["H100"]) != KIND
    )
    calibrate_gpu(tmp_path, gpu(0, "NVIDIA H100 80GB HBM3"))
    assert device_kind_of(tmp_path, clusters["H100"]) == KIND


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (None, ""),
        (KIND, "a CPU: measured today"),
        (replace(KIND, quick_seconds=0.2), "a CPU was measured in 1 s by itself (measured today); “scamp calibrate”"),
        (replace(KIND, quick_seconds=8.4), "a CPU was measured in 8 s by itself"),
        (replace(KIND, verified=False), "a CPU: from its data sheet; “scamp calibrate” measures it"),
    ],
)
def test_how_a_speed_is_known_is_said(kind: DeviceKind | None, words: str) -> None:
    assert speed_words(kind).startswith(words) and bool(speed_words(kind)) == bool(words)
