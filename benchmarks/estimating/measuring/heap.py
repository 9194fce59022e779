"""Bytes that this process has allocated from the C library, as counted by ``heap.c``.

The library must be loaded when the process starts: see ``counting``.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

_SOURCE = Path(__file__).with_name("heap.c")


@contextmanager
def counting(least_bytes: int = 0) -> Iterator[dict[str, str]]:
    """Compile the counter; yields the environment variables with which a new process loads it.

    Blocks of fewer than ``least_bytes`` are not counted.

    Raises ``OSError`` or ``CalledProcessError`` if there is no C compiler.
    """
    with TemporaryDirectory() as folder:
        library = Path(folder, "heap.so")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, _SOURCE], check=True)
        yield {"LD_PRELOAD": str(library), "HEAP_LEAST_BYTES": str(least_bytes)}


def held() -> int:
    """Bytes allocated now."""
    return _call("heap_held")


def peak() -> int:
    """The most bytes allocated at once since ``forget_peak``."""
    return _call("heap_peak")


def forget_peak() -> None:
    """Set the peak back to the bytes allocated now."""
    _call("heap_reset")


def _call(name: str) -> int:
    function = getattr(ctypes.CDLL(None), name)
    function.restype = ctypes.c_long
    return int(function())
