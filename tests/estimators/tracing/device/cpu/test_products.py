"""Products of matrices take the workspace that they allocated when measured."""

from __future__ import annotations

import pytest
import torch

from estimators.tracing.device.cpu.products import packed_bytes


@pytest.mark.parametrize(
    ("channels", "side", "kib"),
    [((256, 256), 2, 0), ((64, 448), 2, 0), ((64, 512), 1, 0), ((64, 512), 2, 288), ((256, 512), 2, 1152),
     ((256, 512), 8, 1344), ((256, 512), 14, 2058), ((256, 512), 18, 1701), ((256, 512), 32, 2016)],
)  # fmt: skip
def test_products_of_many_channels_are_packed(
    monkeypatch: pytest.MonkeyPatch, channels: tuple[int, int], side: int, kib: int
) -> None:
    """Each number is within 75 KiB of what a process allocated beyond the rest, on an AVX2 CPU."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    num_inputs, num_outputs = channels
    packed = packed_bytes(9 * num_inputs, num_outputs, side * side, "TN", side * side)
    assert packed == pytest.approx(kib * 1024, abs=30 * 1024)


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "transposed", "allocated"),
    [
        (2048, 800, 256, "NN", 2524864),
        (2048, 256, 800, "NT", 74176),
        (512, 1, 99, "NN", 0),
        (576, 8, 64, "TN", 0),
        (768, 18, 1, "TN", 422176),
    ],
)
def test_products_take_what_they_allocated_on_a_cpu_with_avx512(
    monkeypatch: pytest.MonkeyPatch, rows: int, columns: int, depth: int, transposed: str, allocated: int
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert packed_bytes(rows, columns, depth, transposed) == allocated


def test_products_in_16_bits_are_twice_as_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert packed_bytes(64, 32, 5120, "NN", 64, itemsize=2) == 213312  # as allocated
