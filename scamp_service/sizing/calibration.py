"""Measures the speed of this machine's devices in child processes, and keeps the results in the data directory."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter

from estimators.devices import catalogue
from estimators.devices.kind import DeviceKind
from placement.model import Cluster
from scamp_service.cluster.gpus import Gpu
from scamp_service.errors import InvalidInput
from scamp_service.files import write_atomically
from scamp_service.settings import ROOT

CPU = "cpu"
DEVICE_KIND = TypeAdapter(DeviceKind)


def calibrate_cpu(data_dir: Path, rounds: int) -> DeviceKind:
    """Measure the CPU in so many rounds and keep the result.

    Raises ``InvalidInput`` with the child's last line when that fails.
    """
    return _measured(_file(data_dir, CPU), ["--rounds", str(rounds)], "")


def calibrate_gpu(data_dir: Path, gpu: Gpu) -> DeviceKind:
    """Measure a GPU and keep the result, under the catalogue's name of its kind, or else under the product's name.

    Raises ``InvalidInput`` with the child's last line when that fails.
    """
    name = gpu.kind or gpu.name
    return _measured(_file(data_dir, name), ["--gpu", gpu.uuid, "--name", name], gpu.uuid)


def one_of_each(gpus: Sequence[Gpu]) -> list[Gpu]:
    """For each product, the GPU with the least memory held by others. Skips GPUs in MIG mode: CUDA shows a part."""
    idlest: dict[str, Gpu] = {}
    for gpu in sorted(gpus, key=lambda gpu: gpu.other_processes_mib):
        if not gpu.mig:
            idlest.setdefault(gpu.name, gpu)
    return list(idlest.values())


def _measured(file: Path, arguments: Sequence[str], visible: str) -> DeviceKind:
    command = [sys.executable, "-m", "workloads.calibration.measure", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": visible}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        words = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise InvalidInput(f"this machine cannot be calibrated: {words[-1]}")
    line = done.stdout.splitlines()[-1]
    kind = DEVICE_KIND.validate_json(line)
    write_atomically(file, line.encode())
    return kind


def calibrated(data_dir: Path, name: str = CPU) -> DeviceKind | None:
    """Latest measurement of the CPU or of a kind of GPU; None when there is none, or its file is of another version."""
    try:
        return DEVICE_KIND.validate_json(_file(data_dir, name).read_bytes())
    except (OSError, ValueError):
        return None


def kind_of(data_dir: Path, cluster: Cluster) -> DeviceKind | None:
    """Device kind of a cluster's first device, as measured or as the catalogue has it; None if neither knows it."""
    if not cluster.has_gpus:
        return calibrated(data_dir)
    name = cluster.devices[0].kind
    with contextlib.suppress(ValueError):
        return calibrated(data_dir, name) or catalogue.gpu(name)
    return None


def _file(data_dir: Path, name: str) -> Path:
    return data_dir / "device_kinds" / f"{re.sub(r'[^a-z0-9.]+', '-', name.strip().lower())}.json"
