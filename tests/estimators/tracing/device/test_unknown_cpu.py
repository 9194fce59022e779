"""Where oneDNN cannot be asked, peaks have no workspaces, and a margin in their place."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import Tensor, empty, nn

from estimators.model import Layout
from estimators.profile import ModelProfile
from estimators.trace import Trace, profile_of
from estimators.tracing import device
from estimators.tracing.device import CPU, CUDA, UNKNOWN_CPU, Device, device_for
from estimators.tracing.device.cpu import onednn
from estimators.tracing.device.cpu.recurrent import kept_bytes
from estimators.tracing.tracer import trace
from tests.traced import recipe


class Images(nn.Module):
    """Convolutions over eight channels, which oneDNN copies into blocks of 16."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 1, 3, padding=1)
        self.layers = nn.ModuleList()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x[:, None, None].expand(-1, 1, 32, -1)))
        return out[:, 0, 0]


def traced(of: Device) -> Trace:
    return trace(replace(recipe(Images), device=of), Layout(), 4)


def host_profile(of: Device) -> ModelProfile:
    return profile_of({Layout(): traced(of)})


@pytest.mark.skipif(not onednn.is_available(), reason="needs a torch with a symbol table")
def test_the_margin_stands_for_workspaces() -> None:
    on_cpu, on_unknown_cpu = (traced(of) for of in (CPU, UNKNOWN_CPU))
    assert on_cpu.curve.peak_bytes(4) > on_unknown_cpu.curve.peak_bytes(4)
    assert "workspace" not in on_unknown_cpu.curve.parts(4)
    assert on_cpu.object_bytes == on_unknown_cpu.object_bytes
    share = UNKNOWN_CPU.unknown_percent / 100
    peak = on_unknown_cpu.curve.peak_bytes(4) * (1 + share) + on_unknown_cpu.object_bytes
    assert host_profile(UNKNOWN_CPU).curves[Layout()].peak_bytes(4) == pytest.approx(peak, rel=1e-4)


def test_a_gpu_has_neither_objects_nor_a_margin() -> None:
    on_gpu = traced(CUDA)
    assert on_gpu.object_bytes == on_gpu.unknown_percent == 0


def test_where_onednn_cannot_be_asked_the_cpu_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "can_ask_onednn", lambda: False)
    assert device_for(on_cuda=False) is UNKNOWN_CPU and device_for(on_cuda=True) is CUDA
    monkeypatch.setattr(device, "can_ask_onednn", lambda: True)
    assert device_for(on_cuda=False) is CPU


@pytest.mark.skipif(not onednn.is_available(), reason="needs a torch with a symbol table")
@pytest.mark.parametrize(("inputs", "hidden"), [(128, 384), (768, 384), (100, 200)])
def test_an_lstm_keeps_no_more_than_is_assumed_where_onednn_cannot_be_asked(
    monkeypatch: pytest.MonkeyPatch, inputs: int, hidden: int
) -> None:

    sequence = empty(30, 7, inputs, device="meta")
    num_kept = kept_bytes(sequence, hidden)
    monkeypatch.setattr(onednn, "is_available", lambda: False)
    assert num_kept <= kept_bytes(sequence, hidden) <= 1.5 * num_kept
