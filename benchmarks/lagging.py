"""Lists pages of results, with how many files of the code that they measure have changed since.

Parts of a page were measured at the commits that it names, or before the days; the one with most changes counts. The
code is what the command in its ``Measured by`` imports, in this repository. No test asks for pages without changes:
nearly every commit would fail it.
"""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
_COMMAND = re.compile(r"Measured by `python -m ([\w.]+)")
_DAY = re.compile(r"\b20\d\d-\d\d-\d\d\b")
_COMMIT = re.compile(r"\bat ([0-9a-f]{8,40})\b")


def main() -> None:
    for page in (*sorted((ROOT / "docs" / "benchmarks").glob("*.md")), ROOT / "docs" / "papers.md"):
        if command := _COMMAND.search(text := page.read_text()):
            files = imported(command[1])
            days = _DAY.findall(text)
            before = [f"--until={min(days)} 00:00"] if days else ["--", str(page)]
            commits = [*_COMMIT.findall(text), _git("log", "-1", "--format=%h", *before)]
            number, commit = max((len(_changed(commit, files)), commit) for commit in commits)
            print(f"{page.relative_to(ROOT)}: {number} files have changed since {commit}")


def imported(module: str) -> set[Path]:
    """The files of this repository that a module imports, directly or by others, with its own."""
    files, pending = set[Path](), [module]
    while pending:
        name = ROOT / pending.pop().replace(".", "/")
        file = next((path for path in (name.with_suffix(".py"), name / "__init__.py") if path.is_file()), None)
        if file is None or file in files:
            continue
        files.add(file)
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                pending += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                pending += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return files


def _changed(commit: str, files: set[Path]) -> list[str]:
    names = {str(file.relative_to(ROOT)) for file in files}
    return [name for name in _git("diff", "--name-only", commit, "HEAD").splitlines() if name in names]


def _git(*arguments: str) -> str:
    ran = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return ran.stdout.strip()


if __name__ == "__main__":
    main()
