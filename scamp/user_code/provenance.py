"""Says where a study comes from: the command that submits it, and the git commit of the folder of its files."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

HEADER = "Scamp-Provenance"
"""The header of a submission that has it, as JSON in ASCII."""
MOST_COMMAND = 2000
GIT_SECONDS = 5.0
_SECRET_OPTIONS = ("--token",)


def provenance(folder: Path) -> dict[str, Any]:
    """``command``, and in a git checkout ``commit`` and ``is_changed``: whether tracked files differ from it."""
    origin = _command()
    if commit := _git(folder, "rev-parse", "HEAD"):
        origin |= {"commit": commit, "is_changed": bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))}
    return origin


def provenance_headers(folder: Path) -> dict[str, str]:
    """The header of a submission from a folder."""
    return {HEADER: json.dumps(provenance(folder))}


def copied_headers(original: Mapping[str, Any]) -> dict[str, str]:
    """The header of a submission with the files of a study that came from ``original``."""
    files = {name: original[name] for name in ("commit", "is_changed") if original.get(name) is not None}
    return {HEADER: json.dumps({**files, **_command()})}


def _command() -> dict[str, Any]:
    if "ipykernel" in sys.argv[0]:
        return {}
    return {"command": shlex.join(_without_secrets(sys.argv))[:MOST_COMMAND]}


def _without_secrets(words: list[str]) -> list[str]:
    """The words of a command, its program by name alone and the values of secret options left out."""
    program = Path(words[0])
    shown = ["scamp" if program.name == "__main__.py" and program.parent.name.startswith("scamp") else program.name]
    for before, word in pairwise(words):
        option = next((each for each in _SECRET_OPTIONS if word.startswith(f"{each}=")), None)
        shown.append("***" if before in _SECRET_OPTIONS else f"{option}=***" if option else word)
    return shown


def _git(folder: Path, *words: str) -> str:
    """Ask git about a folder; the answer is empty if it fails, is not there or takes long."""
    command = ["git", "-C", str(folder), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return done.stdout.strip()
