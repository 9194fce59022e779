"""Names say what a thing is, names in docstrings exist, tests mirror modules, and no folder has too many of them."""

from __future__ import annotations

import ast
import builtins
import keyword
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.test_architecture_page import FLOORS, ROOT, resolves

MOST_MODULES = 15
FILLER = frozenset(
    {"all_", "asked", "found", "given", "it", "known", "named", "one", "own", "this", "told", "wanted", "what", "whole"}
)
"""Words that say nothing of the thing: use its noun, such as trial, device, option, plan, report, row or study."""
_MAY_HAVE_A_FILLER = re.compile(rf"\b({'|'.join(sorted(FILLER))})\s*([:,=)\]]|in\b)")


def fillers_in(source: str) -> Iterator[tuple[int, str]]:
    """(line, name) of each parameter, field and variable whose name is a filler, where it gets its value."""
    if not _MAY_HAVE_A_FILLER.search(source):  # parsing takes most of the time
        return
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) if name in FILLER:
                yield node.lineno, name


@pytest.mark.full
@pytest.mark.sample
@pytest.mark.parametrize("folder", [*FLOORS, "benchmarks", "tests"])
def test_no_parameter_field_and_variable_has_a_filler_for_a_name(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    fillers = [(file, line, name) for file in files for line, name in fillers_in(file.read_text())]
    assert [f"{file.relative_to(ROOT)}:{line} {name}" for file, line, name in fillers] == []


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("class Row:\n    own: int", "own"),
        ("def f(x, *, found): ...", "found"),
        ("def f(**given): ...", "given"),
        ("lambda one, two: two", "one"),
        ("wanted = 1", "wanted"),
        ("[x, told] = rows", "told"),
        ("for named in rows: ...", "named"),
        ("{asked for asked in rows}", "asked"),
        ("while whole := next(rows): ...", "whole"),
        ("with open(path) as known: ...", "known"),
    ],
)
def test_a_filler_is_found_where_it_is_bound(source: str, name: str) -> None:
    assert [name for _, name in fillers_in(source)] == [name]


def test_a_filler_that_is_only_read_is_not_found() -> None:
    assert list(fillers_in("f(found, own=1)")) == []


@cache
def packages() -> dict[str, list[str]]:
    """Last part of the name of each package → the full names that end with it."""
    by_name: dict[str, list[str]] = {}
    for file in (file for floor in FLOORS for file in (ROOT / floor).rglob("__init__.py")):
        by_name.setdefault(file.parent.name, []).append(".".join(file.parent.relative_to(ROOT).parts))
    return by_name


def missing_in(text: str) -> list[str]:
    """Dotted names in docstrings that begin with a package of ours and name nothing; ``values.0`` is an objective."""
    dotted = (name.partition(".") for name in re.findall(r"``([a-z_]+(?:\.\w+)+)``", text))
    return [
        f"{package}.{rest}"
        for package, _, rest in dotted
        if package in packages() and package != "values"
        if not any(resolves(f"{name}.{rest}") for name in packages()[package])
    ]


@pytest.mark.parametrize("floor", FLOORS)
def test_every_module_and_every_name_in_a_docstring_exists(floor: str) -> None:
    files = sorted((ROOT / floor).rglob("*.py"))
    assert [f"{file.relative_to(ROOT)}: {name}" for file in files for name in missing_in(file.read_text())] == []


def test_a_name_that_no_longer_exists_is_found_in_a_docstring() -> None:
    assert missing_in("See ``table.choice``, ``tracing.tracer.gone``, ``tracing.tracer.trace`` and ``values.0``.") == [
        "table.choice",
        "tracing.tracer.gone",
    ]


OF_OTHER_MODULES = frozenset(
    {"choose", "compute", "evaluate", "forward", "lengths", "optimizer", "pack", "pp", "tp", "used"}
)
"""Names of fields and functions that docstrings of other modules speak of."""
VALUES = frozenset({"accuracy", "epoch", "layers", "limt", "linear", "lr", "maximize", "minimize"})
"""Words that users write."""


def words_without_a_meaning(source: str) -> list[tuple[int, str]]:
    """(line, name) of each name of one word in a docstring that the code of its module does not have."""
    tree = ast.parse(source)
    words = list(_words_of_docstrings(tree))
    if not words:
        return []
    names = {name for node in ast.walk(tree) for name in _names_of(node)}
    elsewhere = OF_OTHER_MODULES | VALUES | _modules() | frozenset((*keyword.kwlist, *dir(builtins)))
    return [(line, word) for line, word in words if word not in names | elsewhere]


def _words_of_docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for word in re.findall(r"``([a-z]{2,})(?:\(\))?``", ast.get_docstring(node) or ""):
                yield getattr(node, "lineno", 1), word


