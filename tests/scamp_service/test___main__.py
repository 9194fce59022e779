"""``python -m scamp_service`` with a Python that lacks what ScaMP needs, as a Ray job may find one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scamp_service.__main__ import wrong_python
from tests.services.processes import ROOT, environment


def test_another_python_says_in_one_line_that_it_is_not_the_one_of_scamp(tmp_path: Path) -> None:
    without_packages = [sys.executable, "-S", "-m", "scamp_service", "run", "study.yaml"]
    ended = subprocess.run(without_packages, cwd=ROOT, env=environment(tmp_path), capture_output=True, text=True)
    assert ended.returncode == 2 and len(ended.stderr.splitlines()) == 1
    assert ended.stderr.startswith(f"scamp: {sys.executable} is not ScaMP's Python, as it has no module ")


@pytest.mark.parametrize(
    ("has_python", "words"), [(True, r"use /.*/\.venv/bin/python$"), (False, r"use \.venv/bin/python of a checkout")]
)
def test_the_right_python_is_named_where_it_exists(tmp_path: Path, has_python: bool, words: str) -> None:
    if has_python:
        (tmp_path / ".venv" / "bin").mkdir(parents=True)
        (tmp_path / ".venv" / "bin" / "python").touch()
    error = ModuleNotFoundError("No module named 'typer'", name="typer")
    assert re.search(words, wrong_python(error, tmp_path))


def test_a_module_of_ours_that_is_missing_is_no_matter_of_the_python() -> None:
    assert wrong_python(ModuleNotFoundError("", name="scamp_service.gone"), ROOT) == ""
