"""The checkout as a whole: its packages, its lock, its targets, and the command that leads into it."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("scamp", "api", "scamp_service", "workloads", "placement", "estimators")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def locked() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line) for line in lines), "one exact version a line"
    return {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_resolves_inside_the_repository(package: str) -> None:
    assert Path(str(importlib.import_module(package).__file__)).resolve() == ROOT / package / "__init__.py"


@pytest.mark.parametrize("line", PROJECT["project"]["dependencies"][1:] + PROJECT["dependency-groups"]["dev"])
def test_the_lock_has_one_version_of_every_dependency_and_it_is_an_allowed_one(line: str) -> None:
    requirement = Requirement(line)
    version = locked()[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(version), f"{line}, but constraints.txt has {version}: run `make lock`"


def test_torch_is_pinned_to_the_release_that_everything_was_measured_on() -> None:
    assert locked()["torch"] == "2.13.0"


def test_help_lists_every_target_and_is_what_make_alone_does() -> None:
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets is not None
    shown = subprocess.run(["make", "-C", str(ROOT)], capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"^ +make ([\w-]+) +\S", shown, re.MULTILINE)) == set(targets.group(1).split())


@pytest.mark.parametrize(
    ("target", "commands"),
    [
        ("setup", ["deploy/environment.py setup"]),
        ("run", ["deploy/environment.py setup", "exec .venv/bin/python -m scamp_service demo"]),
        ("static", ["setup --dev", "ruff check", "oxlint", "-m mypy", "lint-imports"]),
        ("pytest", ["setup --dev", "-m pytest", '-m "quick and']),
        ("rest", ["setup --dev", "-m pytest", '-m "not quick and']),
        ("test-all", ["setup --dev", '-m "quick and', '-m "not quick and']),
        ("ci", ["setup --dev", '-m "quick and', '-m "not quick and']),
        ("third", ["TESTS_PART=", "setup --dev", '-m "not quick and']),
        ("lock", ["deploy/environment.py lock"]),
        ("bench", ["setup", "--quick"]),
    ],
)
def test_on_a_new_checkout_each_target_sets_up_first_and_then_does_its_work(
    target: str, commands: list[str], tmp_path: Path
) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "deploy", "benchmarks"):
        (tmp_path / name).symlink_to(ROOT / name)
    planned = subprocess.run(["make", "-n", "-C", str(tmp_path), target], capture_output=True, text=True)
    assert planned.returncode == 0, planned.stderr
    places = [planned.stdout.find(command) for command in commands]
    assert -1 not in places, planned.stdout
    assert places == sorted(places)
    assert not (tmp_path / ".venv").exists()


def test_all_checks_run_once_the_checkout_is_set_up(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "deploy", "benchmarks"):
        (tmp_path / name).symlink_to(ROOT / name)
    planned = subprocess.run(["make", "-n", "-C", str(tmp_path), "test"], capture_output=True, text=True)
    assert planned.returncode == 0, planned.stderr
    set_up, *checks = map(planned.stdout.find, ("setup --dev", "ruff check", "-m mypy", "lint-imports", "-m pytest"))
    assert -1 < set_up < min(checks)


def test_clean_removes_the_environment_and_caches_and_no_data(tmp_path: Path) -> None:
    (tmp_path / "Makefile").symlink_to(ROOT / "Makefile")
    for gone in (".venv/bin", ".mypy_cache", "api/__pycache__"):
        (tmp_path / gone).mkdir(parents=True)
    for kept in (".scamp/scamp.db", "api/app.py", "examples/own.yaml"):
        (tmp_path / kept).parent.mkdir(exist_ok=True)
        (tmp_path / kept).touch()
    subprocess.run(["make", "-C", str(tmp_path), "clean"], check=True, capture_output=True)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"Makefile", ".scamp/scamp.db", "api/app.py", "examples/own.yaml"}


def test_the_command_runs_the_checkout_although_the_users_folder_has_packages_of_the_same_names(
    tmp_path: Path,
) -> None:
    command = Path(sys.executable).parent / "scamp"
    if not command.exists():  # an environment that make has not made
        command = ROOT / "deploy/scamp"
    for package in PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise RuntimeError('shadowed')")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [command, "--help"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0, done.stderr
    assert "serve" in done.stdout


def test_the_command_of_a_checkout_that_is_not_set_up_says_so(tmp_path: Path) -> None:
    (tmp_path / "deploy").mkdir()
    (tmp_path / "deploy/scamp").write_bytes((ROOT / "deploy/scamp").read_bytes())
    (tmp_path / "deploy/scamp").chmod(0o755)
    done = subprocess.run([tmp_path / "deploy/scamp", "list"], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"make -C {tmp_path} setup" in done.stderr
