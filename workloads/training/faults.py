"""Separates faults of the host and its storage from errors of the workload: an attempt that a fault ended runs again.

Decides nothing about when or how often; ``scamp_service.control.decide`` does.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from json import JSONDecodeError
from pickle import UnpicklingError
from typing import Any

FAULTS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE, errno.EREMOTEIO, errno.ENOLINK, errno.ENODEV}
)
"""Error numbers of a full, failing or lost file system (ESTALE, EREMOTEIO: NFS)."""
MOST_CAUSES = 1000


class HostFault(Exception):
    """This host cannot run the attempt; the message says why, and what to do."""


class StorageFault(HostFault):
    """The folder of the checkpoints cannot be used; the message names it and the cause."""


def host_fault(error: BaseException) -> str:
    """The fault of the host or its storage that caused ``error``, in words; empty if it has another cause."""
    for cause in causes_of(error):
        if isinstance(cause, HostFault):
            return str(cause)
        if isinstance(cause, OSError) and cause.errno in FAULTS:
            return _words(cause)
    return ""


def storage_error(error: BaseException) -> str:
    """The failed file operation that caused ``error``, in words; empty if none did.

    Any such error counts, because the workload's own code does not touch the checkpoints.
    """
    for cause in causes_of(error):
        if isinstance(cause, OSError) and not isinstance(cause, ConnectionError):  # that is a lost rank
            return _words(cause)
        if isinstance(cause, RuntimeError) and _OF_TORCHS_FILES.search(message_of(cause)):  # it hides the error number
            return f"is the disk full or failing? {str(cause).strip().splitlines()[0]}"
        if isinstance(cause, _DAMAGED):
            return f"a file in it is damaged: {type(cause).__name__} {cause}".strip().splitlines()[0]
    return ""


_OF_TORCHS_FILES = re.compile("PytorchStream|inline_container|iostream error")
_DAMAGED = (EOFError, UnpicklingError, JSONDecodeError)


def _words(error: OSError) -> str:
    text = error.strerror or message_of(error) or os.strerror(error.errno or 0)
    return f"{text}: {error.filename}" if error.filename else text


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes, each once; also what torch's ``CheckpointException`` collects from all ranks.

    Errors of users may cause each other, or have attributes of any kind.
    """
    seen: set[int] = set()
    waiting: list[Any] = [error]
    while waiting and len(seen) < MOST_CAUSES:
        cause = waiting.pop(0)
        if not isinstance(cause, BaseException) or id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        if isinstance(failures := vars(cause).get("_failures"), dict):
            waiting += [failure[0] for failure in failures.values() if isinstance(failure, tuple) and failure]
        waiting += [cause.__cause__, cause.__context__]


def message_of(error: BaseException) -> str:
    """The message of an error; empty if its own class fails to give one."""
    try:
        return str.__str__(str(error))
    except BaseException:
        return ""
