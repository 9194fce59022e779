"""Every command of the benchmarks can be imported, with all that it imports."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

COMMANDS = sorted(path.stem for path in Path(__file__).parents[2].glob("benchmarks/*.py") if path.stem != "__init__")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_finds_all_that_it_imports(command: str) -> None:
    module = importlib.import_module(f"benchmarks.{command}")
    assert callable(getattr(module, "main", None)) or module.PARTS


PARTS = [
    (command, name)
    for command in COMMANDS
    for name in getattr(importlib.import_module(f"benchmarks.{command}"), "PARTS", {})
]


@pytest.mark.parametrize(("command", "name"), PARTS)
def test_the_cases_of_a_part_have_names_of_their_own(command: str, name: str) -> None:
    """All are listed for a page, also by a command that runs another part."""
    cases = list(map(str, importlib.import_module(f"benchmarks.{command}").PARTS[name].cases(False, 0)))
    assert len(set(cases)) == len(cases)
