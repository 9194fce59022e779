"""The queries of oneDNN give the formats and workspaces that torch uses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from estimators.tracing.device.cpu import onednn

pytestmark = pytest.mark.skipif(not onednn.is_available(), reason="needs a torch with a symbol table")
PLAIN = onednn.Geometry([1, 1], [1, 1], [1, 1], [1, 1], False)


def meta(*sizes: int) -> torch.Tensor:
    return torch.empty(sizes, device="meta")


def test_the_workspace_of_lstms_is_the_one_that_torch_returns() -> None:
    source, state = torch.randn(7, 3, 20), torch.zeros(1, 3, 24)
    weights = [torch.randn(96, 20), torch.randn(96, 24), torch.randn(96), torch.randn(96)]
    *_, kept = torch.ops.aten.mkldnn_rnn_layer(
        source, *weights, state, state, False, [], 2, 24, 1, True, False, False, True
    )
    assert onednn.lstm("forward", 7, 3, 20, 24, torch.float32).kept_bytes == kept.nbytes


def test_copies_hold_whole_blocks() -> None:
    primitive = onednn.convolution(
        "forward", meta(2, 20, 9, 9), meta(36, 20, 3, 3), meta(2, 36, 9, 9), PLAIN, bias=True, keeps_images=False
    )
    assert primitive.images.copied > meta(2, 20, 9, 9).nbytes
    assert not primitive.output.is_plain


def test_images_that_stay_as_they_are_need_no_copy() -> None:
    images = meta(2, 32, 9, 9).to(memory_format=torch.channels_last)
    primitive = onednn.convolution(
        "backward_data", images, meta(32, 32, 3, 3), images, PLAIN, bias=False, keeps_images=True
    )
    assert primitive.images.copied == primitive.output.copied == 0


def test_the_number_of_threads_is_as_before() -> None:
    num_threads = torch.get_num_threads()
    onednn.lstm("forward", 7, 3, 20, 24, torch.float32)
    assert torch.get_num_threads() == num_threads


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(onednn.NoKernel):
        onednn.convolution(
            "forward", meta(2, 20, 9, 9), meta(36, 20, 3, 3), meta(2, 36, 5, 5), PLAIN, bias=True, keeps_images=False
        )


def test_a_library_without_a_symbol_table_has_no_addresses(tmp_path: Path) -> None:
    other = tmp_path / "library.so"
    other.write_bytes(bytes(100))
    assert onednn._addresses(other, ("dnnl_version",)) is None
    assert onednn._addresses(tmp_path / "none.so", ("dnnl_version",)) is None
