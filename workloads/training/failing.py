"""Ends a rank of ``workloads.debug`` that has failed: the first one says why, and the others say nothing.

The words are those that a trial keeps. Above them are the lines of the user's files through which the error came.
torchrun shows the words once more at the end of its summary.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import torch.distributed as dist
from torch.distributed import Store

from workloads.refusals import explain, is_users, traceback_of
from workloads.training.attempt.loop import NonFiniteLoss
from workloads.training.faults import host_fault
from workloads.training.guard.division import DependsOnDivision
from workloads.training.guard.resuming import ResumesDifferently
from workloads.training.memory.budget import OutOfMemory
from workloads.training.runtime import lost_its_peers

_KEY = "scamp/failed"
_CAUSE_SECONDS = 5
"""How long a rank that has only lost its peers waits for the rank that knows why."""
_END_SECONDS = 30
"""How long torchrun may take to end the other ranks. A rank that ends by itself would get a page in its summary."""


def end_rank(error: BaseException, folder: Path | None, store: Store | None, *, shows_all: bool) -> NoReturn:
    """End this rank with a code that is not 0, and say why unless another rank has.

    ``folder`` holds the user's files, None for a built-in workload; ``store`` is that of the gang, None for one rank.
    """
    is_lost = store is not None and lost_its_peers(error)
    if store is not None and not _is_first(store, is_lost):
        if "TORCHELASTIC_RUN_ID" in os.environ:
            time.sleep(_END_SECONDS)
        raise SystemExit(1)
    words = " ".join(str(error).split()) if is_lost else _words(error, folder)
    _note_for_torchrun(words)
    if shows_all:
        raise SystemExit(traceback_of(error) + words)
    raise SystemExit(words if is_lost else _users_lines(error, folder) + words)


def _is_first(store: Store, is_lost: bool) -> bool:
    """Whether this rank has failed first; one that ``is_lost`` lets others go first."""
    try:
        if is_lost:
            store.wait([_KEY], timedelta(seconds=_CAUSE_SECONDS))
        return store.add(_KEY, 1) == 1
    except (dist.DistError, RuntimeError):  # nobody has failed, or the process that holds the store has ended
        return True


def _words(error: BaseException, folder: Path | None) -> str:
    if isinstance(error, NonFiniteLoss | OutOfMemory | DependsOnDivision | ResumesDifferently):
        return str(error)
    return host_fault(error) or explain(error, folder, in_training=True)


def _users_lines(error: BaseException, folder: Path | None) -> str:
    """A traceback of the user's files alone; empty if it has only one line, which the words have as well."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename, folder)]
    if len(frames) < 2:
        return ""
    return f"Traceback in your files (all of it: --traceback):\n{''.join(traceback.format_list(frames))}"


def _note_for_torchrun(words: str) -> None:
    """Write the file from which torchrun takes the cause of a failure."""
    if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        message = {"message": words, "extraInfo": {"timestamp": str(int(time.time()))}}
        Path(file).write_text(json.dumps({"message": message}))
