"""Everything that README, changelog and docs name exists: files, functions, links, wings, commands, make targets."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from scamp_service.lifecycle import WaitsFor

ROOT = Path(__file__).resolve().parents[1]
DOCS = sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md"))
PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *DOCS]
FLOORS = ("api", "scamp_service", "workloads", "placement", "estimators", "scamp")
FOLDERS = (*FLOORS, "benchmarks", "deploy", "docs", "examples", "tests")

ARCHITECTURE = "docs/architecture.md"
ANSWERS = {
    "Where does a new stopping rule go?": "scamp_service/control/stopping/__init__.py:RULES",
    "Where does a new sampler go?": "scamp_service/search/proposals.py:SAMPLERS",
    "Where does a new axis of plans (a parallel axis) go?": "workloads/parallel/apply.py:apply_plan",
    "Who writes the ledger?": "scamp_service/control/decide/rules/gangs.py:ledger_of",
    "What happens after `kill -9` of the controller?": "scamp_service/cluster/driver/ray_executor.py:RayExecutor",
    "Where does a new option of a training go?": "workloads/options.py:TrainingOptions",
    "Where does a new picture go?": "api/static/study.js:PANELS",
    "What does a study's planner read?": "placement/planning/question.py:Question",
    "Who restarts a rank?": "scamp_service/cluster/driver/states/rank_states.py:RankStates._keep_warm",
    "Why does a waiting trial wait, and where is that decided?": "scamp_service/lifecycle.py:WaitsFor",
    "Where is the peak predicted?": "estimators/memory.py:predict",
}


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def code_of(page: str) -> list[str]:
    """Every piece of inline code."""
    prose = re.sub(r"^```.*?^```", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`([^`\n]+)`", prose)


def blocks_of(page: str) -> str:
    """All fenced and indented code."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", text_of(page), re.DOTALL | re.MULTILINE)
    commands = [block for language, block in fenced if language in ("", "sh")]
    return "\n".join([*commands, *re.findall(r"^ {4}\S.*$", text_of(page), re.MULTILINE)])


@cache
def names_in(file: Path) -> dict[str, frozenset[str]]:
    """Top-level name of a module → names in it (methods and fields of a class)."""
    if file.suffix == ".js":
        return dict.fromkeys(re.findall(r"(?:function|class|const) (\w+)", file.read_text()), frozenset())
    names = {name: inside for node in ast.parse(file.read_text()).body for name, inside in defined(node)}
    if (stub := file.with_suffix(".pyi")).is_file():  # names that are imported when they are first used
        names |= dict.fromkeys(
            (alias.name for node in ast.walk(ast.parse(stub.read_text())) for alias in getattr(node, "names", ())),
            frozenset(),
        )
    return names


def defined(node: ast.stmt) -> Iterator[tuple[str, frozenset[str]]]:
    match node:
        case ast.ClassDef(name=name, body=body):
            yield name, frozenset(inner for part in body for inner, _ in defined(part))
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name, frozenset()
        case ast.Assign(targets=targets):
            yield from ((target.id, frozenset()) for target in targets if isinstance(target, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name, frozenset()


def has(file: Path, name: str) -> bool:
    outer, _, inner = name.partition(".")
    return file.is_file() and outer in names_in(file) and (not inner or inner in names_in(file)[outer])


def resolves(dotted: str) -> bool:
    """``package.module`` or ``package.module.name``."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:length])
        file = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
        if file.is_file():
            return length == len(parts) or has(file, ".".join(parts[length:]))
    return False


def missing_in(page: str) -> list[str]:
    """Inline code that looks like a path, ``path:name`` or a dotted name of ours, and names nothing."""
    missing = []
    for code in code_of(page):
        if match := re.fullmatch(rf"((?:{'|'.join(FOLDERS)})/[\w./-]*)(?::([\w.]+))?", code):
            path, name = ROOT / match[1], match[2]
            if not path.exists() or (name and not has(path, name)):
                missing.append(code)
        elif re.fullmatch(rf"(?:{'|'.join((*FLOORS, 'benchmarks'))})(?:\.(?!db\b)\w+)+", code) and not resolves(code):
            missing.append(code)
    return missing


@pytest.mark.parametrize("page", PAGES)
def test_every_path_and_name_on_a_page_exists(page: str) -> None:
    assert missing_in(page) == []


def test_a_name_that_does_not_exist_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    gone = ["api/gone.py", "estimators/memory.py:foretell", "estimators.model.Plan.gone", "placement.gone"]
    page.write_text(" ".join(f"`{name}`" for name in [*gone, "estimators/memory.py:predict", "estimators.model.Plan"]))
    assert missing_in(str(page)) == gone


def slug(heading: str) -> str:
    """Anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES)
def test_every_link_between_pages_leads_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), target
        if anchor:
            assert anchor in map(slug, re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)), target


