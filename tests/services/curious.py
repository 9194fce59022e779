"""A study whose code looks for secrets, as a user's could, and writes down what it has found."""

from __future__ import annotations

import json
from pathlib import Path

SECRETS = {
    "SCAMP_API_TOKEN": "the-token-of-the-api",
    "PGPASSWORD": "the-password-of-the-database",
    "AWS_SECRET_ACCESS_KEY": "the-key-of-the-operator",
}
CURIOUS = """
import json, os
from pathlib import Path
from workloads.models.vit_digits import VitDigits

def environments():
    yield "os.environ", "\\0".join(f"{name}={value}" for name, value in os.environ.items())
    pid = os.getpid()
    while pid > 1:
        try:
            of_whom = "self" if pid == os.getpid() else pid
            yield f"/proc/{of_whom}/environ", Path(f"/proc/{pid}/environ").read_text(errors="replace")
        except PermissionError:
            pass
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

found = [
    [where, entry.partition("=")[0]]
    for where, text in environments() for entry in text.split("\\0")
    if entry.partition("=")[2] in SECRETS or entry.startswith("SCAMP_PASS")
]
role = "rank" if "ray::" in Path("/proc/self/cmdline").read_text() else "trace"
with open(FILE, "a") as file:
    file.write(json.dumps([role, found]) + "\\n")

class Curious(VitDigits):
    pass
"""
STUDY = """
name: curious
workload: mine.py:Curious
objective: {metric: accuracy}
space: {lr: {low: 1e-3, high: 1e-2, log: true}}
fixed: {depth: 1, width: 32, patch: 4}
budget: {trials: 2, steps: 2, report_every: 1}
"""


def curious(folder: Path) -> Path:
    """A study whose code writes what it has found to ``found`` in ``folder``; each import adds a line."""
    study = folder / "study.yaml"
    study.write_text(STUDY)
    header = (
        f"SECRETS, FILE = {[*SECRETS.values(), given(folder)['SCAMP_DATABASE_URL']]!r}, {str(folder / 'found')!r}\n"
    )
    (folder / "mine.py").write_text(header + CURIOUS)
    return study


def found_in(folder: Path) -> dict[str, list[list[str]]]:
    """Findings in each role: pairs of place and name."""
    pairs_by_role: dict[str, list[list[str]]] = {}
    for line in (folder / "found").read_text().splitlines():
        role, pairs = json.loads(line)
        pairs_by_role.setdefault(role, []).extend(pairs)
    return pairs_by_role


def given(folder: Path) -> dict[str, str]:
    database = f"sqlite:///{folder}/data/scamp.db?timeout=7"
    return {**SECRETS, "SCAMP_DATABASE_URL": database, "SCAMP_PASS_ENVIRONMENT": "NOTHING"}
