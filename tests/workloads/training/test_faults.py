"""Failed storage is a fault of the host, and errors of the workload are not."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest
from torch.distributed.checkpoint.api import CheckpointException, _wrap_exception

from workloads.training.faults import FAULTS, MOST_CAUSES, StorageFault, causes_of, host_fault, storage_error

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/x")


@pytest.mark.parametrize("number", sorted(FAULTS))
def test_a_full_or_failing_file_system_is_a_fault_of_the_host(number: int) -> None:
    assert host_fault(OSError(number, os.strerror(number))) == os.strerror(number)


def test_a_fault_is_found_behind_other_errors() -> None:
    outer = RuntimeError("could not log")
    outer.__cause__ = FULL
    assert host_fault(outer) == "No space left on device: /data/x"
    assert host_fault(CheckpointException("save", {1: _wrap_exception(FULL)})) == "No space left on device: /data/x"
    assert host_fault(StorageFault("not shared")) == "not shared"


def test_errors_of_the_workload_are_not_faults() -> None:
    no_data = FileNotFoundError(errno.ENOENT, "no data set")
    for error in (ValueError("x"), no_data, ConnectionResetError(), SystemExit()):
        assert host_fault(error) == ""


def test_any_failed_file_operation_on_a_checkpoint_is_a_storage_error_but_a_lost_connection_is_not() -> None:
    assert storage_error(PermissionError(errno.EACCES, "Permission denied", "/x")) == "Permission denied: /x"
    assert storage_error(ConnectionResetError(errno.ECONNRESET, "reset")) == ""
    assert storage_error(RuntimeError("PytorchStreamWriter failed writing file data/0\nstack")).endswith("data/0")


@pytest.mark.parametrize(
    "words", ["[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598", "basic_ios: iostream error"]
)
def test_a_disk_that_fills_in_the_middle_of_a_file_is_a_storage_error(words: str) -> None:
    failed = CheckpointException("save", {1: _wrap_exception(RuntimeError(words))})
    assert storage_error(failed) == f"is the disk full or failing? {words}"


def test_errors_that_cause_each_other_end() -> None:
    first, second = ValueError(), ValueError()
    first.__context__, second.__context__ = second, first
    assert host_fault(first) == "" and list(causes_of(first)) == [first, second]
    third = ValueError()
    third.__cause__, first.__cause__ = third, third
    assert list(causes_of(second)) == [second, first, third]


def test_long_chains_and_attributes_of_any_kind_do_no_harm() -> None:
    newest: BaseException = ValueError()
    for _ in range(2 * MOST_CAUSES):
        earlier, newest = newest, ValueError()
        newest.__context__ = earlier
    assert len(list(causes_of(newest))) == MOST_CAUSES
    odd: Any = ValueError()
    for failures in ([1], {0: 3}, {0: (None,)}, "x"):
        odd._failures = failures
        assert host_fault(odd) == ""
