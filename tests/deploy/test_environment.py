"""The set-up of a checkout, for real but small: its own pyproject.toml, and packages made here instead of an index."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PYPROJECT = """\
[project]
name = "tiny"
requires-python = ">={python}"
dependencies = ["torch>=2.13", "alpha"]
[dependency-groups]
dev = ["beta"]
"""


def wheel(index: Path, name: str, version: str, *requires: str) -> None:
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{name}.py": f"version = {version!r}\n",
        f"{info}/METADATA": metadata + "".join(f"Requires-Dist: {line}\n" for line in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(index / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in [*files.items(), (f"{info}/RECORD", record)]:
            archive.writestr(path, text)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    index = tmp_path_factory.mktemp("index")
    wheel(index, "torch", "2.13.0+cpu", "nvidia_nccl", "gamma")
    for name in ("nvidia_nccl", "gamma", "beta"):
        wheel(index, name, "1.0")
    wheel(index, "alpha", "1.0")
    wheel(index, "alpha", "2.0")
    return index


def new_checkout(path: Path) -> Path:
    (path / "deploy").mkdir(parents=True)
    for name in ("Makefile", "deploy/environment.py", "deploy/scamp"):
        shutil.copy(ROOT / name, path / name)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    (path / "pyproject.toml").write_text(PYPROJECT.format(python=python))
    (path / "constraints.txt").write_text("alpha==1.0\nbeta==1.0\ngamma==1.0\ntorch==2.13.0\n")
    return path


def command(root: Path, index: Path, *target: str) -> tuple[list[str], dict[str, str]]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "MAKE", "MFLAGS"))}
    environment = kept | {"PIP_ARGS": f"--no-index --find-links={index}", "PIP_CONFIG_FILE": os.devnull}
    return ["make", "-C", str(root), f"PYTHON={sys.executable}", *target], environment


def make(root: Path, index: Path, *target: str) -> subprocess.CompletedProcess[str]:
    arguments, environment = command(root, index, *target)
    return subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=120)


def version_of(root: Path, package: str) -> str:
    code = f"import {package}; print({package}.version)"
    return subprocess.run([root / ".venv/bin/python", "-c", code], capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory, index: Path) -> Path:
    """A checkout that is set up. A test may change it, as long as one more ``make setup`` heals it."""
    root = new_checkout(tmp_path_factory.mktemp("checkout") / "with a space")
    done = make(root, index, "setup")
    assert done.returncode == 0, done.stdout + done.stderr
    return root


def test_setup_installs_the_pinned_torch_before_anything_else_and_no_tool_of_the_tests(checkout: Path) -> None:
    installs = [line for line in (checkout / ".venv/setup.log").read_text().splitlines() if " pip install " in line]
    assert installs[0].endswith("--no-deps torch==2.13.0")
    assert "alpha" in installs[1]
    assert version_of(checkout, "alpha") == "1.0", "constraints.txt decides, not the newest version"
    assert version_of(checkout, "gamma") == "1.0", "what torch needs comes with the rest"
    assert version_of(checkout, "beta") == ""


def test_a_second_setup_does_nothing_and_takes_under_a_second(checkout: Path, index: Path) -> None:
    assert make(checkout, index, "setup").returncode == 0
    log = (checkout / ".venv/setup.log").read_text()
    began = time.monotonic()
    done = make(checkout, index, "setup")
    assert time.monotonic() - began < 1.0
    assert done.returncode == 0
    assert (checkout / ".venv/setup.log").read_text() == log


def test_files_that_are_newer_but_the_same_install_nothing(checkout: Path, index: Path) -> None:
    assert make(checkout, index, "setup").returncode == 0
    log = (checkout / ".venv/setup.log").read_text()
    os.utime(checkout / "pyproject.toml")
    assert make(checkout, index, "setup").returncode == 0
    assert (checkout / ".venv/setup.log").read_text() == log
    assert make(checkout, index, "-q", ".venv/.ready").returncode == 0, "the stamp is newer again"


def test_a_changed_pin_is_installed(checkout: Path, index: Path) -> None:
    constraints = checkout / "constraints.txt"
    before = constraints.read_text()
    try:
        constraints.write_text(before.replace("alpha==1.0", "alpha==2.0"))
        assert make(checkout, index, "setup").returncode == 0
        assert version_of(checkout, "alpha") == "2.0"
    finally:
        constraints.write_text(before)


def test_an_environment_whose_python_is_gone_is_made_anew(checkout: Path, index: Path) -> None:
    (checkout / ".venv/bin/python").unlink()
    (checkout / ".venv/bin/python").symlink_to("/nowhere/python3")
    done = make(checkout, index, "setup")
    assert done.returncode == 0, done.stdout + done.stderr
    assert version_of(checkout, "alpha") == "1.0"


def test_a_checkout_that_moved_needs_an_environment_of_its_own(checkout: Path, index: Path, tmp_path: Path) -> None:
    moved = new_checkout(tmp_path / "moved")
    (moved / ".venv").symlink_to(checkout / ".venv")
    assert make(checkout, index, "-q", ".venv/.ready").returncode == 0
    assert make(moved, index, "-q", ".venv/.ready").returncode == 1


def test_after_an_interrupt_two_at_once_make_one_environment(checkout: Path, index: Path) -> None:
    shutil.rmtree(next((checkout / ".venv/lib").glob("python*/site-packages/pip")))
    (checkout / ".venv/.ready").unlink()
    arguments, environment = command(checkout, index, "setup")
    both = [
        subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    log = (checkout / ".venv/setup.log").read_text()  # begun anew with the environment
    assert log.count(" -m venv ") == 1
    assert log.count(" pip install ") == 2
    assert sum("waiting" in text for text in said) == 1


def test_the_lock_has_the_newest_versions_and_neither_a_build_of_torch_nor_what_hangs_on_it(
    checkout: Path, index: Path
) -> None:
    constraints = checkout / "constraints.txt"
    before = constraints.read_text()
    try:
        done = make(checkout, index, "lock")
        assert done.returncode == 0, done.stdout + done.stderr
        lines = [line for line in constraints.read_text().splitlines() if not line.startswith("#")]
        assert lines == ["alpha==2.0", "beta==1.0", "gamma==1.0", "torch==2.13.0"]
    finally:
        constraints.write_text(before)


def test_the_lock_is_only_made_on_the_oldest_python(checkout: Path, index: Path) -> None:
    pyproject = checkout / "pyproject.toml"
    before, constraints = pyproject.read_text(), (checkout / "constraints.txt").read_text()
    try:
        pyproject.write_text(PYPROJECT.format(python="3.2"))
        done = make(checkout, index, "lock")
        assert done.returncode != 0
        assert "make lock PYTHON=python3.2" in done.stderr
        assert (checkout / "constraints.txt").read_text() == constraints
    finally:
        pyproject.write_text(before)


def test_a_package_that_is_not_there_stops_the_setup_with_advice(checkout: Path, index: Path) -> None:
    pyproject = checkout / "pyproject.toml"
    before = pyproject.read_text()
    try:
        pyproject.write_text(before.replace('"alpha"', '"alpha", "absent"'))
        done = make(checkout, index, "setup")
        assert done.returncode != 0
        assert "No matching distribution found for absent" in done.stderr
        assert "make setup PYTHON=python3.12" in done.stderr
        assert make(checkout, index, "-q", ".venv/.ready").returncode != 0, "no stamp says that all is well"
    finally:
        pyproject.write_text(before)


@pytest.mark.parametrize("version", [None, (3, 10), (3, 14)])
def test_without_a_python_make_says_which_and_how_to_get_it(version: tuple[int, int] | None, tmp_path: Path) -> None:
    root, python = new_checkout(tmp_path / "bare"), tmp_path / "python3"
    if version:  # a Python that takes itself for this version
        python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "import sys; sys.version_info = {version}; $2"\n')
        python.chmod(0o755)
    done = subprocess.run(["make", "-C", str(root), "setup", f"PYTHON={python}"], capture_output=True, text=True)
    assert done.returncode != 0
    assert "ScaMP needs Python 3.11, 3.12 or 3.13" in done.stderr
    assert "apt-get install python3" in done.stderr
    assert not (root / ".venv").exists()


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk is full"),
        (
            "WARNING: Retrying after connection broken by 'NewConnectionError(Temporary failure in name resolution)'\n"
            "ERROR: No matching distribution found for torch==2.13.0",
            "cannot be reached",
        ),
        ("ERROR: No matching distribution found for torch==2.13.0", "TORCH_INDEX_URL"),
        ("ERROR: ResolutionImpossible: for help visit https://pip.pypa.io", "make lock"),
        ("The virtual environment was not created because ensurepip is not available.", "-venv"),
        ("PermissionError: [Errno 13] Permission denied: '/checkout/.venv'", "cannot be written"),
    ],
)
def test_every_common_failure_says_what_to_do(said: str, advice: str) -> None:
    code = "import sys, environment; print(environment.failure('headline', sys.argv[1]).splitlines()[-1])"
    shown = subprocess.run(
        [sys.executable, "-c", code, said], cwd=ROOT / "deploy", capture_output=True, text=True, check=True
    )
    assert advice in shown.stdout
