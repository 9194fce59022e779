"""Runs code in a copy of this process, which may change whatever a process has."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from typing import Any


def in_fork(run: Callable[[], Any]) -> Any:
    """What ``run`` returns, as JSON, in a copy of this process that ends afterwards."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from Python 3.12 on, forks of processes with threads
        child = os.fork()
    if child == 0:
        try:
            answer = run()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        answer = json.loads(stream.read())
    os.waitpid(child, 0)
    return answer
