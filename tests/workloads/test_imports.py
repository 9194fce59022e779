"""Missing imports that every candidate needs are found before any trial."""

from __future__ import annotations

from pathlib import Path

import pytest

from workloads.imports import check_imports
from workloads.loading import load_workload
from workloads.refusals import WorkloadError

START = """
from torch import nn
from workloads.protocol import Workload

def plain():
    import absent_of_nobody

def made():
    import absent
    return nn.Linear(2, 2)

class Net(nn.Module):
    def forward(self, x):
        import absent
        return x

class Mine(Workload):
    num_train = num_eval = 1
    train_batch = eval_batch = loss = None
    def evaluate(self, model, batch): ...
    def plot(self):
        import absent
"""


def check(folder: Path, source: str, **others: str) -> None:
    (folder / "mine.py").write_text(START + source)
    for name, text in others.items():
        (folder / f"{name}.py").write_text(text)
    check_imports(load_workload("mine.py:Mine", folder))


@pytest.mark.parametrize(
    "body",
    [
        "import absent",
        "import absent.layers as layers",
        "from absent.layers import Layer",
        "with open('/dev/null'):\n            import absent",
        "for _ in range(3):\n            import absent",
        "if self.params.get('x') == 3:\n            raise ValueError('x')\n        import absent",
        "return made()",
        "return nn.Sequential(*[Net() for _ in range(3)])",
        "self.plot()",
        "import json; from .absent import f",
    ],
)
def test_an_import_that_every_candidate_would_run_into_is_found_before_any_does(tmp_path: Path, body: str) -> None:
    with pytest.raises(WorkloadError, match=r"mine\.py, line \d+, needs the module \.?absent(\.layers)?, which"):
        check(tmp_path, f"    def build_model(self):\n        {body}\n")


@pytest.mark.parametrize(
    "body",
    [
        "import json, torch.nn, helper; from helper import f; from . import helper; from .helper import f",
        "if self.params.get('x'):\n            import absent",
        "if self.params.get('x'):\n            return nn.Linear(2, 2)\n        import absent",
        "try:\n            import absent\n        except ImportError:\n            pass",
        "def later():\n            import absent\n        return later",
        "return made() if self.params.get('x') else None",
        "return self.params.get('x') and made()",
        "return nn.Linear(2, 2)\n        import absent",
        "return lambda: made()",
    ],
)
def test_an_import_that_a_candidate_may_do_without_is_left_to_it(tmp_path: Path, body: str) -> None:
    check(tmp_path, f"    def build_model(self):\n        {body}\n", helper="def f(): ...")


HELPER = """
def f():
    import absent

class Base:
    def build_model(self):
        import absent
"""


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import helper\nclass Mine(Mine):\n    def build_model(self):\n        helper.f()\n", 3),
        ("from helper import f\nclass Mine(Mine):\n    def build_model(self):\n        f()\n", 3),
        ("from helper import Base\nclass Mine(Base, Mine): ...\n", 7),
    ],
)
def test_other_files_of_the_user_are_read_where_they_are_used(tmp_path: Path, source: str, line: int) -> None:
    with pytest.raises(WorkloadError, match=rf"helper\.py, line {line}, needs the module absent"):
        check(tmp_path, source, helper=HELPER)


def test_a_built_in_workload_has_all_that_it_imports() -> None:
    check_imports(load_workload("vit_digits", None))
