"""The dashboard's modules that need no browser, in node's own test runner: `javascript/*.test.mjs`."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parent / "javascript").glob("*.test.mjs"))
OLDEST_NODE = 20


@cache
def why_not() -> str:
    """Why the tests cannot run here, or an empty string."""
    if shutil.which("node") is None:
        return "node is not installed"
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, timeout=60).stdout.strip()
    found = re.match(r"v(\d+)\.", version)
    is_new = found is not None and int(found[1]) >= OLDEST_NODE
    return "" if is_new else f"node is {version}, and its test runner is needed as it is since {OLDEST_NODE}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name.removesuffix(".test.mjs"))
def test_the_modules_of_the_dashboard(file: Path) -> None:
    if why_not():
        pytest.skip(why_not())
    command = ["node", "--test", "--test-reporter=spec", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
