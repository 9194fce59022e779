"""The environment variables that users' code may read: an allow-list, so that tokens and passwords stay out of it.

A process that users' code may look at hides the others as well: Linux shows the environment that a process was started
with to every process of the same user, in ``/proc/PID/environ``, whatever the process has removed from it since.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

PASS_ENVIRONMENT = "SCAMP_PASS_ENVIRONMENT"
ALLOWED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "TERM", "XDG_*"),
    *("PYTHON*", "VIRTUAL_ENV", "LD_*", "MALLOC_*", "SSL_CERT_*", "REQUESTS_CA_BUNDLE"),
    *("CUDA_*", "CUBLAS_*", "CUDNN_*", "NVIDIA_*", "NCCL_*", "GLOO_*", "TORCH*", "PYTORCH_*", "TRITON_*", "KINETO_*"),
    *("UCX_*", "FI_*", "RDMAV_*"),  # fabrics between hosts, which NCCL's plug-ins use
    *("OMP_*", "KMP_*", "GOMP_*", "MKL_*", "OPENBLAS_*", "DNNL_*", "ONEDNN_*"),
    *("HF_HOME", "HF_DATASETS_CACHE", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_*"),
    *("SCAMP_DATA_DIR", "SCAMP_CHECKPOINT_DIR", "SCAMP_CHECKPOINT_CACHE"),
    PASS_ENVIRONMENT,
)
"""Names, with ``*`` for any characters."""
OF_RAY = ("RAY_*", "SPT_NOENV")
"""Names that a process of Ray needs as well. ``SPT_NOENV`` keeps setproctitle away from the environment."""
NEVER_OF_RAY = ("RAY_AUTH_TOKEN",)
"""Ray has read it by the time that a rank exists; ``RAY_AUTH_TOKEN_PATH`` is only the name of a file."""


def user_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables in ``environment`` that users' code may read.

    ``SCAMP_PASS_ENVIRONMENT`` in it lists further names, separated by commas, such as ``DATASETS,WANDB_*``.
    """
    may_read = _filter((*ALLOWED, *_names(environment.get(PASS_ENVIRONMENT, ""))))
    return {name: value for name, value in environment.items() if may_read(name)}


def hide_environment() -> None:
    """Hide the variables that users' code may not read from ``/proc/PID/environ``; this process keeps its copies.

    Call it in each process of ours that may be an ancestor of users' code, as early as possible.
    """
    may_read = _filter((*ALLOWED, *_names(os.environ.get(PASS_ENVIRONMENT, ""))))
    for address, entry, name in list(_shown_variables()):
        if not may_read(name):
            if name in os.environ:
                os.environ[name] = os.environ[name]  # from here on, the C library reads a copy on the heap
            ctypes.memset(address, 0, len(entry))


def close_environment(passed: str) -> None:
    """Remove the variables that users' code may not read from this process of Ray, before that code is imported.

    ``passed`` lists further names that it may read, as ``SCAMP_PASS_ENVIRONMENT`` of this host does.
    """
    further = (*_names(passed), *_names(os.environ.get(PASS_ENVIRONMENT, "")))
    of_ray = _filter(OF_RAY)
    filtered = _filter((*ALLOWED, *further))

    def may_read(name: str) -> bool:
        return filtered(name) or (of_ray(name) and name not in NEVER_OF_RAY)

    for name in [name for name in os.environ if not may_read(name)]:
        del os.environ[name]
    for address, entry, name in list(_shown_variables()):
        if not may_read(name):
            ctypes.memset(address, 0, len(entry))


def _names(listed: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in listed.split(",") if name.strip())


def _filter(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    return lambda name: any(fnmatchcase(name, pattern) for pattern in patterns)


def _shown_variables() -> Iterator[tuple[int, bytes, str]]:
    """(address, bytes, name) of each variable that ``/proc/self/environ`` shows; none on systems other than Linux.

    ``/proc/self/stat`` says where they are: see proc(5), ``env_start`` and ``env_end``.
    """
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return
    address, end = int(fields[47]), int(fields[48])  # fields 50 and 51; the first two stand before the parenthesis
    for entry in ctypes.string_at(address, end - address).split(b"\0"):
        if entry:
            yield address, entry, os.fsdecode(entry.partition(b"=")[0])
        address += len(entry) + 1
