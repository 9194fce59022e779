from __future__ import annotations

from pathlib import Path

import pytest

from scamp_service.errors import InvalidInput
from scamp_service.sizing.import_check import check_import
from scamp_service.study.parse import parse_study
from scamp_service.study.spec import StudySpec
from scamp_service.study.user_code import bundle_code

pytestmark = pytest.mark.usefixtures("warm_traces")

GOOD = """
from workloads.protocol import Workload

class Mine(Workload):
    num_train = num_eval = 1
    build_model = train_batch = eval_batch = loss = evaluate = None
"""


def study(workload: str) -> StudySpec:
    return parse_study({
        "name": "mine",
        "workload": workload,
        "objective": {"metric": "loss", "direction": "minimize"},
        "space": {"lr": {"low": 0.1, "high": 1.0}},
    })  # fmt: skip


def submitted(folder: Path, source: str) -> tuple[StudySpec, bytes]:
    (folder / "mine.py").write_text(source)
    return study("mine.py:Mine"), bundle_code(folder / "study.yaml", "mine.py:Mine")


def test_a_workload_that_loads_is_admitted(tmp_path: Path) -> None:
    check_import(*submitted(tmp_path, GOOD))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (GOOD + "\nraise RuntimeError('no such disk')\n", "no such disk"),
        (GOOD + "\nimport not_a_module_of_anyone\n", r"line 8, needs the module not_a_module_of_anyone.* pip install"),
        (
            GOOD + "    def evaluate(self, model, batch):\n        from not_a_module_of_anyone import score\n",
            r"\Athe workload 'mine.py:Mine' cannot be used: mine.py, line 8, needs the module not_a_module.*\Z",
        ),
        (GOOD.replace("(Workload)", ""), "Workload"),
        (GOOD + "\nimport os; os._exit(3)\n", "ended the process"),
    ],
)
def test_a_workload_that_fails_on_import_is_refused_with_its_own_words(tmp_path: Path, source: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        check_import(*submitted(tmp_path, source))


def test_a_built_in_workload_needs_no_process() -> None:
    check_import(study("vit_digits"), None)
    with pytest.raises(InvalidInput, match="vit_digits"):
        check_import(study("no_such_workload"), None)


def test_users_code_finds_no_secret_in_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCAMP_API_TOKEN", "the-token-of-the-api")
    monkeypatch.setenv("SCAMP_DATABASE_URL", "postgresql://scamp:the-password@host/scamp")
    source = GOOD + "\nimport os\nraise RuntimeError([n for n in os.environ if 'API_TOKEN' in n or 'DATABASE' in n])\n"
    with pytest.raises(InvalidInput, match=r"RuntimeError: \[\]"):
        check_import(*submitted(tmp_path, source))
