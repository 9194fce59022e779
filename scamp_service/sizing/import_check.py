"""Checks that the workload of a study with the user's own files can be imported, before the study is stored.

The files are imported in a trace process, limited in time and memory, never here. Whether candidates can be built and
trained shows later, trial by trial.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from scamp_service.errors import InvalidInput
from scamp_service.sizing.trace_process import TraceFailed, TraceProcess
from scamp_service.study.spec import StudySpec
from scamp_service.study.user_code import check_code

IMPORT_SECONDS = 60


def check_import(spec: StudySpec, code: bytes | None, process: TraceProcess | None = None) -> None:
    """Raise ``InvalidInput`` for a workload that is unknown, is not in ``code`` (a zip), or cannot be imported.

    ``process`` is for callers that may have to kill it from another thread. It is ended here.
    """
    check_code(spec.workload, code)
    if code is None:
        return
    process = process or TraceProcess()
    with tempfile.TemporaryDirectory(prefix="scamp-") as directory:
        code_zip = Path(directory, "code.zip")
        code_zip.write_bytes(code)
        request: dict[str, Any] = {
            "ask": "load",
            "workload": spec.workload,
            "code_zip": str(code_zip),
            "code_dir": str(Path(directory, "code")),
        }
        try:
            process.ask(request, IMPORT_SECONDS)
        except TraceFailed as failed:
            raise InvalidInput(f"the workload {spec.workload!r} cannot be used: {failed.reason}") from None
        finally:
            process.end()
