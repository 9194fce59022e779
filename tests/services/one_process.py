"""Runs the code that execnet passes to ``python -u -c``, in a fork of a process that has collected the tests.

A process that ``multiprocessing`` starts imports this module again, under another name, and must not run it.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    exec(sys.argv[-1])