def test_the_architecture_page_has_every_wing_that_the_import_contracts_have() -> None:
    contracts = tomllib.loads(text_of("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    wings = {contract["containers"][0]: contract["layers"] for contract in contracts if "containers" in contract}
    page = text_of(ARCHITECTURE)
    for floor in FLOORS:
        (drawing,) = re.findall(rf"^{floor}/ .*?(?=^\S|\Z)", page, re.DOTALL | re.MULTILINE)
        drawn = {name for line in re.findall(r"^  ([a-z_ ]+?)  ", drawing, re.MULTILINE) for name in line.split()}
        in_contract = {name for layer in wings[floor] for name in layer.split(" | ")} - {"__main__"}
        assert drawn - {"static", "templates"} == in_contract


@pytest.mark.parametrize(("question", "answer"), ANSWERS.items())
def test_the_architecture_page_answers_with_the_place_in_the_code(question: str, answer: str) -> None:
    (text,) = re.findall(
        rf"^- \*\*{re.escape(question)}\*\* (.*?)(?=^- |\n\n)", text_of(ARCHITECTURE), re.DOTALL | re.M
    )
    assert f"`{answer}`" in text


@pytest.mark.parametrize("page", [ARCHITECTURE, "docs/api.md"])
def test_a_table_has_each_thing_that_a_trial_waits_for(page: str) -> None:
    (table,) = re.findall(r"^\| `waits_for` \|.*?(?=\n\n)", text_of(page), re.DOTALL | re.MULTILINE)
    assert re.findall(r"^\| `([A-Z_]+)` \|", table, re.MULTILINE) == list(WaitsFor)


def test_the_lines_that_the_page_on_extending_quotes_are_in_the_files() -> None:
    blocks = re.findall(r"^ *```python\n *# (\S+)\n(.*?)```", text_of("docs/extending.md"), re.DOTALL | re.MULTILINE)
    assert blocks
    for file, quoted in blocks:
        lines = {line.strip() for line in text_of(file).splitlines()}
        assert {line.strip() for line in quoted.splitlines()} <= lines | {""}, file


def commands_in(page: str, name: str) -> list[list[str]]:
    """Arguments of every call of ``name`` in the page's code blocks."""
    joined = blocks_of(page).replace("\\\n", " ")
    calls = re.findall(rf"(?:^|(?<!from)\s|(?<!\s\.)/){name} ([^#\n'|&]*)", joined, re.MULTILINE)  # nor `./scamp`
    return [shlex.split(call) for call in calls]


@pytest.mark.full
@pytest.mark.sample
@pytest.mark.parametrize("page", PAGES)
def test_every_scamp_command_on_a_page_is_one_that_the_command_line_takes(page: str) -> None:
    import typer

    from scamp_service.cli.main import app

    group = typer.main.get_command(app)
    for arguments in [*commands_in(page, "scamp"), *commands_in(page, "-m scamp_service")]:
        # The last two: `docker build -t scamp .`, `helm install scamp deploy/kubernetes/chart`
        if arguments[0] in ("--help", ".", "deploy/kubernetes/chart"):
            continue
        command = group.commands[arguments[0]]  # type: ignore[attr-defined]
        command.make_context(arguments[0], arguments[1:])
        for argument in arguments[1:]:
            assert not argument.startswith("examples/") or (ROOT / argument).is_file(), argument


@pytest.mark.parametrize("page", PAGES)
def test_every_make_target_and_benchmark_on_a_page_exists(page: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", text_of("Makefile"), re.MULTILINE))
    targets_named = re.findall(r"(?:^ {4}|`)make ([a-z]+)\b", text_of(page), re.MULTILINE)
    assert set(targets_named) <= targets
    for module in re.findall(r"-m (benchmarks\.\w+)", text_of(page)):
        assert resolves(module), module


def glossary() -> list[tuple[str, str]]:
    rows = re.findall(r"^\| ([^|]+) \| (.+) \|$", text_of("docs/glossary.md"), re.MULTILINE)
    return [(word, meaning) for word, meaning in rows if word != "word"]


def test_each_table_of_the_glossary_is_alphabetical_and_no_word_is_in_two() -> None:
    words = [word for word, _ in glossary()]
    parts = text_of("docs/glossary.md").split("## ")[1:]
    tables = [re.findall(r"^\| ([^|]+) \| ", part, re.MULTILINE)[1:] for part in parts]
    assert all(table == sorted(table, key=str.casefold) for table in tables)
    assert sorted(words) == sorted({word for table in tables for word in table})


def test_every_class_in_the_glossary_is_in_the_file_that_is_linked_after_it() -> None:
    for word, meaning in glossary():
        for name, rest in re.findall(r"`([A-Z]\w+)`(.*?)(?=`[A-Z]|$)", meaning):
            link = re.search(r"\]\(\.\./([\w/.]+)\)", rest) or re.search(r"\]\(\.\./([\w/.]+)\)", meaning)
            assert link is not None and has(ROOT / link[1], name), f"{word}: {name}"


def test_every_study_on_a_page_and_every_example_is_valid() -> None:
    from scamp_service.study.parse import parse_study

    blocks = [block for page in PAGES for block in re.findall(r"^```yaml\n(.*?)^```", text_of(page), re.DOTALL | re.M)]
    head = "name: part of a study\nworkload: vit_digits\nobjective: {metric: loss}\n"
    studies = [block if "workload:" in block else head + block for block in blocks if "space:" in block]
    assert studies
    examples = [file.read_text() for file in sorted(ROOT.glob("examples/**/*.yaml")) if file.name != "cluster.yaml"]
    for study in [*studies, *examples]:
        parse_study(study)
