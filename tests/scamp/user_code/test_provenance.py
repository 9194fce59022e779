"""A study says which command and which git commit it comes from, but no secret."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scamp.user_code.provenance import provenance

COMMIT = ["-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "-m", "first"]


def test_the_commit_of_a_checkout_is_named_and_whether_files_differ_from_it(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)

    assert "commit" not in provenance(tmp_path)
    git("init", "-q")
    file = tmp_path / "study.yaml"
    file.write_text("name: a")
    git("add", "study.yaml")
    git(*COMMIT)
    first = provenance(tmp_path)
    assert len(first["commit"]) == 40 and first["is_changed"] is False
    file.write_text("name: b")
    assert provenance(tmp_path) == first | {"is_changed": True}


def test_a_command_has_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["/opt/bin/scamp", "submit", "a b.yaml", "--token", "secret", "--token=secret"]
    monkeypatch.setattr(sys, "argv", words)
    assert provenance(tmp_path)["command"] == "scamp submit 'a b.yaml' --token '***' '--token=***'"
    monkeypatch.setattr(sys, "argv", ["/lib/ipykernel_launcher.py", "-f", "kernel.json"])
    assert "command" not in provenance(tmp_path)
