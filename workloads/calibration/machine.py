"""Identifies the machine that is measured. It imports no torch, so that a search for a result starts quickly."""

from __future__ import annotations

import os
import platform
import re
from functools import cache
from importlib.metadata import version
from pathlib import Path


@cache
def cpu_name() -> str:
    """The CPU's model name, or the machine's architecture where Linux does not say it."""
    match = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    return match[1] if match else platform.machine()


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def measured_on() -> str:
    """Everything that changes what a measurement of the CPU finds: its model, the cores that may be used, and torch."""
    return f"{cpu_name()}, {num_cores()} cores, torch {_torch_version()}"


@cache
def _torch_version() -> str:
    return version("torch")
