"""Answers one request about a workload in this process: loads it, traces it, or checks its parameters.

The limits on the workload's code are set elsewhere, in ``workloads.sandbox.fork``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from estimators.model import Layout
from estimators.tracing.session.recipe import Recipe
from estimators.tracing.tracer import examples, trace_peak
from scamp.workload.hints import Contradiction
from workloads.batch import BatchRequest, to_try, with_batch
from workloads.files.archive import unpack_code
from workloads.imports import check_imports
from workloads.loading import load_estimable, load_workload
from workloads.options import TrainingOptions
from workloads.protocol import Workload
from workloads.refusals import WorkloadError, WrongResult, explain, without_folder
from workloads.sandbox.batch_check import coupling_of, expect_metrics_of_samples
from workloads.sandbox.carried_state import traced
from workloads.sandbox.dry_run import MetricFailed, NotingParams, mentioned, quoted_names, try_candidates, unread
from workloads.sandbox.proxies import proxy
from workloads.sandbox.recipe import recipe_of
from workloads.sandbox.slab_check import difference_of_slabs
from workloads.sandbox.split_check import difference_of_parts
from workloads.training.data.data_checks import expect_data, expect_order
from workloads.training.faults import host_fault
from workloads.training.updates.update import scaled_from

log = logging.getLogger("scamp.tracing")

_PASSES_OF_STEP = 3
"""A backward pass takes about twice the FLOPs of a forward pass."""
MEMORY_BYTES = 8 * 2**30  # limit on real memory, which is mostly for data sets; the fake model takes none


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a request in this process: the answer holds the result, or an error with its kind.

    ``ask`` is one of

    - load: load the workload as ranks do, and look for imports in it that would fail; the answer is empty;
    - dry run: the same, and try the candidates of the list ``params`` (see ``workloads.sandbox.dry_run``); the answer
      has the ``tries``, whether ``all_tried``, which of all parameters and of the objectives, ``metrics``, are
      ``mentioned`` in the user's code, whether the workload has a method ``inherit``, and what is ``wrong`` with the
      workload, in words;
    - space: the search space that the workload's class gives in ``space()``; empty if it gives none;
    - trace: trace a candidate with ``params`` under ``layout``, after a check that slabs of samples and parts of
      layers, if it has any, compute what the whole does; ``equal_blocks`` comes from another layout's answer. The plain
      layout's answer also has the ``traits`` of the code, and whether samples differ in size, ``is_uneven``;
    - candidates: for each item of the list ``params``, its batch, or the reason why the workload refuses it;
    - examples: for each item of the list ``points``, with ``params``, ``layout`` and ``micro_batch``, two examples for
      blueprints (``estimators.scaling.blueprint``);
    - peak: peak bytes at such a point, from a trace of the whole model;
    - proxy: the value of a zero-cost proxy, ``proxy``, of a candidate with ``params`` whose weights are drawn from
      ``seed``; null if it is not a finite number.

    ``on_cuda`` asks for the step as it runs on CUDA. User files come as a zip, ``code_zip``, with the folder to unpack
    it into, ``code_dir``; both are null for a built-in workload. Without a zip they are there already. An error is of
    kind ``params`` where the workload refuses the parameters (``ValueError`` in its constructor), or the hints in its
    model contradict each other: the candidate makes no sense. It is of kind ``host`` where the host failed, such as by
    a full disk. Every other error is of kind ``workload``: the workload is at fault.
    """
    code_dir = Path(request["code_dir"]) if request["code_dir"] else None
    try:
        if code_dir is not None and request["code_zip"]:
            unpack_code(Path(request["code_zip"]).read_bytes(), code_dir)
        return _ASKED[request["ask"]](request, code_dir)
    except (_RefusedParams, Contradiction) as error:
        return error_answer("params", without_folder(str(error), code_dir))
    except BaseException as error:  # also SystemExit and KeyboardInterrupt that a user's code raises
        if fault := host_fault(error):
            return error_answer("host", fault)
        return error_answer("workload", explain(error, code_dir))


class _RefusedParams(Exception):
    pass


def _load(request: Mapping[str, Any], code_dir: Path | None) -> dict[str, Any]:
    check_imports(load_workload(request["workload"], code_dir))
    return {}


def _space(request: Mapping[str, Any], code_dir: Path | None) -> dict[str, Any]:
    workload = load_workload(request["workload"], code_dir)
    space = workload.space()
    try:
        return {"space": json.loads(json.dumps(space, allow_nan=False))}
    except (TypeError, ValueError) as error:
        raise WorkloadError(
            f"space() must return a mapping of names to plain values, as a study has it: {error}"
        ) from None


def _dry_run(request: Mapping[str, Any], code_dir: Path | None) -> dict[str, Any]:
    workload = load_workload(request["workload"], code_dir)
    check_imports(workload)
    candidates, metrics = [to_try(params) for params in request["params"]], request["metrics"]
    names = dict.fromkeys([*(name for params in candidates for name in params), *metrics])
    in_files = mentioned(names, workload, code_dir) if code_dir is not None else []
    in_source = mentioned(names, workload, code_dir, {".py"}) if code_dir is not None else names
    try:
        tries = try_candidates(workload, candidates, metrics)
    except (WorkloadError, WrongResult, MetricFailed) as error:
        cause = error.__cause__ if isinstance(error, MetricFailed) else None
        return {"wrong": explain(cause or error, code_dir)}
    report = {"tries": tries, "all_tried": len(tries) == len(candidates), "mentioned": in_files, "wrong": ""}
    report["not_in_source"] = [name for name in names if name not in in_source]
    report["quoted"] = quoted_names(code_dir) if code_dir is not None else []
    return {**report, "inherits": workload.inherit is not Workload.inherit}


