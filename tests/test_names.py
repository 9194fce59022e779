"""Names say what a thing is: no parameter and no field of the product has a name that would fit any thing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.test_architecture_page import FLOORS, ROOT

FILLER = frozenset(
    {"all_", "asked", "found", "given", "it", "known", "named", "one", "own", "this", "told", "wanted", "what", "whole"}
)
"""Words that say nothing of the thing: use its noun, such as trial, device, option, plan, report, row or study."""
_MAY_HAVE_ONE = re.compile(rf"\b({'|'.join(sorted(FILLER))})\s*[:,=)]")


def fillers_in(source: str) -> Iterator[tuple[int, str]]:
    """(line, name) of each parameter and each field whose name is a filler."""
    if not _MAY_HAVE_ONE.search(source):  # parsing takes most of the time
        return
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.arg(arg=name) | ast.AnnAssign(target=ast.Name(id=name)) if name in FILLER:
                yield node.lineno, name


@pytest.mark.parametrize("floor", FLOORS)
def test_no_parameter_and_no_field_has_a_filler_for_a_name(floor: str) -> None:
    files = sorted((ROOT / floor).rglob("*.py"))
    assert files
    found = [(file, line, name) for file in files for line, name in fillers_in(file.read_text())]
    assert [f"{file.relative_to(ROOT)}:{line} {name}" for file, line, name in found] == []


def test_fillers_are_found_in_functions_lambdas_and_classes() -> None:
    source = "class Row:\n    own: int\n\ndef f(x, *, found, **given): ...\n\ng = lambda one, two: one\nwanted = 1\n"
    assert sorted(fillers_in(source)) == [(2, "own"), (4, "found"), (4, "given"), (6, "one")]
