"""Finds what users' code has left behind in a process: objects, threads, child processes, open files and memory."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from estimators.model import MIB
from workloads.training.memory.process_memory import data_bytes

KEPT_BYTES = 64 * MIB
"""Memory beyond that after its first attempt with which a process is still clean. Libraries keep some (decision 9)."""
_END_SECONDS = 0.5  # for which threads that are about to end are waited for
_ALIVE = "__scamp_alive__"


class _Alive:
    """Lives as long as the global names of a module, which each of its functions holds."""

    __slots__ = ("__weakref__",)


class UserCode:
    """Modules of the user that nobody should hold any more. Their functions and classes are watched."""

    def __init__(self, modules: Iterable[ModuleType]) -> None:
        self._watched: list[tuple[str, weakref.ref[Any]]] = []
        for module in modules:
            names, file = vars(module), module.__name__.partition(".")[2] or module.__name__
            classes = [
                value for value in names.values() if isinstance(value, type) and value.__module__ == module.__name__
            ]
            self._watched += [(f"{file}.{class_.__qualname__}", weakref.ref(class_)) for class_ in classes]
            names[_ALIVE] = here = _Alive()
            self._watched.append((file, weakref.ref(here)))

    def alive(self) -> list[str]:
        """Names of the modules and classes that have not gone."""
        return sorted(name for name, here in self._watched if here() is not None)


class Leftovers:
    """Remembers what there is before users' code runs, so that what is new can be told from it."""

    def __init__(self) -> None:
        self._first_bytes: int | None = None  # memory of the process after its first attempt

    def remember(self) -> None:
        """Look at what there is, before the user's code is imported."""
        self._threads = set(threading.enumerate())
        self._children = set(_children())
        self._files = set(_files())

    def names(self, user_code: UserCode) -> Iterator[str]:
        """Names what is left. Call it after a garbage collection."""
        if threads := self._new_threads():
            yield f"threads still run: {', '.join(thread.name for thread in threads[:3])}"
        if held := user_code.alive():
            yield f"libraries still hold functions or objects of the user's code ({', '.join(held[:3])})"
        if children := set(_children()) - self._children - _harmless_children():
            yield f"child processes still run: {', '.join(map(str, sorted(children)))}"
        if files := sorted(set(_files()) - self._files):
            yield f"files are still open: {', '.join(files[:3])}"
        yield from self._kept_memory()

    def _new_threads(self) -> list[threading.Thread]:
        """Threads of Python that were started since; those that native code started are unknown to it."""
        new = [
            thread
            for thread in threading.enumerate()
            if thread not in self._threads and thread is not threading.current_thread()
        ]
        new = [thread for thread in new if not isinstance(thread, threading._DummyThread)]
        deadline = time.monotonic() + _END_SECONDS
        for thread in new:
            thread.join(max(0.0, deadline - time.monotonic()))
        return [thread for thread in new if thread.is_alive()]

    def _kept_memory(self) -> Iterator[str]:
        now = torch.cuda.memory_allocated() if torch.cuda.is_available() else data_bytes()
        if self._first_bytes is None:
            self._first_bytes = now
        elif (kept_bytes := now - self._first_bytes) > KEPT_BYTES:
            yield f"it holds {kept_bytes / MIB:.0f} MiB more than after its first attempt"


def _children() -> Iterator[int]:
    for task in Path("/proc/self/task").iterdir():
        try:
            yield from map(int, (task / "children").read_text().split())
        except OSError:  # the thread has ended
            continue


def _harmless_children() -> set[int]:
    """The process with which Python's ``multiprocessing`` tracks shared memory: one for the life of this process."""
    tracker = sys.modules.get("multiprocessing.resource_tracker")
    pid = getattr(getattr(tracker, "_resource_tracker", None), "_pid", None)
    return {pid} if pid else set()


def _files() -> Iterator[str]:
    """Paths of the regular files that are open. Sockets are not looked at, as Ray opens some at any time."""
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:  # it was that of the list
            continue
        if path.startswith("/") and not path.startswith(("/dev/", "/proc/", "/memfd:")):
            yield path