def _trace(request: Mapping[str, Any], code_dir: Path | None) -> dict[str, Any]:
    make = load_estimable(request["workload"], code_dir)
    params = NotingParams(_with_number(make, request["params"]))
    workload, batch = _candidate(make, params)
    recipe, layout = recipe_of(workload, request["on_cuda"]), Layout.from_json(request["layout"])
    _expect_equal_divisions(workload, layout)
    trace = traced(workload, recipe, layout, batch, request["equal_blocks"])
    if layout == Layout():
        flops = trace.work.per_sample.flops / _PASSES_OF_STEP
        expect_metrics_of_samples(workload, flops)
        traits = trace.traits | coupling_of(workload, flops)
        trace = replace(trace, traits=traits, is_uneven=recipe.is_uneven())
        if code_dir is not None and (why := unread(params, type(workload), code_dir)):
            raise _RefusedParams(why)
    return asdict(trace)


def _expect_equal_divisions(workload: Workload, layout: Layout) -> None:
    """Raise ``WorkloadError`` if the parts of layers or samples that ranks have give something else than the whole.

    Nothing is raised where this cannot be found out.
    """
    for check, count in ((difference_of_slabs, layout.spatial), (difference_of_parts, layout.tp * layout.co_shard)):
        try:
            difference = check(workload, count) if count > 1 else ""
        except Exception:  # parts of wrong shapes are found by the trace, which explains it
            log.debug("whether parts give what the whole does cannot be found out", exc_info=True)
            continue
        if difference:
            raise WorkloadError(difference)


def _candidates(request: Mapping[str, Any], code_dir: Path | None) -> dict[str, Any]:
    make = load_estimable(request["workload"], code_dir)

    def checked(params: Mapping[str, Any]) -> int | str:
        try:
            return _candidate(make, _with_number(make, params))[1]
        except _RefusedParams as error:
            return str(error)

    return {"candidates": [checked(params) for params in request["params"]]}


def _examples(request: Mapping[str, Any], code_dir: Path | None) -> dict[str, Any]:
    points = [{**request, **point} for point in request["points"]]
    return {"examples": [list(map(asdict, examples(*_micro_batch_of(point, code_dir)))) for point in points]}


def _peak(request: Mapping[str, Any], code_dir: Path | None) -> dict[str, Any]:
    return {"peak": trace_peak(*_micro_batch_of(request, code_dir)).fixed_bytes}


def _proxy(request: Mapping[str, Any], code_dir: Path | None) -> dict[str, Any]:
    make = load_workload(request["workload"], code_dir)
    workload, batch = _candidate(make, _with_number(make, request["params"]))
    return {"value": proxy(request["proxy"], workload, batch, request["seed"])}


def _micro_batch_of(request: Mapping[str, Any], code_dir: Path | None) -> tuple[Recipe, Layout, int]:
    make = load_estimable(request["workload"], code_dir)
    workload, _ = _candidate(make, _with_number(make, request["params"]))
    return recipe_of(workload, request["on_cuda"]), Layout.from_json(request["layout"]), request["micro_batch"]


_ASKED = {
    "load": _load,
    "dry run": _dry_run,
    "space": _space,
    "trace": _trace,
    "candidates": _candidates,
    "examples": _examples,
    "peak": _peak,
    "proxy": _proxy,
}


def _with_number(make: Callable[[dict[str, Any]], Workload], params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parameters with a number as the batch: the largest that may be chosen, if the candidate takes the largest.

    Raises ``_RefusedParams``.
    """
    request = _request(params)
    if not request.takes_largest:
        return params
    num_train = _made(make, to_try(params)).num_train
    if num_train < request.least:
        raise _RefusedParams(f"the smallest batch that may be chosen is {request.least}, but num_train is {num_train}")
    return with_batch(params, min(request.most, num_train))


def _candidate(make: Callable[[dict[str, Any]], Workload], params: Mapping[str, Any]) -> tuple[Workload, int]:
    """The workload with these parameters, and its batch. Raises ``_RefusedParams``."""
    workload = _made(make, params)
    batch = _request(params).samples or workload.default_batch
    if (base := scaled_from(workload)) is not None and batch < base:
        raise _RefusedParams(f"AdaScale takes batches of at least base_batch, which is {base}, got {batch}")
    expect_data(workload)
    if batch > workload.num_train:  # a step would train on samples twice
        names = "batch" if "batch" in params else "batch, by default_batch,"
        raise _RefusedParams(f"{names} is {batch}, but num_train is {workload.num_train}: set batch to at most that")
    expect_order(workload, batch)
    return workload, batch


def _request(params: Mapping[str, Any]) -> BatchRequest:
    try:
        return BatchRequest.of(params)
    except ValueError as error:
        raise _RefusedParams(str(error)) from None


def _made(make: Callable[[dict[str, Any]], Workload], params: Mapping[str, Any]) -> Workload:
    try:
        workload = make(params if isinstance(params, NotingParams) else dict(params))
        TrainingOptions.of(params)
    except ValueError as error:
        raise _RefusedParams(
            str(error) or "the workload's constructor refuses these parameters with a ValueError that gives no reason"
        ) from None
    return workload


def error_answer(kind: str, message: str) -> dict[str, Any]:
    """An answer that reports an error of ``kind`` (``params``, ``host`` or ``workload``)."""
    return {"error": message, "kind": kind}
