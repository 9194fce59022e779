"""Processes, told apart from those that have the same id on another host or at another time."""

from __future__ import annotations

import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from scamp_service.host import Process, allow_many_files, source_hash
from tests.services.processes import ROOT, environment
from tests.waiting import PATIENCE_SECONDS


def test_a_process_is_gone_once_it_has_ended_even_as_a_zombie() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = Process.of(child.pid)
    assert process.is_here and not process.is_gone
    process.kill()
    while child.poll() is None and not process.is_gone:
        pass
    assert process.is_gone
    child.communicate()
    assert process.is_gone


def test_a_process_is_not_mistaken_for_another_with_its_id() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = Process.of(child.pid)
    earlier, elsewhere = replace(process, started="1"), replace(process, kernel="another")
    earlier.kill()
    elsewhere.kill()
    assert earlier.is_gone
    assert not elsewhere.is_gone
    assert not elsewhere.is_here
    assert not process.is_gone
    assert child.poll() is None
    child.communicate(b"\n")


@pytest.mark.parametrize(
    ("limits", "raised"),
    [((1024, 524_288), (65_536, 524_288)), ((256, 1024), (1024, 1024)), ((1024, 1024), None), ((10**6, 10**6), None)],
)
def test_as_many_files_may_be_open_as_the_hard_limit_allows(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], raised: tuple[int, int] | None
) -> None:
    changes: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: changes.append(pair))
    allow_many_files()
    assert changes == ([raised] if raised else [])


@pytest.mark.full
def test_a_service_does_not_start_where_too_few_files_may_be_open(tmp_path: Path) -> None:
    command = f"ulimit -n 48; exec {sys.executable} -m scamp_service serve"
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=ROOT,
        env=environment(tmp_path / "data"),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 2
    assert "needs up to 256 open files, and only 48 are allowed here: raise the limit (`ulimit" in done.stderr
    assert not (tmp_path / "data").exists()


def test_the_sources_have_one_hash() -> None:
    assert len(source_hash()) == 16 and source_hash() == source_hash()
