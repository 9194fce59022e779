"""Imports libraries once that each fork of the trace process would import again.

The process that forks never runs a user's code, so a fork says which installed packages that code has imported. They
are imported there only if the fork has seen nothing by which an import could differ from time to time: an import may
depend on environment variables, and leave threads behind, which a fork does not have.
"""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
from collections.abc import Collection, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

_TASKS = Path("/proc/self/task")


def imported_since(modules: Collection[str], environment: Mapping[str, str]) -> list[str]:
    """Names of installed modules in the order in which they were imported, without ``modules``, which were before.

    Empty if the process has another ``environment`` now, or more than one thread.
    """
    if dict(os.environ) != dict(environment) or _num_threads() != 1:
        return []
    return [name for name in list(sys.modules) if name not in modules and _is_installed(sys.modules[name])]


def import_all(names: Iterable[str]) -> None:
    """Import modules that are installed; one that cannot be imported is left to the forks."""
    for name in names:
        with contextlib.suppress(Exception, SystemExit):
            if name not in sys.modules and _is_in_libraries(getattr(find_spec(name), "origin", None)):
                import_module(name)


def _is_installed(module: object) -> bool:
    return _is_in_libraries(getattr(getattr(module, "__spec__", None), "origin", None))


def _is_in_libraries(origin: str | None) -> bool:
    folders = (sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib"))
    return origin is not None and any(Path(origin).is_relative_to(folder) for folder in folders)


def _num_threads() -> int:
    return len(list(_TASKS.iterdir())) if _TASKS.exists() else 2
