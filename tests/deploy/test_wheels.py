"""The two wheels of a checkout: ``scamp``, which is small and writes and submits, and ``scamp-server``, the rest."""

from __future__ import annotations

import ast
import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import scamp
from scamp_service.store.store import Store
from tests.services.serving import free_port, served, settings_in
from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
SERVER, CLIENT = (tomllib.loads((ROOT / file).read_text()) for file in ("pyproject.toml", "scamp/pyproject.toml"))
PACKAGES = ("api", "estimators", "placement", "scamp_service", "workloads")
HEAVY = ("ray", "sqlalchemy", "torch", "numpy", "pydantic_settings", "fastapi", "optuna")
BLOCKER = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""
MODEL = """
import torch
from scamp import Chain, Split, Workload

class Line(Workload):
    num_train = num_eval = 64

    def build_model(self):
        return torch.nn.Linear(1, 1)

    def train_batch(self, indices):
        return indices[:, None].float() / 64

    eval_batch = train_batch

    def loss(self, model, batch):
        return (model(batch) - batch).square().mean()

    def evaluate(self, model, batch):
        return {"error": (model(batch) - batch).square().mean(1)}
"""
STUDY = """
name: line
workload: line.py:Line
objective: {metric: error, direction: minimize}
space: {lr: {low: 1e-3, high: 1e-1, log: true}}
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels by the names of their projects, built without a network from a copy of the checkout."""
    if not importlib.util.find_spec("setuptools") or not importlib.util.find_spec("pip"):
        pytest.skip("wheels are built by pip with setuptools, which are not both installed")
    checkout, built = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("built")
    for name in ("scamp", *PACKAGES):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, checkout / name)
    pip("wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", built, checkout / "scamp", checkout)
    found_wheels = {wheel.name.partition("-")[0].replace("_", "-"): wheel for wheel in built.glob("*.whl")}
    assert found_wheels.keys() == {"scamp", "scamp-server"}
    return found_wheels


