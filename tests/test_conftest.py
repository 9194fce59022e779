"""The files that begin first exist, and a run that is ended leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.conftest import LONG, ROOT
from tests.services.processes import PATIENCE_SECONDS, until

HANGS = """
import os, subprocess, tempfile, time
from pathlib import Path
import pytest

@pytest.fixture(scope="session")
def started():
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder, subprocess.Popen(["sleep", "600"]) as child:
        yield child
        child.terminate()

def test_hangs(started):
    fork = os.fork()
    if fork == 0:
        time.sleep(600)
    (Path(__file__).parent / "pids").write_text(f"{started.pid} {fork}")
    (Path(__file__).parent / "done").touch()
    os.waitpid(fork, 0)
    time.sleep(600)
"""


def test_a_run_that_is_terminated_ends_its_processes_and_removes_its_folders(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(HANGS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", str(tmp_path)]
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # no part of this run
    run = subprocess.Popen(command, cwd=ROOT, env=alone, stdout=subprocess.PIPE, text=True)
    until(lambda: (tmp_path / "done").exists() or run.poll() is not None, "the processes of the test")
    assert run.poll() is None, run.communicate()[0]
    child, fork = map(int, (tmp_path / "pids").read_text().split())
    os.kill(fork, signal.SIGTERM)  # a fork of a test has no fixtures to end
    until(lambda: not Path(f"/proc/{fork}").exists(), "the end of the fork")
    run.terminate()
    said, _ = run.communicate(timeout=PATIENCE_SECONDS)
    assert run.returncode == 2, said
    assert not Path(f"/proc/{child}").exists() and not [path for path in tmp_path.iterdir() if path.name[:3] == "tmp"]


def test_files_that_begin_first_exist() -> None:
    """A file that was moved would begin last, and all would wait for it."""
    assert [file for file in LONG if not (ROOT / "tests" / f"{file}.py").is_file()] == []
