"""Answers one request about a workload in this process: loads it, traces it, or checks its parameters.

Nothing here limits what the workload's code may do; ``workloads.sandbox.fork`` does.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from estimators.model import Layout
from estimators.tracing.session import Recipe
from estimators.tracing.tracer import examples, trace, trace_peak
from workloads.archive import ArchiveError, unpack_code
from workloads.loading import WorkloadError, load_estimable, load_workload
from workloads.protocol import Workload
from workloads.sandbox.imports import check_imports
from workloads.sandbox.recipe import recipe_of

MEMORY_BYTES = 8 * 2**30  # of real memory: data sets, mostly; the model itself takes none
TRACEBACK_BYTES = 4000


def profile(request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a request in this process: with what was asked for, or an error, of kind params or workload.

    ``ask`` is one of

    - load: load the workload, as ranks do, and look for imports in it that would fail; the answer is empty;
    - trace: the ``layout`` of a candidate of ``params``; ``equal_blocks`` as another layout's answer has it;
    - candidates: of each of a list of ``params`` its batch, or what the workload has against them;
    - examples: for blueprints (``estimators.scaling.blueprint``), two, of ``params``, ``layout`` and ``micro_batch``;
    - peak: bytes of the same, traced whole.

    ``on_cuda`` asks for what it does on CUDA. User files come as a zip, ``code_zip``, and the folder to unpack it into,
    ``code_dir``; both are null for a built-in workload. Parameters that the workload refuses (``ValueError`` in its
    constructor) are ``params``: the candidate makes no sense. Whatever else goes wrong is the ``workload``'s fault.
    """
    code_dir = Path(request["code_dir"]) if request["code_dir"] else None
    try:
        if code_dir is not None:
            unpack_code(Path(request["code_zip"]).read_bytes(), code_dir)
        return _ASKED[request["ask"]](request, code_dir)
    except _RefusedParams as error:
        return error_answer("params", str(error))
    except (ArchiveError, WorkloadError) as error:
        return error_answer("workload", str(error))
    except BaseException as error:  # also SystemExit and KeyboardInterrupt that a user's code raises
        return error_answer("workload", _explain(error), _user_frames(error, code_dir))


class _RefusedParams(Exception):
    pass


def _load(request: Mapping[str, Any], code_dir: Path | None) -> dict[str, Any]:
    check_imports(load_workload(request["workload"], code_dir))
    return {}


def _trace(request: Mapping[str, Any], code_dir: Path | None) -> dict[str, Any]:
    workload, batch = _candidate(load_estimable(request["workload"], code_dir), request["params"])
    recipe, layout = recipe_of(workload, request["on_cuda"]), Layout.from_json(request["layout"])
    return trace(recipe, layout, batch, request["equal_blocks"]).to_json()


def _candidates(request: Mapping[str, Any], code_dir: Path | None) -> dict[str, Any]:
    make = load_estimable(request["workload"], code_dir)

    def checked(params: Mapping[str, Any]) -> int | str:
        try:
            return _candidate(make, params)[1]
        except _RefusedParams as error:
            return str(error)

    return {"candidates": [checked(params) for params in request["params"]]}


def _examples(request: Mapping[str, Any], code_dir: Path | None) -> dict[str, Any]:
    return {"examples": [one.to_json() for one in examples(*_wish(request, code_dir))]}


def _peak(request: Mapping[str, Any], code_dir: Path | None) -> dict[str, Any]:
    return {"peak": trace_peak(*_wish(request, code_dir)).fixed_bytes}


def _wish(request: Mapping[str, Any], code_dir: Path | None) -> tuple[Recipe, Layout, int]:
    workload, _ = _candidate(load_estimable(request["workload"], code_dir), request["params"])
    return recipe_of(workload, request["on_cuda"]), Layout.from_json(request["layout"]), request["micro_batch"]


_ASKED = {"load": _load, "trace": _trace, "candidates": _candidates, "examples": _examples, "peak": _peak}


def _candidate(make: Callable[[dict[str, Any]], Workload], params: Mapping[str, Any]) -> tuple[Workload, int]:
    """With its batch."""
    try:
        workload = make(dict(params))
    except ValueError as error:
        raise _RefusedParams(str(error) or "the workload refuses these parameters") from None
    batch = params.get("batch", workload.default_batch)
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise _RefusedParams(f"batch must be a positive whole number, got {batch!r}")
    return workload, batch


def error_answer(kind: str, message: str, frames: str = "") -> dict[str, Any]:
    return {"error": message, "kind": kind, "traceback": frames}


def _explain(error: BaseException) -> str:
    """One line; in the words of someone who wrote a model, not a tracer."""
    if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        return (
            "the training step depends on the values of tensors, as by .item(), float(tensor), tensor.nonzero() or an "
            f"if on a tensor, so its memory cannot be told before it runs ({error.func}); keep values in tensors"
        )
    if isinstance(error, MemoryError):
        return f"the workload needs more than {MEMORY_BYTES >> 30} GiB of memory before any training"
    return traceback.format_exception_only(error)[-1].strip()


def _user_frames(error: BaseException, code_dir: Path | None) -> str:
    """The traceback without the frames of torch and of ours, unless only these are left."""
    frames = traceback.extract_tb(error.__traceback__)
    sandbox = Path(__file__).parent
    home = code_dir.resolve() if code_dir is not None else sandbox.parent

    def is_own(file: Path) -> bool:
        return file.is_relative_to(home) and not file.is_relative_to(sandbox)

    own = [frame for frame in frames if is_own(Path(frame.filename))]
    return "".join(traceback.format_list(own or list(frames)))[-TRACEBACK_BYTES:]
