"""Runs a case's measurement in a separate Python process, with one thread and a time limit."""

from __future__ import annotations

import os
import subprocess
import sys


def last_line(*arguments: str, seconds: float, **environment: str) -> str:
    """The last line that ``python arguments`` prints; ``environment`` is added to this process's environment.

    Raises ``TimeoutError`` after ``seconds`` of wall-clock time, and ``RuntimeError``, with the last line of stderr,
    when the process fails.
    """
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, *arguments]
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"took more than {seconds:g} s: allow more time with --seconds") from None
    if done.returncode or not done.stdout.strip():
        said = done.stderr.strip().splitlines() or ["nothing on stderr"]
        raise RuntimeError(f"the measured process ended with exit code {done.returncode}: {said[-1]}")
    return done.stdout.splitlines()[-1]