def _names_of(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.alias(name=name):
            yield from name.split(".")
        case ast.Constant(value=str(text)) if len(text) < 100:
            yield from () if "``" in text else re.findall(r"\w+", text)


@cache
def _modules() -> frozenset[str]:
    files = [file.relative_to(ROOT) for floor in FLOORS for file in (ROOT / floor).rglob("*.py")]
    return frozenset({file.stem for file in files} | {part for file in files for part in file.parent.parts})


@pytest.mark.full
@pytest.mark.sample
@pytest.mark.parametrize("floor", FLOORS)
def test_every_word_that_a_docstring_marks_as_a_name_is_one(floor: str) -> None:
    files = sorted((ROOT / floor).rglob("*.py"))
    words = [(file, *word) for file in files for word in words_without_a_meaning(file.read_text())]
    assert [f"{file.relative_to(ROOT)}:{line} {word}" for file, line, word in words] == []


def test_a_field_that_no_longer_exists_is_found_in_a_docstring() -> None:
    source = 'class Row:\n    """``old`` is gone, and ``kind`` is there."""\n    kind: str\n'
    assert words_without_a_meaning(source) == [(1, "old")]


@pytest.mark.parametrize("floor", FLOORS)
def test_no_folder_has_more_than_fifteen_modules(floor: str) -> None:
    modules = Counter(file.parent for file in (ROOT / floor).rglob("*.py") if not file.stem.startswith("__"))
    crowded = {str(folder.relative_to(ROOT)) for folder, num in modules.items() if num > MOST_MODULES}
    assert crowded - {"scamp_service/store/migrations/versions"} == set()


@pytest.mark.parametrize("floor", [*FLOORS, "tests"])
def test_every_module_begins_with_a_sentence_that_says_what_it_is_for(floor: str) -> None:
    files = (file for file in (ROOT / floor).rglob("*.py") if file.stat().st_size)
    assert [str(file.relative_to(ROOT)) for file in files if not file.read_text().startswith(('"""', 'r"""'))] == []


OF_NO_FLOOR = ("api/dashboard/", "deploy/", "examples/", "test_")
"""Tests of pages, files and the repository itself."""
OF_SEVERAL_MODULES = {
    "api/test_javascript.py",
    "benchmarks/test_commands.py",
    "estimators/tracing/test_evaluation.py",
    "estimators/tracing/device/cpu/test_allocations.py",
    "placement/planning/test_given.py",
    "scamp_service/cli/test_deleting.py",
    "scamp_service/cluster/driver/states/test_rank_states_at_random.py",
    "scamp_service/cluster/driver/test_ray_executor_alone.py",
    "scamp_service/control/decide/test_one_shot.py",
    "scamp_service/search/samplers/test_several_objectives.py",
    "scamp_service/search/samplers/test_tpe.py",
    "scamp_service/simulation/test_same_log.py",
    "scamp_service/test_hosts.py",
    "scamp_service/test_learning.py",
    "scamp_service/test_ray_job.py",
    "scamp_service/test_service.py",
    "scamp_service/test_users_code.py",
    "scamp_service/test_withdrawn.py",
    "workloads/test_arrivals_page.py",
    "workloads/test_cuda_lines.py",
    "workloads/test_data_page.py",
    "workloads/test_settling.py",
    "workloads/test_workloads_page.py",
    "workloads/training/test_inheriting.py",
    "workloads/training/updates/test_every_plan.py",
    "workloads/training/updates/test_plain_torch.py",
}


def mirrors(test: str) -> bool:
    """Whether a module or package has the place and the name of this test; the test of a package may be inside."""
    folder, name = (ROOT / test).parent, Path(test).stem.removeprefix("test_")
    package = folder if folder.name == name else folder / name
    return (folder / f"{name}.py").is_file() or (package / "__init__.py").is_file()


def test_every_test_has_the_place_and_the_name_of_what_it_tests() -> None:
    files = [str(file.relative_to(ROOT / "tests")) for file in (ROOT / "tests").rglob("test_*.py")]
    assert {file for file in files if not file.startswith(OF_NO_FLOOR) and not mirrors(file)} == OF_SEVERAL_MODULES


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("estimators/test_memory.py", True),
        ("estimators/tracing/device/cpu/test_cpu.py", True),
        ("estimators/tracing/device/test_cpu.py", True),
        ("estimators/test_tracer.py", False),
        ("estimators/peaks/test_tracing.py", False),
        ("benchmarks/test_gangs.py", False),
    ],
)
def test_a_test_that_has_no_module_is_found(test: str, expected: bool) -> None:
    assert mirrors(test) == expected
