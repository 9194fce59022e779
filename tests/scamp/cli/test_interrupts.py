"""Ctrl-C ends a command with one line at any time, unless it is ignored."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from scamp.cli import interrupts
from scamp_service.settings import ROOT


def test_ctrl_c_during_imports_is_one_line(tmp_path: Path) -> None:
    arguments = ["estimate", "stdlib_gpt", "--data-dir", str(tmp_path)]  # it would take seconds
    command = [sys.executable, "-X", "importtime", "-m", "scamp_service", *arguments]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a child would also ignore it
    started = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE)
    signal.signal(signal.SIGINT, before)
    with started as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.split()[-1:] == [b"typer"]:
                break
        process.send_signal(signal.SIGINT)
        lines = [line for line in process.stderr if not line.startswith(b"import time:")]
    assert lines[-1:] == [b"scamp: interrupted\n"] and not any(b"Traceback" in line for line in lines)
    assert process.returncode == interrupts.EXIT_CODE


def test_an_interrupt_that_python_discards_is_raised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[float] = []
    monkeypatch.setattr(signal, "setitimer", lambda timer, seconds: set_to.append(seconds))
    interrupts._raise_again(SimpleNamespace(exc_type=KeyboardInterrupt))
    assert set_to == [interrupts.AGAIN_SECONDS]


def test_where_ctrl_c_is_ignored_it_stays_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        interrupts.end_silently()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
