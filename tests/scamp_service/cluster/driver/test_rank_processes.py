"""The end of what a worker wrote, from a folder in which users' code writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import ray

from scamp_service.cluster.driver.rank_processes import STDERR_BYTES, stderr_end


class Node:
    def __init__(self, logs: Path) -> None:
        self._logs = logs

    def get_logs_dir_path(self) -> str:
        return str(self._logs)


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    logs = tmp_path / "ray/session/logs"
    logs.mkdir(parents=True)
    monkeypatch.setattr(ray._private.worker, "_global_node", Node(logs))
    return logs


def test_the_end_of_stderr_is_read_of_this_process_alone(logs: Path) -> None:
    (logs / "worker-a-7.err").write_text("x" * STDERR_BYTES + "the end")
    (logs / "worker-b-8.err").write_text("another")
    assert stderr_end(7).endswith("xthe end") and len(stderr_end(7)) == STDERR_BYTES
    assert stderr_end(9) == ""
    (logs / "worker-stack-7.err").write_text("its stack")
    (logs / "worker-ff-7.err").write_text("in a hurry")
    assert stderr_end(7).endswith("in a hurryits stack")


@pytest.mark.parametrize("trap", ["link", "fifo", "logs", "ray"])
def test_no_file_of_the_host_is_taken_for_stderr(logs: Path, tmp_path: Path, trap: str) -> None:
    outside = tmp_path / "outside"
    (outside / "session/logs").mkdir(parents=True)
    for folder in (outside, outside / "session/logs"):
        (folder / "worker-a-7.err").write_text("secret")
    if trap == "link":
        (logs / "worker-a-7.err").symlink_to(outside / "worker-a-7.err")
    elif trap == "fifo":
        os.mkfifo(logs / "worker-a-7.err")
    elif trap == "logs":
        logs.rmdir()
        logs.symlink_to(outside)
    else:
        (tmp_path / "ray").rename(tmp_path / "moved")
        (tmp_path / "ray").symlink_to(outside)
    assert trap == "fifo" or (logs / "worker-a-7.err").read_text() == "secret"
    assert stderr_end(7) == ""
