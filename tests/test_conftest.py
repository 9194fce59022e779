"""Which tests `make test` runs and in which order, and that a run that is ended leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.waiting import PATIENCE_SECONDS, until

ALONE = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TESTS_"))}
"""The environment of a run that is no part of this one."""
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


@pytest.mark.full
def test_a_run_that_is_terminated_ends_its_processes_and_removes_its_folders(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(HANGS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", str(tmp_path)]
    run = subprocess.Popen(command, cwd=ROOT, env=ALONE, stdout=subprocess.PIPE, text=True)
    until(lambda: (tmp_path / "done").exists() or run.poll() is not None, "the processes of the test")
    assert run.poll() is None, run.communicate()[0]
    child, fork = map(int, (tmp_path / "pids").read_text().split())
    os.kill(fork, signal.SIGTERM)  # a fork of a test has no fixtures to end
    until(lambda: not Path(f"/proc/{fork}").exists(), "the end of the fork")
    run.terminate()
    said, _ = run.communicate(timeout=PATIENCE_SECONDS)
    assert run.returncode == 2, said
    assert not Path(f"/proc/{child}").exists() and not [path for path in tmp_path.iterdir() if path.name[:3] == "tmp"]


MARKED = """
import pytest

def test_plain(): ...

@pytest.mark.ray
def test_ray(): ...

@pytest.mark.sample
@pytest.mark.full
@pytest.mark.parametrize("case", "ab")
def test_cases(case): ...

@pytest.mark.full
def test_full(): ...

@pytest.mark.soak
def test_soak(): ...
"""


@pytest.mark.full
def test_make_test_runs_what_is_quick_and_the_first_case_of_each_sample(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(MARKED)
    assert collected(tmp_path, "quick and not soak") == ["test_plain", "test_cases[a]"]
    assert collected(tmp_path, "not quick and not soak") == ["test_ray", "test_cases[b]", "test_full"]


@pytest.mark.full
def test_the_parts_of_what_takes_long_are_all_of_it_and_each_has_some_of_every_file(tmp_path: Path) -> None:
    for name in "ab":
        cases = f"@pytest.mark.parametrize('case', range(6))\ndef test_{name}(case): ..."
        (tmp_path / f"test_{name}.py").write_text(f"{MARKED}\n@pytest.mark.full\n{cases}\n")
    everything = collected(tmp_path, "not soak")
    parts = [collected(tmp_path, "not soak", TESTS_PART=f"{part}/3") for part in (1, 2, 3)]
    assert set().union(*map(set, parts)) == set(everything)
    for part in parts:
        assert [test.count("_a[") + test.count("_b[") for test in part].count(1) == 4
        assert part.count("test_plain") == 2 and part.count("test_cases[a]") == 2, "what is quick is in every part"


@pytest.mark.full
def test_in_processes_files_that_take_long_begin_first_and_those_with_ray_take_turns_with_others(
    tmp_path: Path,
) -> None:
    for name, mark in zip("abcdef", ["", "full", "full", "ray", "ray", ""], strict=True):
        line = f"pytestmark = pytest.mark.{mark}" if mark else ""
        (tmp_path / f"test_{name}.py").write_text(f"import pytest\n{line}\ndef test_{name}(): ...\n")
    order = collected(tmp_path, "", PYTEST_XDIST_WORKER="gw0")
    assert order == ["test_b", "test_d", "test_c", "test_e", "test_a", "test_f"]


IMPORTED = """
import os
from pathlib import Path

with (Path(__file__).parent / "imported").open("a") as file:
    file.write("once ")

def test_it(): (Path(__file__).parent / f"ran-{os.getpid()}").touch()
"""


@pytest.mark.full
def test_processes_of_a_run_are_forks_of_one_that_has_imported_all_tests(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"test_{name}.py").write_text(IMPORTED)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-n2", "--dist", "loadfile", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=ALONE, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "imported").read_text() == "once once " and len(list(tmp_path.glob("ran-*"))) == 2


def collected(folder: Path, marks: str, **variables: str) -> list[str]:
    """Names of the tests that a pytest of its own would run."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "tests.conftest", "-m", marks, str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=ALONE | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]
