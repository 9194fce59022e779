"""Runs the code that execnet passes to ``python -u -c``, in a fork of a process that has collected the tests."""

from __future__ import annotations

import sys

exec(sys.argv[-1])
