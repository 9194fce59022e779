"""Finds a user's own files that other ones import, so that they are sent along. Nothing is imported or run."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGES = ("scamp", "api", "scamp_service", "workloads", "placement", "estimators")
"""The packages of ScaMP: every service has them. They are no files of a user whose folder is a checkout."""
OUR_FOLDERS = tuple(Path(__file__).resolve().parents[2] / package for package in PACKAGES)


def with_imported(root: Path, files: Iterable[str]) -> set[str]:
    """These files, relative to ``root``, and all of the user's Python files that they import, also through others.

    A name is looked up next to the importing file and then in ``root``, as ``workloads.loading`` does. Names that are
    computed are not found, nor is anything outside ``root``; a file that is not valid Python imports nothing.
    """
    left, complete = [Path(file) for file in files], set[Path]()
    while left:
        if (file := left.pop()) not in complete:
            complete.add(file)
            left += _imported(root, file)
    return {file.as_posix() for file in complete}


def _imported(root: Path, file: Path) -> Iterator[Path]:
    """The user's files, relative to ``root``, that the imports of ``file`` run."""
    try:
        with warnings.catch_warnings():  # invalid escapes in the user's code are not our concern
            warnings.simplefilter("ignore")
            tree = ast.parse((root / file).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return  # whoever imports it says why it cannot be read
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _module(root, (file.parent, Path()), alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            folders: tuple[Path, ...] = (file.parent, Path())
            if node.level:
                parents = [file.parent, *file.parent.parents]
                folders = tuple(parents[node.level - 1 : node.level])
            parts = node.module.split(".") if node.module else []
            for alias in node.names:
                yield from _module(root, folders, [*parts, alias.name])


def _module(root: Path, folders: Iterable[Path], parts: list[str]) -> Iterator[Path]:
    """The files of a module and of the packages that it lies in, in the first folder that has it.

    The last part may also be a name in the module.
    """
    for folder in folders:
        first = folder / parts[0]
        if (root / first).resolve() in OUR_FOLDERS or not (_source(root, first) or any((root / first).glob("*.py"))):
            continue
        path = folder
        for part in parts:
            path /= part
            if source := _source(root, path):
                yield source
        return


def _source(root: Path, module: Path) -> Path | None:
    """The file of a module or package, given by its path without ``.py``."""
    files = (module / "__init__.py", module.with_name(f"{module.name}.py"))
    return next((file for file in files if (root / file).is_file()), None)
