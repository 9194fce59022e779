"""The memory that a process keeps is neither tensors nor gaps."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch

from estimators.model import MIB
from workloads.training.memory.process_memory import (
    HeldMemory,
    code_bytes,
    counted_bytes,
    high_water,
    host_copy,
    measure_held,
)


def test_what_is_kept_is_neither_tensors_nor_gaps_where_tensors_were() -> None:
    before = HeldMemory(100, tensor_bytes=10, free_bytes=5)
    assert HeldMemory(170, 40, 15).kept_since(before) == 170 - 100 - 30 - 10
    assert HeldMemory(170, 40, 1).kept_since(before) == 170 - 100 - 30, "a gap that was filled is not a debt"
    assert HeldMemory(110, 60, 5).kept_since(before) == 0, "tensors that took nothing, such as those of a mapped file"


def test_tensors_in_gaps_that_were_there_lower_what_is_kept_by_no_more_than_the_gaps() -> None:
    before = HeldMemory(100, tensor_bytes=10, free_bytes=5)
    assert HeldMemory(140, 51, 2).kept_since(before) == 40 - 41
    assert HeldMemory(110, 60, 2).kept_since(before) == -3


def test_gaps_where_libraries_kept_something_stay_theirs() -> None:
    before, after = HeldMemory(100, tensor_bytes=10, free_bytes=5), HeldMemory(150, 10, 35)
    assert [after.kept_since(before, kept) for kept in (0, 40, 60)] == [20, 40, 50]


def test_room_for_code_is_counted_by_the_system_and_is_no_data() -> None:
    before, counted, code = measure_held(), counted_bytes(), code_bytes()
    with mmap.mmap(-1, 8 * MIB, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC):
        assert code_bytes() - code == 8 * MIB and counted_bytes() - counted == pytest.approx(8 * MIB, abs=MIB)
        assert measure_held().data_bytes == pytest.approx(before.data_bytes, abs=MIB)


def test_work_that_is_not_the_candidates_adds_what_it_left_but_for_tensors() -> None:
    baseline, before = HeldMemory(100, 10, 5), HeldMemory(150, 40, 20)
    assert baseline.grown(before, HeldMemory(250, 60, 50)) == HeldMemory(180, 10, 35)
    assert baseline.grown(before, HeldMemory(150, 10, 50)) == HeldMemory(130, 10, 35)
    assert baseline.grown(before, HeldMemory(140, 40, 60)) == baseline


def test_a_shared_storage_counts_once() -> None:
    before = measure_held().tensor_bytes
    storage = torch.ones(8 * MIB, dtype=torch.uint8)
    part = storage[1:]
    assert measure_held().tensor_bytes - before == pytest.approx(8 * MIB, abs=MIB)
    del storage, part


def test_the_high_water_mark_is_of_its_own_time_alone() -> None:
    for num_mib in (60, 20):
        with high_water() as above_now:
            assert above_now() < 2 * MIB
            with mmap.mmap(-1, num_mib * MIB) as memory:
                memory[:: mmap.PAGESIZE] = bytes(len(memory) // mmap.PAGESIZE)
                assert above_now() < 2 * MIB
            assert above_now() == pytest.approx(num_mib * MIB, abs=2 * MIB)


def test_a_file_that_is_mapped_for_a_moment_is_not_taken_for_memory(tmp_path: Path) -> None:
    file = tmp_path / "samples"
    with file.open("wb+") as opened:
        opened.truncate(200 * MIB)
        with high_water() as above_now:
            with mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as samples:
                assert samples[100 * MIB] == 0
            assert above_now() < 10 * MIB


def test_a_copy_on_the_host_is_no_memory_of_the_process() -> None:
    tensor = torch.arange(MIB, dtype=torch.float64)
    before = measure_held()
    copy = host_copy(tensor)
    after = measure_held()
    assert torch.equal(copy, tensor)
    assert after.tensor_bytes == before.tensor_bytes
    assert abs(after.data_bytes - before.data_bytes) < MIB
    shared = torch.zeros(8 * MIB, dtype=torch.uint8).share_memory_()
    assert measure_held().tensor_bytes == before.tensor_bytes
    assert host_copy(torch.zeros(0, 3)).shape == (0, 3) and host_copy(shared[::2].to(torch.bfloat16)).sum() == 0
