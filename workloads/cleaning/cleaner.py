"""Cleans a process between two attempts of the same user code, so that the second one begins as if in a new process.

Settings get their values back, the user's modules are forgotten, and what they leave behind is looked for: the process
is not clean while anything of the user's code lives on. Libraries stay imported, because importing them takes seconds;
their functions and flags are compared. Python can hide state where nobody looks, so this is for honest code: users who
do not trust each other never share a process.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

from workloads.cleaning.leftovers import Leftovers, UserCode
from workloads.cleaning.libraries import Libraries, forget_classes
from workloads.cleaning.settings import ProcessSettings
from workloads.loading import forget_user_code
from workloads.training.memory.process_memory import give_back_free_memory


class Cleaner:
    """Cleans this process again and again. Call both methods in the thread that runs the user's code."""

    def __init__(self) -> None:
        self._libraries, self._leftovers = Libraries(), Leftovers()

    def remember(self) -> None:
        """Remember the state of this process, before the user's code is imported."""
        if self._libraries.remember():
            gc.collect()
            gc.freeze()  # what libraries hold lives as long as the process: collections stay short
        self._leftovers.remember()
        self._settings = ProcessSettings()

    def restore(self, code_dir: Path) -> str:
        """Restore what was remembered, after the user's code in ``code_dir`` has run.

        Returns why the process cannot run another attempt; empty if it is clean. Nothing of the user's may be on the
        stack any more.
        """
        user_code = UserCode(forget_user_code(code_dir, self._libraries.names))
        forget_classes()
        failed = self._settings.restore()
        give_back_free_memory()
        why = [*failed, *self._leftovers.names(user_code), *self._libraries.changed()]
        sys.path_importer_cache.pop(str(code_dir.resolve()), None)
        return "; ".join(why)
