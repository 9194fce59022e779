"""Calibration of a GPU, without one: what is put together, and what is said about its rounds."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter

from estimators.devices.catalogue import gpu
from estimators.devices.kind import DeviceKind, Rate
from estimators.model import MIB
from workloads.calibration import measure as calibrate
from workloads.calibration.probes import ProcessorTime, steps


class _Slowing(ProcessorTime):
    """As if whole steps took these seconds, one after another."""

    def __init__(self, *taken: float) -> None:
        self._taken = iter(taken)

    def seconds(self, run: Callable[[], object]) -> float:
        return next(self._taken)


@pytest.mark.parametrize(
    ("taken", "words"),
    [
        ((1.0, 1.0, 1.04, 1.04, 1.0, 1.0), "rounds 4.0% apart"),
        ((1.0, 1.0, 1.0, 1.0, 1.5, 1.5), "rounds 50.0% apart: measure again when the machine is quiet"),
    ],
)
def test_how_much_the_rounds_differed_is_told_and_what_to_do(
    taken: tuple[float, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "steps", lambda device, quick: itertools.islice(steps(device), 1))
    assert calibrate._rates(calibrate.CPU, _Slowing(*taken))[1] == words


def test_a_calibrated_gpu_has_what_was_measured_and_for_the_rest_what_is_known_of_its_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = iter([1000 * MIB, 2000 * MIB])
    answers: dict[str, Any] = {
        "synchronize": None,
        "get_device_name": "NVIDIA H100 80GB HBM3",
        "mem_get_info": (0, 80_000 * MIB),
        "memory_reserved": 300 * MIB,
        "memory_allocated": 64 * MIB,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, answer=answer: answer)
    monkeypatch.setattr(calibrate, "held_bytes", lambda uuid: next(held))
    monkeypatch.setattr(calibrate, "warm_up", lambda device, mesh: None)
    monkeypatch.setattr(calibrate, "_rates", lambda device, clock: ({"matmul": Rate(1e-6, 1e-14, 0.0)}, "steady"))
    kind = calibrate.calibrate_gpu("GPU-1", "H100")
    assert kind.memory is not None
    assert kind.verified
    assert kind.links == gpu("H100").links
    sizes = {name: (figure.value / MIB, figure.provenance) for name, figure in kind.figures()}
    assert sizes["total_bytes"] == (80_000, "measured") and sizes["context_bytes"] == (700, "measured")
    assert sizes["workspaces_bytes"] == (64, "measured") and sizes["gang_bytes"] == (688, "literature")
    assert TypeAdapter(DeviceKind).validate_json(json.dumps(asdict(kind))) == kind
