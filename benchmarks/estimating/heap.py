"""Bytes that this process holds from the C library, counted by ``heap.c``, which must be loaded before it starts."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

_SOURCE = Path(__file__).with_name("heap.c")


@contextmanager
def counting() -> Iterator[dict[str, str]]:
    """What to add to the environment of a process, so that it counts. Raises ``OSError`` or ``CalledProcessError``
    where there is no C compiler."""
    with TemporaryDirectory() as folder:
        library = Path(folder, "heap.so")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, _SOURCE], check=True)
        yield {"LD_PRELOAD": str(library)}


def held() -> int:
    return _call("heap_held")


def peak() -> int:
    """The most at once since ``forget_peak``."""
    return _call("heap_peak")


def forget_peak() -> None:
    _call("heap_reset")


def _call(name: str) -> int:
    function = getattr(ctypes.CDLL(None), name)
    function.restype = ctypes.c_long
    return int(function())
