"""Collects the tests of a run, then listens at a socket for who wants a fork of this process: a module that is imported
once need not be imported by each test process. Not a test module.

``python -m tests.services.collected SOCKET ARGUMENTS`` takes the arguments of pytest.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.services.warm import listen, serve

if __name__ == "__main__":
    socket, *arguments = sys.argv[1:]
    said = os.dup(1)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    pytest.main([*arguments, "--collect-only", "-n0"])  # where that fails, each test process says why
    sys.stdout.flush()
    os.dup2(said, 1)
    os.close(said)
    serve(listen(Path(socket)))
