"""Every command of the benchmarks can be imported, with all that it imports."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

COMMANDS = sorted(path.stem for path in Path(__file__).parents[2].glob("benchmarks/*.py") if path.stem != "__init__")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_finds_all_that_it_imports(command: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.{command}").main)
