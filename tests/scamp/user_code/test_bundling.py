"""Files of the user that are sent along. Refusals are tested through the API, in ``test_submission``."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import pytest

from scamp.user_code import bundling
from scamp.user_code.bundling import MAX_CODE_BYTES, bundle_code
from scamp_service.errors import InvalidInput
from scamp_service.processes.supervise import lock_data_dir
from scamp_service.study.user_code.checking import check_code
from scamp_service.study.workload_names import BUILT_INS
from workloads import loading
from workloads.files.archive import unpack_code

SOURCE = "class Mine: ...\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("study.yaml", "net.py", "lib/data.txt", "lib/layers.py", ".git/config", ".env", "__pycache__/net.pyc"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(SOURCE)
    for name in (".venv/big.py", "venv/big.py", "lib/old.pyc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(SOURCE)
    return tmp_path


def names(code: bytes) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(code)) as archive:
        return archive.namelist()


def test_the_names_of_built_in_workloads_are_those_that_can_be_loaded() -> None:
    assert set(BUILT_INS) == set(loading.BUILT_INS)


def test_only_the_named_file_is_sent_by_default(folder: Path) -> None:
    assert names(bundle_code(folder / "study.yaml", "net.py:Mine")) == ["net.py"]
    assert names(bundle_code(folder / "study.yaml", "./lib/layers.py:Mine")) == ["lib/layers.py"]


def test_a_working_directory_is_sent_without_what_is_hidden_or_generated(folder: Path) -> None:
    sent = names(bundle_code(folder / "study.yaml", "net.py:Mine", folder))
    assert sent == ["lib/data.txt", "lib/layers.py", "net.py", "study.yaml"]


def test_the_same_files_are_the_same_bytes(folder: Path) -> None:
    first = bundle_code(folder / "study.yaml", "net.py:Mine", folder)
    os.utime(folder / "net.py", (1, 1))
    (folder / "net.py").chmod(0o755)
    assert bundle_code(folder / "study.yaml", "net.py:Mine", folder) == first


def test_what_is_bundled_is_accepted_and_can_be_unpacked(folder: Path, tmp_path: Path) -> None:
    code = bundle_code(folder / "study.yaml", "net.py:Mine", folder)
    check_code("net.py:Mine", code)
    assert (unpack_code(code, tmp_path / "code") / "lib" / "data.txt").read_text() == SOURCE


def test_a_missing_file_is_named(folder: Path) -> None:
    with pytest.raises(InvalidInput, match=r"nothing\.py, which does not exist"):
        bundle_code(folder / "study.yaml", "nothing.py:Mine")
    with pytest.raises(InvalidInput, match="relative to it"):
        bundle_code(folder / "study.yaml", "lib/layers.py:Mine", folder / "lib")
    with pytest.raises(InvalidInput, match="working directory"):
        bundle_code(folder / "study.yaml", "net.py:Mine", folder / "none")


@pytest.mark.parametrize("name", ["../net.py", "/somewhere/net.py"])
def test_a_file_outside_the_folder_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match=r"outside the folder .*/lib: name its folder with --working-dir"):
        bundle_code(folder / "lib" / "study.yaml", f"{name}:Mine")


def test_too_much_is_refused_before_it_is_read(folder: Path) -> None:
    with (folder / "data.bin").open("wb") as file:
        file.truncate(MAX_CODE_BYTES + 1)  # sparse
    with pytest.raises(InvalidInput, match=r"more than 64 MiB, and data\.bin has 64 of them; choose"):
        bundle_code(folder / "study.yaml", "net.py:Mine", folder)
    (folder / "images" / "raw").mkdir(parents=True)
    (folder / "data.bin").rename(folder / "images" / "raw" / "data.bin")
    with pytest.raises(InvalidInput, match="more than 64 MiB, and images/ has 64 of them; choose"):
        bundle_code(folder / "study.yaml", "net.py:Mine", folder)


def test_too_many_files_name_the_folder_that_has_most_of_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundling, "MAX_CODE_FILES", 3)
    with pytest.raises(InvalidInput, match="has 4 files, more than 3, 2 of them in lib/; choose a smaller folder"):
        bundle_code(folder / "study.yaml", "net.py:Mine", folder)


def test_a_data_directory_of_scamp_is_not_sent(folder: Path) -> None:
    before = bundle_code(folder / "study.yaml", "net.py:Mine", folder)
    lock_data_dir(folder / "state").close()
    (folder / "state" / "scamp.db").write_text("studies")
    assert bundle_code(folder / "study.yaml", "net.py:Mine", folder) == before


@pytest.mark.parametrize(
    "source",
    [
        "class Mine: ...",
        "from other import Mine",
        "from other import Theirs as Mine",
        "from other import *",
        "Mine = make()",
        "Mine: type = make()",
        "if True:\n  class Mine: ...",
        "try:\n  import x\nexcept ImportError:\n  class Mine: ...",
        "\ufeffclass Mine: ...",
        "# coding: latin-1\nclass Mine: ...",
        "'\\d'\nclass Mine: ...",
    ],
)
def test_a_class_may_come_to_be_in_many_ways(tmp_path: Path, source: str) -> None:
    (tmp_path / "net.py").write_text(source, encoding="utf-8")
    check_code("net.py:Mine", bundle_code(tmp_path / "study.yaml", "net.py:Mine"))


def test_a_sampler_of_the_user_is_sent_along_and_checked(tmp_path: Path) -> None:
    (tmp_path / "search.py").write_text("import optuna\n\ndef make(seed): ...\nready = make(1)\n")
    study = tmp_path / "study.yaml"
    code = bundle_code(study, "search.py:make")
    for name in ("search.py:make", "search.py:ready"):
        check_code("vit_digits", code, sampler=name)
    with pytest.raises(InvalidInput, match=r"search.py defines no other, which the sampler 'search.py:other' names"):
        check_code("vit_digits", code, sampler="search.py:other")
    with pytest.raises(InvalidInput, match=r"your files have no absent.py, which the sampler 'absent.py:make' names"):
        check_code("vit_digits", code, sampler="absent.py:make")
    with pytest.raises(InvalidInput, match=r"the sampler 'search.py:make' is your own file; upload it"):
        check_code("vit_digits", None, sampler="search.py:make")
    with pytest.raises(InvalidInput, match=r"the sampler 'absent.py:make' needs .*absent.py, which does not exist"):
        bundle_code(study, "search.py:make", None, ["absent.py:make"])
