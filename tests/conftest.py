"""Shared by all tests. What needs Ray, PostgreSQL, a browser or a GPU is marked; on CI only the GPU may be missing, and
the rights to make network namespaces."""

from __future__ import annotations

import gc
import itertools
import os
import shlex
import shutil
import signal
import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: on busy cores its threads wait for each other, spinning

import hypothesis
import pytest

from tests.services.hosts import why_not
from tests.services.postgres import find_postgres
from tests.services.processes import environment
from tests.services.warm import Warm
from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parent.parent

hypothesis.settings.register_profile("no deadline", deadline=None)  # tests time nothing: machines are busy
hypothesis.settings.load_profile("no deadline")


def find_chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


FULL = ("full", "ray", "browser")
"""Marks of tests that only ``make test-all`` runs, unless they are marked ``sample``."""


def mark_quick(items: list[pytest.Item]) -> None:
    """Mark as ``quick`` what ``make test`` runs: all but those that take long, of which a sample is its first case."""
    sampled = set()
    for item in items:
        if any(map(item.get_closest_marker, FULL)):
            function = item.nodeid.partition("[")[0]
            if not item.get_closest_marker("sample") or function in sampled:
                continue
            sampled.add(function)
        item.add_marker("quick")


def in_part(items: list[pytest.Item], part: str) -> list[pytest.Item]:
    """The tests of a part such as ``2/3``: every third test of each file. Together the three parts are all tests."""
    index, num_parts = map(int, part.split("/"))
    counts: dict[str, Iterator[int]] = {}
    for file in {item.nodeid.partition("::")[0] for item in items}:
        counts[file] = itertools.count(zlib.crc32(file.encode()))  # many files have only one test that takes long
    return [item for item in items if next(counts[item.nodeid.partition("::")[0]]) % num_parts == index - 1]


def longest_first(items: list[pytest.Item]) -> None:
    """Sort by file: those that take long begin first, so that at the end no process has one to itself.

    Those that mostly wait, for clusters of Ray, take turns with the others, which compute meanwhile.
    """
    ray, full = (
        list(dict.fromkeys(item.path for item in items if item.get_closest_marker(mark))) for mark in ("ray", "full")
    )
    turns = {path: turn for files in (full, ray) for turn, path in enumerate(files)}
    items.sort(key=lambda item: turns.get(item.path, len(turns)))


def missing_tools() -> dict[str, str | None]:
    """Mark → why tests with it cannot run here; None: they can."""
    return {
        "postgres": None if find_postgres() else "PostgreSQL's server binaries (initdb, postgres) are not installed",
        "browser": None if find_chromium() else "Chromium is not installed",
    }


def leave_without_tools(reason: str) -> None:
    pytest.exit(f"{reason}, and on CI nothing but GPUs and hosts may be skipped", returncode=2)


def pytest_sessionstart(session: pytest.Session) -> None:
    """End at SIGTERM as at Ctrl-C: fixtures end what they have started, and remove their folders."""
    if os.environ.get("CI") and session.config.getoption("numprocesses", None):  # reasons of workers are not printed
        for reason in filter(None, missing_tools().values()):
            leave_without_tools(reason)
    ours = os.getpid()

    def leave(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN if os.getpid() == ours else signal.SIG_DFL)
        if os.getpid() == ours:
            raise KeyboardInterrupt
        os.kill(os.getpid(), number)  # a fork ends as it would without us

    signal.signal(signal.SIGTERM, leave)


@pytest.hookimpl(tryfirst=True)  # before some are deselected by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_quick(items)
    if part := os.environ.get("TESTS_PART"):
        longer = [item for item in items if not any(map(item.get_closest_marker, ("quick", "soak")))]
        left_out = set(longer) - set(in_part(longer, part))
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    if "PYTEST_XDIST_WORKER" in os.environ:  # otherwise the order of the command line
        longest_first(items)
    missing = missing_tools()
    if any(item.get_closest_marker("hosts") for item in items):
        missing["hosts"] = why_not() or None
    for item in items:
        for marker, reason in missing.items():
            if item.get_closest_marker(marker) and reason:
                if os.environ.get("CI") and marker != "hosts":
                    leave_without_tools(reason)
                item.add_marker(pytest.mark.skip(reason=reason))


_MOST_FROZEN = 400_000  # objects, some 100 MiB
_unfreeze = gc.unfreeze


def pytest_collection_finish() -> None:
    """Every trace searches all objects for garbage, and pytest's process holds half a million that live to its end."""
    gc.unfreeze = lambda: None  # a trace undoes its own freezing, and with it this one
    _freeze()


_LOOK_EVERY = 25  # tests: to count what is frozen takes longer than most tests
_torn_down = itertools.count(1)


def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    if next(_torn_down) % _LOOK_EVERY == 0 and gc.get_freeze_count() - _num_frozen > _MOST_FROZEN:
        _unfreeze()
        _freeze()


_num_frozen = 0


def _freeze() -> None:
    global _num_frozen
    gc.collect()
    gc.freeze()
    _num_frozen = gc.get_freeze_count()


@pytest.hookimpl(optionalhook=True)  # of xdist
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Begin test processes as forks of one that has collected the tests."""
    warm = Warm()
    config.add_cleanup(warm.close)
    command = shlex.join(warm.test_process(config.invocation_params.args))
    for spec in specs:
        spec.python = command


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """One pair of warm processes for all tests of this pytest process."""
    started = Warm()
    yield started
    started.close()


@pytest.fixture(scope="session")
def warm_traces(warm: Warm) -> Iterator[None]:
    """From here on, trace processes of this pytest process begin as forks that are warm."""
    from scamp_service.sizing.tracing import trace_process

    usual, trace_process.COMMAND = trace_process.COMMAND, warm.command("workloads.sandbox.server")
    yield
    trace_process.COMMAND = usual


Scamp = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def scamp(warm: Warm) -> Scamp:
    """``scamp ARGUMENTS`` for a data directory, to its end, in a process of its own; it traces in warm ones."""

    def run(data_dir: Path, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        return warm.run(
            "scamp_service", list(map(str, arguments)), environment(data_dir, **variables), PATIENCE_SECONDS
        )

    return run
