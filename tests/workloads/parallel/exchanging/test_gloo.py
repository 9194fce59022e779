"""Collectives that hold no memory after they return, and give what torch's own give."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from threading import Timer

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor

from benchmarks.curves.forks import in_forks
from estimators.tracing.device import CPU
from tests.waiting import PATIENCE_SECONDS
from workloads.parallel.exchanging.gloo import released, released_collectives


def test_a_collective_waits_until_no_other_thread_holds_its_tensor() -> None:
    tensor = torch.zeros(4)
    with released(tensor):
        held = [tensor[1:]]
        Timer(0.05, held.clear).start()
    assert not held


def test_all_reduces_of_others_wait_too_unless_they_are_asynchronous(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor, held = torch.zeros(4), list[Tensor]()

    def start(tensor: Tensor, async_op: bool) -> None:
        held.append(tensor[1:])
        Timer(0.05, held.clear).start()

    monkeypatch.setattr(dist, "all_reduce", start)
    with released_collectives():
        dist.all_reduce(tensor)
        assert not held
        dist.all_reduce(tensor, async_op=True)
        assert held


def on_rank(rank: int, folder: Path) -> dict[str, list[bool]]:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    tensor = torch.arange(12.0).view(4, 3).t() + 10 * rank  # not contiguous
    theirs = collected(tensor)
    with released_collectives():
        ours = collected(tensor)
    dist.destroy_process_group()
    return {"equal": [torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True)]}


def collected(tensor: Tensor) -> list[Tensor]:
    group = dist.group.WORLD
    assert group is not None
    pending = [
        functional.all_reduce(tensor, "sum", group),
        functional.all_reduce(tensor, "max", group),
        functional.all_gather_single(tensor, 1, group),
        functional.reduce_scatter_single(tensor, "sum", 1, group),
    ]
    return [functional.wait_tensor(tensor) for tensor in pending]


def test_collectives_of_dtensors_give_what_those_of_torch_give(tmp_path: Path) -> None:
    answers = in_forks([partial(on_rank, rank, tmp_path) for rank in range(2)], PATIENCE_SECONDS)
    assert answers == [{"equal": [True] * 4}] * 2


def test_a_trace_counts_the_copy_that_ranks_add_up_in_a_reduce_scatter() -> None:
    operation, tensor = torch.ops._c10d_functional.reduce_scatter_tensor.default, torch.empty(8, 4)
    assert CPU.workspace(operation, (tensor, "sum", 2, "group"), {}, torch.empty(4, 4)) == ((0, 128),)
