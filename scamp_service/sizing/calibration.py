"""Measures the speed of this machine's devices in child processes, and keeps the results in the data directory.

Results of a CPU are kept by everything that changes them (``measured_on``): on another CPU, or with another torch,
there is none yet.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from pydantic import TypeAdapter

from estimators.devices import catalogue
from estimators.devices.kind import DeviceKind
from placement.model import VIRTUAL_KIND, Cluster
from scamp_service.cluster.devices.gpus import Gpu
from scamp_service.errors import InvalidInput
from scamp_service.files import write_atomically
from scamp_service.settings import ROOT
from workloads.calibration.machine import measured_on

CPU = "cpu"
QUICK = "--quick"
COMMAND = [sys.executable, "-m", "workloads.calibration.measure"]
POLL_SECONDS = 0.5
STOP_SECONDS = 0.5
_LOCK = "\0scamp-calibration"
DEVICE_KIND = TypeAdapter(DeviceKind)


def calibrate_cpu(data_dir: Path, rounds: int) -> DeviceKind:
    """Measure the CPU in this many rounds and keep the result.

    Raises ``InvalidInput`` with the child's last line when that fails.
    """
    return _measured(_file(data_dir, CPU), ["--rounds", str(rounds)])


def calibrate_cpu_quickly(data_dir: Path, patience_seconds: float = float("inf")) -> DeviceKind:
    """Measure the CPU in some seconds, less exactly, and keep the result.

    Raises ``InvalidInput`` as above, and when it takes longer than ``patience_seconds``.
    """
    return _measured(_file(data_dir, CPU), [QUICK], patience_seconds=patience_seconds)


def quick_measurement(data_dir: Path, preexec: Callable[[], None]) -> Measurement:
    """Like ``calibrate_cpu_quickly``, in a process that calls ``preexec`` first. The caller holds the lock."""
    return Measurement(_file(data_dir, CPU), [QUICK], preexec=preexec)


def calibrate_gpu(data_dir: Path, gpu: Gpu) -> DeviceKind:
    """Measure a GPU and keep the result, under the catalogue's name of its kind, or else under the product's name.

    Raises ``InvalidInput`` with the child's last line when that fails.
    """
    name = gpu.kind or gpu.name
    return _measured(_file(data_dir, name), ["--gpu", gpu.uuid, "--name", name], gpu.uuid)


def one_of_each(gpus: Sequence[Gpu]) -> list[Gpu]:
    """The GPU of each product with the least memory held by others, without those in MIG mode or with memory errors."""
    idlest: dict[str, Gpu] = {}
    for gpu in sorted(gpus, key=lambda gpu: gpu.other_processes_mib):
        if not gpu.mig and not gpu.worn_out:
            idlest.setdefault(gpu.name, gpu)
    return list(idlest.values())


def _measured(
    file: Path, arguments: Sequence[str], visible: str = "", patience_seconds: float = float("inf")
) -> DeviceKind:
    until = time.monotonic() + patience_seconds
    while (lock := lock_machine()) is None:
        _expect_time(until, patience_seconds)
        time.sleep(POLL_SECONDS)
    with lock, Measurement(file, arguments, visible) as measurement:
        while (kind := measurement.result(POLL_SECONDS)) is None:
            _expect_time(until, patience_seconds)
        return kind


def _expect_time(until: float, patience_seconds: float) -> None:
    if time.monotonic() > until:
        raise InvalidInput(f"measuring this machine took more than {patience_seconds:g} s, as other processes use it")


class Measurement:
    """A child process that measures, as a context manager that ends it."""

    def __init__(
        self,
        file: Path,
        arguments: Sequence[str],
        visible: str = "",
        preexec: Callable[[], None] | None = None,
    ) -> None:
        """Start the child. ``preexec`` runs in it first."""
        self._file, self._is_quick, self._began = file, QUICK in arguments, time.monotonic()
        self._child = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": visible},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # its ranks end with it
            preexec_fn=preexec,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def result(self, patience_seconds: float) -> DeviceKind | None:
        """The measurement, which is also kept; None if there is nothing yet.

        Raises ``InvalidInput`` with the child's last line when it has failed, or its result cannot be kept.
        """
        try:
            output, errors = self._child.communicate(timeout=patience_seconds)
        except subprocess.TimeoutExpired:
            return None
        if self._child.returncode:
            words = errors.strip().splitlines() or [f"exit code {self._child.returncode}"]
            raise InvalidInput(f"this machine cannot be measured: {words[-1]}")
        kind = DEVICE_KIND.validate_json(output.splitlines()[-1])
        kind = replace(kind, quick_seconds=self.seconds) if self._is_quick else kind
        try:
            self._file.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self._file, DEVICE_KIND.dump_json(kind))
        except OSError as error:
            raise InvalidInput(f"the speed of this machine cannot be kept: {error}") from error
        return kind

    def stop(self) -> None:
        """End the child and its ranks. No effect once it has ended."""
        for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, None)):
            if self._child.poll() is None:
                os.killpg(self._child.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._child.communicate(timeout=seconds)


def lock_machine() -> socket.socket | None:
    """A lock that one process of this host may hold, so that measurements do not disturb each other; None if one does.

    It is released when it is closed or its process ends: an abstract name of a Unix socket needs no file.
    """
    lock = socket.socket(socket.AF_UNIX)
    try:
        lock.bind(_LOCK)
    except OSError:
        lock.close()
        return None
    return lock


def calibrated(data_dir: Path, name: str = CPU) -> DeviceKind | None:
    """Latest measurement of the CPU or of a kind of GPU; None when there is none, or its file is of another version."""
    try:
        return DEVICE_KIND.validate_json(_file(data_dir, name).read_bytes())
    except (OSError, ValueError):
        return None


def device_kind_of(data_dir: Path, cluster: Cluster) -> DeviceKind | None:
    """Fastest device kind of a cluster, as measured or as the catalogue has it; None if neither knows any."""
    if not cluster.has_gpus:
        return calibrated(data_dir)
    kinds = device_kinds_of(data_dir, cluster).values()
    return min(kinds, key=lambda kind: kind.rates["matmul"].per_flop, default=None)


def device_kinds_of(data_dir: Path, cluster: Cluster) -> dict[str, DeviceKind]:
    """Kinds of GPUs of a cluster by name, as measured or as the catalogue has them; unknown ones are left out."""
    kinds = {}
    for name in dict.fromkeys(device.kind for device in cluster.devices if device.kind != VIRTUAL_KIND):
        with contextlib.suppress(ValueError):
            kinds[name] = calibrated(data_dir, name) or catalogue.gpu(name)
    return kinds


def speed_words(kind: DeviceKind | None) -> str:
    """How the speed of devices of this kind is known, in words; empty if it is not."""
    if kind is None:
        return ""
    if kind.quick_seconds is not None:
        seconds = f"{max(1.0, kind.quick_seconds):.0f} s"
        return f"{kind.name} was measured in {seconds} by itself ({kind.provenance}); “scamp calibrate” is more exact"
    if kind.verified:
        return f"{kind.name}: {kind.provenance}"
    return f"{kind.name}: from its data sheet; “scamp calibrate” measures it"


def _file(data_dir: Path, name: str) -> Path:
    name = f"{CPU} {measured_on()}" if name == CPU else name
    return data_dir / "device_kinds" / f"{re.sub(r'[^a-z0-9.]+', '-', name.strip().lower())}.json"
