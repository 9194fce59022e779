"""Runs a command where every user can read this Python, also if it lies in a home that others must not enter.

That is so in a namespace of mounts of the command's own: nothing changes for other processes.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

_SCRIPT = """
set -e
mount --make-rprivate /
aside=$(mktemp -d)
mount --bind "$2" "$aside"
mount -t tmpfs -o mode=755 tmpfs "$1"
mkdir -p "$2"
mount --bind "$aside" "$2"
umount "$aside"
rmdir "$aside"
shift 2
exec "$@"
"""


def closed_folder() -> Path | None:
    """The outermost folder above this Python that other users cannot search; None if they reach it."""
    python = Path(sys.base_prefix)
    return next((folder for folder in reversed(python.parents) if not folder.stat().st_mode & 0o001), None)


def where_python_is_seen(command: Sequence[str]) -> list[str]:
    """The command, in a namespace of its own if it needs one and root may make it."""
    folder = closed_folder()
    if folder is None or os.geteuid() != 0 or shutil.which("unshare") is None:
        return list(command)
    return ["unshare", "--mount", "sh", "-c", _SCRIPT, "sh", str(folder), sys.base_prefix, *command]
