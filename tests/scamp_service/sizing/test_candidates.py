"""Candidates of functions and classes are found in any folder."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from scamp_service.sizing.candidates import candidates_of


@pytest.mark.parametrize(
    "workload_name", ["../made/net.py:net", "{folder}/made/net.py:net", "made/net.py:net", "made.net:net"]
)
def test_a_function_may_be_in_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workload_name: str) -> None:
    is_below = workload_name.startswith("made")
    for name in ("made", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "made" / "net.py").write_text("def net(): ...\n")
    monkeypatch.chdir(tmp_path if is_below else tmp_path / "other")
    candidates = candidates_of(workload_name.format(folder=tmp_path), {"width": 8})
    name = "made/net.py" if is_below else "net.py"
    assert candidates.workload == f"{name}:net"
    assert candidates.code is not None and zipfile.ZipFile(io.BytesIO(candidates.code)).namelist() == [name]
