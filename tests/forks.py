"""Runs code in a copy of this process, which may change whatever a process has."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from typing import Any


def in_fork(run: Callable[[], Any]) -> Any:
    """The result of ``run``, as JSON, from a copy of this process that ends afterwards."""
    reading, writing = os.pipe()

    def answer() -> None:
        try:
            value = run()
        except BaseException as error:
            value = f"{type(error).__name__}: {error}"
        os.write(writing, json.dumps(value).encode())

    child = forked(answer)
    os.close(writing)
    with os.fdopen(reading) as stream:
        value = json.loads(stream.read())
    os.waitpid(child, 0)
    return value


def forked(run: Callable[[], object]) -> int:
    """Process id of a copy of this process that ends after ``run``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from Python 3.12 on, forks of processes with threads
        child = os.fork()
    if child == 0:
        try:
            run()
        finally:
            os._exit(0)
    return child
