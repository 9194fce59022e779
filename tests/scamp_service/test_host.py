"""Processes, told apart from those that have the same id on another host or at another time."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

from scamp_service.host import Process, source_hash


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


def test_the_sources_have_one_hash() -> None:
    assert len(source_hash()) == 16 and source_hash() == source_hash()
