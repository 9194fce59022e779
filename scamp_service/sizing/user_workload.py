"""Asks a user's workload something in a trace process, which imports its files: also for its search space."""

from __future__ import annotations

from scamp_service.errors import InvalidInput
from scamp_service.model import Json
from scamp_service.sizing.tracing.trace_process import TraceFailed, TraceProcess
from scamp_service.study.parse import parse_study
from scamp_service.study.spec import StudySpec
from scamp_service.study.workload_names import is_file
from scamp_service.temporary import temporary_folder

IMPORT_SECONDS = 60


def with_space(spec: StudySpec, code: bytes | None, process: TraceProcess | None = None) -> StudySpec:
    """The study with the search space that its workload's class gives in ``space()``, if it has none itself.

    Raises ``InvalidInput``. ``process`` is not ended here; without one, another is used.
    """
    if spec.space or code is None or not is_file(spec.workload):
        return spec
    used = process or TraceProcess()
    try:
        answer = ask_workload(spec, code, used, {"ask": "space"}, IMPORT_SECONDS)
    except TraceFailed as failed:
        raise cannot_be_used(spec, failed.reason) from None
    finally:
        if process is None:
            used.end()
    if not answer["space"]:
        raise InvalidInput(f"the study has no space, and {spec.workload!r} has no method space() that returns one")
    return parse_study({**spec.as_given(), "space": answer["space"]})


def ask_workload(spec: StudySpec, code: bytes, process: TraceProcess, question: Json, seconds: int) -> Json:
    """The answer to a question about the workload of a study (see ``workloads.sandbox.answers``).

    Raises ``TraceFailed``.
    """
    with temporary_folder() as directory:
        code_zip = directory / "code.zip"
        code_zip.write_bytes(code)
        files = {"workload": spec.workload, "code_zip": str(code_zip), "code_dir": str(directory / "code")}
        return process.ask({**files, **question}, seconds)


def cannot_be_used(spec: StudySpec, why: str) -> InvalidInput:
    """The refusal of a study whose workload cannot be imported, or is of the wrong form."""
    return InvalidInput(f"the workload {spec.workload!r} cannot be used: {why}")
