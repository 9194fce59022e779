"""Workloads are loaded from their files without hiding modules of ScaMP or of other studies."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

import workloads
from scamp.workload.seeds import seed_host
from workloads.loading import BUILT_INS, forget_user_code, load_workload
from workloads.protocol import Workload
from workloads.refusals import WorkloadError

VALID = """
from workloads.protocol import Workload

class Mine(Workload):
    num_train = num_eval = 1
    def build_model(self): ...
    def train_batch(self, indices): ...
    def eval_batch(self, indices): ...
    def loss(self, model, batch): ...
    def evaluate(self, model, batch): ...
"""


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def refused(name: str, code_dir: Path | None) -> str:
    with pytest.raises(WorkloadError) as caught:
        load_workload(name, code_dir)
    return str(caught.value)


@pytest.mark.parametrize("name", BUILT_INS)
def test_every_built_in_is_a_workload(name: str) -> None:
    assert issubclass(load_workload(name, None), Workload)


def test_a_class_in_a_folder_of_the_study_is_loaded_once(tmp_path: Path) -> None:
    write(tmp_path, {"deep/my-model.py": VALID})
    assert load_workload("deep/my-model.py:Mine", tmp_path) is load_workload("deep/my-model.py:Mine", tmp_path)


def test_two_studies_may_have_files_of_the_same_name(tmp_path: Path) -> None:
    first = write(tmp_path / "a", {"model.py": VALID + "    default_batch = 1"})
    second = write(tmp_path / "b", {"model.py": VALID + "    default_batch = 2"})
    assert load_workload("model.py:Mine", first).default_batch == 1
    assert load_workload("model.py:Mine", second).default_batch == 2


def test_user_folders_named_like_ours_neither_hide_ours_nor_are_hidden(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "workloads/nets.py": "WHOSE = 'the user\\'s'",
            "api/__init__.py": "from workloads import nets\nWHOSE = nets.WHOSE",
            "random.py": "WHOSE = 'the user\\'s random'",
            "model.py": VALID
            + "    import api, random, workloads.nets as nets\n    seen = api.WHOSE, nets.WHOSE, random.WHOSE\n",
        },
    )
    workload = load_workload("model.py:Mine", tmp_path)
    assert workload.seen == ("the user's", "the user's", "the user's random")  # type: ignore[attr-defined]
    assert sys.modules["workloads"] is workloads
    assert "nets" not in vars(workloads)
    import random

    assert random.random() < 1


def test_siblings_can_be_imported_from_inside_functions_and_relative_to_the_file(tmp_path: Path) -> None:
    code = VALID + (
        "    def build_model(self):\n"
        "        import beside, pkg.deep\n        from .beside import VALUE\n        from pkg import deep as also\n"
        "        return beside.VALUE, VALUE, pkg.deep.VALUE, also.VALUE\n"
    )
    files = {"models/model.py": code, "models/beside.py": "VALUE = 1", "pkg/deep.py": "from .up import VALUE"}
    write(tmp_path, {**files, "pkg/up.py": "VALUE = 2"})
    assert load_workload("models/model.py:Mine", tmp_path)({}).build_model() == (1, 1, 2, 2)  # type: ignore[comparison-overlap]


def test_nothing_is_written_into_the_folder_of_the_study(tmp_path: Path) -> None:
    load_workload("model.py:Mine", write(tmp_path, {"model.py": VALID}))
    assert [path.name for path in tmp_path.iterdir()] == ["model.py"]


def test_the_constructor_may_set_the_numbers_of_samples(tmp_path: Path) -> None:
    source = VALID.replace("num_train = num_eval = 1", "def __init__(self, params): self.num_train = self.num_eval = 3")
    assert load_workload("model.py:Mine", write(tmp_path, {"model.py": source}))({}).num_train == 3


def test_what_cannot_be_loaded_is_one_clear_error(tmp_path: Path) -> None:
    files = {
        "raises.py": "def f():\n    return 1 / 0\nf()\n",
        "syntax.py": "def f(:\n",
        "exits.py": "import sys; sys.exit(3)",
        "needs.py": "import not_installed_anywhere",
        "beside.py": "from .not_sent import f",
        "ok.py": VALID + "class Half(Workload):\n    num_eval = 1\nOther = int\n",
    }
    write(tmp_path, files)
    assert "choose from stdlib_gpt, unet3d_blobs, vit_digits, vit_digits_with_fault" in refused("resnet", None)
    assert "no code was sent" in refused("ok.py:Mine", None)
    assert "not among the files" in refused("missing.py:Mine", tmp_path)
    assert "inside the folder" in refused("../ok.py:Mine", tmp_path)
    assert "inside the folder" in refused("/etc/passwd:Mine", tmp_path)
    assert "no class 'Yours'" in refused("ok.py:Yours", tmp_path)
    assert "not a subclass" in refused("ok.py:Other", tmp_path)
    half = refused("ok.py:Half", tmp_path)
    assert "does not define build_model, eval_batch, evaluate, loss, train_batch; add what is missing" in half
    needs = refused("needs.py:Mine", tmp_path)
    assert "needs.py, line 1, needs the module not_installed_anywhere" in needs
    assert 0 < needs.index("--working-dir") < needs.index("pip install"), "one's own file is the usual case"
    beside = refused("beside.py:Mine", tmp_path)
    assert beside.endswith(
        "which is not among the files sent along: send the folder that it lies in with --working-dir"
    )
    assert "syntax.py, line 1: def f(:\nSyntaxError" in refused("syntax.py:Mine", tmp_path)
    assert "exits.py, line 1: import sys; sys.exit(3)\nends Python (3)" in refused("exits.py:Mine", tmp_path)
    raised = refused("raises.py:Mine", tmp_path)
    assert "ZeroDivisionError" in raised and "return 1 / 0" in raised
    assert "importlib" not in raised, "the import machinery's frames help nobody"


def test_a_file_that_failed_to_load_leaves_no_half_of_itself(tmp_path: Path) -> None:
    write(tmp_path, {"model.py": VALID + "raise ValueError('not yet')"})
    refused("model.py:Mine", tmp_path)
    assert "not yet" in refused("model.py:Mine", tmp_path)


DRAWS = "import random, numpy, torch\nrandom.random(), numpy.random.random(), torch.rand(1)\n"
DRAWN = "(random.random(), numpy.random.random(), torch.rand(1).item())"
FILE = f"""
import random, numpy, torch
import draws_at_import
import settings
TOP = {DRAWN}
{VALID}
    def __init__(self, params):
        import draws_again
        self.own = {DRAWN}
    def later(self):
        import draws_later
        from late import LATE
        return (*LATE, *{DRAWN})
"""


def test_what_a_workload_draws_does_not_depend_on_what_its_process_has_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = ["draws_at_import", "draws_again", "draws_later"]
    monkeypatch.syspath_prepend(write(tmp_path / "site", {f"{name}.py": DRAWS for name in libraries}))
    late = f"import random, numpy, torch\nLATE = {DRAWN}"
    folder = write(tmp_path / "a", {"net.py": FILE, "settings.py": "import random\nrandom.seed(7)", "late.py": late})

    def attempt(first_step: int) -> tuple[Any, ...]:
        seed_host(0)
        workload: Any = load_workload("net.py:Mine", folder)({})
        seed_host((1, first_step))
        later = workload.later()
        seed_host((1, 5))
        return sys.modules[type(workload).__module__].TOP, workload.own, later[:3], workload.later()

    new, again, _ = attempt(0), attempt(3), forget_user_code(folder)
    resumed = attempt(3)
    for library in libraries:
        monkeypatch.delitem(sys.modules, library)
    forget_user_code(folder)
    assert new == again == resumed == attempt(9)
    drawn = random.Random(7)
    assert [values[0] for values in new[:2]] == [drawn.random(), drawn.random()], "the user's own seed counts"
    forget_user_code(folder)
