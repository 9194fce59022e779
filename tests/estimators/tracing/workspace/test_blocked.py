"""Copies in blocked formats are rounded up as oneDNN rounds them."""

from __future__ import annotations

import pytest
import torch

from estimators.tracing.workspace import onednn, workspace_of
from estimators.tracing.workspace.products import packed_bytes


@pytest.fixture(autouse=True)
def stripped(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a torch whose oneDNN cannot be asked."""
    monkeypatch.setattr(onednn, "is_available", lambda: False)


@pytest.mark.parametrize(("capability", "as_product"), [("AVX2", True), ("AVX512", False), ("AVX512_BF16", False)])
def test_gradients_for_images_smaller_than_the_kernel_are_products_where_there_is_no_avx512(
    monkeypatch: pytest.MonkeyPatch, capability: str, as_product: bool
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    images, weight = torch.empty(2, 64, 2, 2), torch.empty(64, 64, 3, 3)
    options = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False])
    _, of_weight = workspace_of(
        torch.ops.aten.convolution_backward.default, (images, images, weight, *options), {}, None
    )
    kernel = weight.nbytes
    product = 4 * kernel + 9 * 64 * 4 * 4 + packed_bytes(9 * 64, 64, 4, "TN", 4)
    assert of_weight[1] == (product if as_product else kernel)


def test_copies_are_rounded_up_to_whole_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    images, weight = torch.empty(2, 20, 9, 9), torch.empty(40, 20, 3, 3)
    args = (images, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    ((before, during),) = workspace_of(torch.ops.aten.convolution.default, args, {}, torch.empty(2, 40, 9, 9))
    output_bytes = 4 * 2 * 48 * 81
    assert (before, during) == (output_bytes + 4 * 2 * 32 * 81 + 4 * 48 * 32 * 9, output_bytes)


def test_nothing_is_known_of_16_bits() -> None:
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("needs a CPU on which oneDNN computes in 16 bits")
    images, weight = torch.empty(2, 8, 9, 9).bfloat16(), torch.empty(8, 8, 3, 3).bfloat16()
    args = (images, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    assert workspace_of(torch.ops.aten.convolution.default, args, {}, images) == ()
