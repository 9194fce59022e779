"""Runs what a case must measure in a Python process of its own, with one thread and a limit of time."""

from __future__ import annotations

import os
import subprocess
import sys


def last_line(*arguments: str, seconds: float, **environment: str) -> str:
    """Of what ``python arguments`` prints. Raises ``TimeoutError`` after so many seconds by the clock, and
    ``RuntimeError`` when the process fails, with the last that it had to say."""
    own = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, *arguments]
    try:
        done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"took more than {seconds:g} s: allow more with --seconds") from None
    if done.returncode or not done.stdout.strip():
        said = done.stderr.strip().splitlines() or ["nothing on stderr"]
        raise RuntimeError(f"the measured process ended with {done.returncode}: {said[-1]}")
    return done.stdout.splitlines()[-1]