@pytest.fixture(scope="module")
def client(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel ``scamp`` alone, in which neither torch nor anything of a service can be imported."""
    folder = tmp_path_factory.mktemp("client")
    pip("install", "--no-deps", "--no-index", "--target", folder, wheels["scamp"])
    (folder / "sitecustomize.py").write_text(BLOCKER)
    return folder


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr


def python(folder: Path, *arguments: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SCAMP_", "PYTHON"))}
    environment = kept | {"PYTHONPATH": str(folder), "HOME": str(cwd), "COLUMNS": "200"} | variables
    command = [sys.executable, "-P", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS)


@pytest.mark.full
def test_outside_of_a_checkout_a_study_is_submitted_and_read(client: Path, tmp_path: Path, warm_traces: None) -> None:
    (tmp_path / "line.py").write_text(MODEL)
    (tmp_path / "study.yaml").write_text(STUDY)
    with served(settings_in(tmp_path / "data", port=free_port())) as (address, store):

        def run(*arguments: str) -> subprocess.CompletedProcess[str]:
            return python(client, client / "bin" / "scamp", *arguments, cwd=tmp_path, SCAMP_ADDRESS=address)

        done = run("submit", "study.yaml", "--no-wait", "--set", "budget.trials=3")
        assert (done.returncode, done.stdout) == (0, f"study 1: {address}/studies/1\n"), done.stderr
        assert_submitted(store)
        for command in ("list", "status 1", "trials 1", "export 1 --format jsonl", "pause 1", "status 1 --yaml"):
            done = run(*command.split())
            assert done.returncode == 0, done.stderr
        assert "budget:\n  trials: 3" in done.stdout
        done = run("weights", "1", "0")
        assert done.returncode == 2 and done.stderr.endswith("pip install scamp-server\n")
        code = "import scamp; print(scamp.submit('study.yaml')['id'])"
        done = python(client, "-c", code, cwd=tmp_path, SCAMP_ADDRESS=address)
        assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


def assert_submitted(store: Store) -> None:
    study = store.studies.get(1)
    assert study.spec["budget"]["trials"] == 3
    assert study.code is not None and store.blobs.get(study.code).startswith(b"PK")


@pytest.mark.full
def test_the_small_wheel_needs_nothing_of_a_service(client: Path, tmp_path: Path) -> None:
    done = python(client, client / "bin" / "scamp", "--help", cwd=tmp_path)
    assert done.returncode == 0 and "submit" in done.stdout and "serve" not in done.stdout, done.stderr
    assert python(client, client / "bin" / "scamp", "--version", cwd=tmp_path).stdout == f"scamp {scamp.__version__}\n"
    unwanted = (*HEAVY, *PACKAGES, "httpx", "yaml", "rich.markdown")  # the last would double the time of `--help`
    code = f"import sys, scamp, scamp.cli.main; print([name for name in {unwanted} if name in sys.modules])"
    assert python(client, "-c", code, cwd=tmp_path).stdout == "[]\n"


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Workload", "scamp.Workload needs torch, which is not installed here: pip install torch"),
        (
            "from_function",
            "needs scamp-server, which is not installed here: pip install scamp-server",
        ),
        ("Wrokload", "cannot import name 'Wrokload' from 'scamp'"),
    ],
)
def test_a_name_whose_package_is_missing_says_what_to_install(
    client: Path, tmp_path: Path, name: str, words: str
) -> None:
    done = python(client, "-c", f"from scamp import {name}", cwd=tmp_path)
    assert done.returncode == 1 and words in done.stderr.splitlines()[-1]


@pytest.mark.full
def test_with_the_server_there_are_all_commands(wheels: dict[str, Path], tmp_path: Path) -> None:
    pip("install", "--no-deps", "--no-index", "--target", tmp_path, *wheels.values())
    done = python(tmp_path, tmp_path / "bin" / "scamp", "--help", cwd=tmp_path)
    assert done.returncode == 0 and "submit" in done.stdout and "serve" in done.stdout, done.stderr
    code = "import scamp, workloads.protocol, scamp_service.errors as e\n"
    code += "old = workloads.protocol.Workload, e.NotFound\n"
    code += "print(old == (scamp.Workload, scamp.NotFound))"
    assert python(tmp_path, "-c", code, cwd=tmp_path).stdout == "True\n"


@pytest.mark.full
def test_no_file_is_left_out_or_in_both_wheels(wheels: dict[str, Path]) -> None:
    names = {project: set(zipfile.ZipFile(wheel).namelist()) for project, wheel in wheels.items()}
    assert not names["scamp"] & names["scamp-server"]
    files = {
        str(path.relative_to(ROOT))
        for package in ("scamp", *PACKAGES)
        for path in (ROOT / package).rglob("*")
        if path.is_file() and not {"__pycache__", "scamp.egg-info"} & set(path.parts)
    }
    of_developers = {"api/jsconfig.json", "api/package.json", "scamp/pyproject.toml"}
    assert files - names["scamp"] - names["scamp-server"] == of_developers


def test_both_wheels_have_one_version_and_the_same_requirements() -> None:
    assert SERVER["project"]["dependencies"][0] == f"scamp=={scamp.__version__}"
    assert set(CLIENT["project"]["dependencies"]) <= set(SERVER["project"]["dependencies"])
    needed = {Requirement(line).name for line in CLIENT["project"]["dependencies"]}
    assert needed == {"cloudpickle", "httpx", "httpx-sse", "pyyaml", "rich", "typer"}
    heads = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## [")]
    newest = next(head for head in heads if head != "## [Unreleased]")
    assert newest.startswith(f"## [{scamp.__version__}]")


def test_editors_and_python_see_the_same_names() -> None:
    stub = ast.parse((ROOT / "scamp" / "__init__.pyi").read_text())
    names = {alias.name for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert names | {"__version__"} == {"__version__", *vars(scamp)["_MODULES"]}
    assert all(getattr(scamp, name) is not None for name in scamp.__all__)
    (listed,) = (node.value for node in stub.body if isinstance(node, ast.Assign))
    assert set(ast.literal_eval(listed)) == set(scamp.__all__)
