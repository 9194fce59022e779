"""Lists the files that trials keep (``scamp.workload.trial``). Without torch: the API lists them too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path, PurePosixPath

from scamp.workload.trial import ARTIFACTS, MOST_CHARACTERS, NAME_PART, Slab, TrialContext, checked_name
from workloads.files.untrusted import names_in, open_folder, plain_status

__all__ = ["ARTIFACTS", "MAX_LISTED", "Slab", "TrialContext", "checked_name", "kept_files"]

MAX_LISTED = 10_000
"""Files of a trial that are listed."""


def kept_files(root: Path, below: str) -> Iterator[tuple[str, os.stat_result]]:
    """Name and status of each file that is kept in the folder ``below`` a trusted ``root``, at most ``MAX_LISTED``.

    They are in the order of their names, folder by folder; none if there is no such folder. Whatever ``TrialContext``
    has not written, such as a link or a name that it refuses, is left out.
    """
    return islice(_kept_in(root, PurePosixPath(below), PurePosixPath()), MAX_LISTED)


def _kept_in(root: Path, top: PurePosixPath, inside: PurePosixPath) -> Iterator[tuple[str, os.stat_result]]:
    try:
        with open_folder(root, top / inside) as folder:
            names = [name for name in names_in(folder) if NAME_PART.fullmatch(name)]
            entries = [(inside / name, plain_status(folder, name)) for name in names]
    except OSError:  # it is not there, or no folder
        return
    for path, status in entries:
        if len(str(path)) > MOST_CHARACTERS:
            continue
        if status is None:
            yield from _kept_in(root, top, path)
        else:
            yield str(path), status
