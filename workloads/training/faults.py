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

FAULTS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE, errno.EREMOTEIO, errno.ENOLINK, errno.ENODEV}
)
"""Error numbers of a full, failing or lost file system (ESTALE, EREMOTEIO: NFS)."""


class HostFault(Exception):
    """This host cannot run the attempt; the message says why, and what to do."""


class StorageFault(HostFault):
    """The folder of the checkpoints cannot be used; the message names it and the cause."""


def host_fault(error: BaseException) -> str:
    """The fault of the host or its storage that caused ``error``, in words; empty if it has another cause."""
    for cause in _causes(error):
        if isinstance(cause, HostFault):
            return str(cause)
        if isinstance(cause, OSError) and cause.errno in FAULTS:
            return _words(cause)
    return ""


def storage_error(error: BaseException) -> str:
    """The failed file operation that caused ``error``, in words; empty if none did.

    Any such error counts, because the workload's own code does not touch the checkpoints.
    """
    for cause in _causes(error):
        if isinstance(cause, OSError) and not isinstance(cause, ConnectionError):  # that is a lost rank
            return _words(cause)
        if isinstance(cause, RuntimeError) and _OF_TORCHS_FILES.search(str(cause)):  # it hides the error number
            return f"is the disk full or failing? {str(cause).strip().splitlines()[0]}"
        if isinstance(cause, _DAMAGED):
            return f"a file in it is damaged: {type(cause).__name__} {cause}".strip().splitlines()[0]
    return ""


_OF_TORCHS_FILES = re.compile("PytorchStream|inline_container|iostream error")
_DAMAGED = (EOFError, UnpicklingError, JSONDecodeError)


def _words(error: OSError) -> str:
    text = error.strerror or str(error) or os.strerror(error.errno or 0)
    return f"{text}: {error.filename}" if error.filename else text


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes; also what torch's ``CheckpointException`` collects from all ranks."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        cause = waiting.pop(0)
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        waiting += [failure for failure, _ in getattr(cause, "failures", {}).values()]
        waiting += [cause.__cause__, cause.__context__]
