"""Checks the workload of a study before the study is stored: it can be imported, reads its parameters, and reports the
objective.

The user's files are imported in a trace process, limited in time and memory, never here. There the workload is tried on
a few samples (``workloads.sandbox.dry_run``). Where that fails, as without the data, nothing is concluded: the trials
will say it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from scamp_service.errors import InvalidInput
from scamp_service.model import Json
from scamp_service.sizing.tracing.trace_process import TraceFailed, TraceProcess
from scamp_service.sizing.user_workload import IMPORT_SECONDS, ask_workload, cannot_be_used
from scamp_service.study.one_shot import SUPERNET
from scamp_service.study.spaces.constraints import ParameterConstraints
from scamp_service.study.spaces.slots import Slot, existing_values, nested, slots_of
from scamp_service.study.spaces.space import ends
from scamp_service.study.spec import StudySpec
from scamp_service.study.user_code.checking import check_code
from scamp_service.study.values import Params
from scamp_service.study.workload_names import BUILT_INS, is_file
from workloads.options import NAMES as OPTIONS
from workloads.options import never_read

TRY_SECONDS = 15
"""Seconds of processor time to import the workload and try candidates; afterwards it is only imported."""
MOST_CANDIDATES = 12
READ_BY_SCAMP = frozenset({"batch", *OPTIONS})
REPORTED_BY_SCAMP = "train_loss"


MOST_NAMED = 3
"""Most parameters of a model that a warning names."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """The findings of a dry run of some candidates.

    ``read`` are the parameters that any of them has read, and ``metrics`` those that any has returned; both are empty
    if none could be tried to its end. ``mentioned`` are names that the user's code contains, so that other candidates
    may read or return them. ``not_in_source`` are those that its Python files do not contain, and ``quoted`` the names
    in quotes in these files. ``absent`` are parameters under conditions that no candidate had that was tried to its
    end. ``is_complete``: no other candidate returns other metrics. ``is_unsummarized``: there may be further metrics of
    the whole held-out set, for which a few samples are not enough. ``uneven`` are the sets whose samples differ in
    size, although the workload gives no ``lengths``. ``untrained`` are parameters of the model that require gradients
    and that no optimizer has. ``failed`` are the errors of candidates, with their parameters.
    """

    read: frozenset[str]
    metrics: tuple[str, ...]
    mentioned: frozenset[str] = frozenset()
    not_in_source: frozenset[str] = frozenset()
    quoted: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()
    is_complete: bool = True
    is_unsummarized: bool = False
    uneven: tuple[str, ...] = ()
    untrained: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()

    @property
    def has_ended(self) -> bool:
        """Whether any candidate could be tried to its end."""
        return bool(self.metrics) or self.is_unsummarized


def check_workload(spec: StudySpec, code: bytes | None, process: TraceProcess | None = None) -> list[str]:
    """Warnings about parameters and metrics that may be wrong.

    Raises ``InvalidInput`` for a workload that is unknown, is not in ``code`` (a zip), or cannot be imported, and for
    parameters and an objective that are certain to be wrong. ``process`` is for callers that may have to kill it from
    another thread. It is ended here.
    """
    check_code(spec.workload, code, sampler=spec.search.sampler.name)
    if code is None or not is_file(spec.workload):
        built_in = BUILT_INS[spec.workload]
        if spec.search.inherits:
            raise _inherits_nothing(spec)
        return judge(spec, DryRun(frozenset(built_in.parameters), built_in.metrics))
    process = process or TraceProcess()
    try:
        dry_run = _try(spec, code, process)
    except TraceFailed as failed:
        raise cannot_be_used(spec, failed.reason) from None
    finally:
        process.end()
    return judge(spec, dry_run) if dry_run is not None else []


def _try(spec: StudySpec, code: bytes, process: TraceProcess) -> DryRun | None:
    """Makes a dry run; None if it does not come to its end.

    Raises ``TraceFailed`` if the workload cannot be imported, and ``InvalidInput`` if its methods are of a wrong form.
    """
    candidates = candidates_to_try(spec)
    tried = {"ask": "dry run", "params": candidates, "metrics": list(spec.every_objective.measured)}
    try:
        answer = ask_workload(spec, code, process, tried, TRY_SECONDS)
    except TraceFailed:  # by an import, or by what is no reason to refuse the study: it hangs or ends its process
        ask_workload(spec, code, process, {"ask": "load"}, IMPORT_SECONDS)
        return None
    if answer["wrong"]:
        raise cannot_be_used(spec, answer["wrong"])
    if spec.search.inherits and not answer["inherits"]:
        raise _inherits_nothing(spec)
    return found_in(answer, candidates, len(candidates) >= _num_values(spec))


def _inherits_nothing(spec: StudySpec) -> InvalidInput:
    return InvalidInput(
        f"search.sampler: candidates inherit weights, but the workload {spec.workload!r} has no method inherit; "
        "add one, or remove the option inherit"
    )


def _num_values(spec: StudySpec) -> int:
    """The number of candidates that have every choice and both ends of every range between them."""
    return max(len(ends(slot.dimension)) for slot in slots_of(spec.space))


def candidates_to_try(spec: StudySpec) -> list[Params]:
    """Candidates that have between them every parameter, every choice and both ends of every range.

    At most ``MOST_CANDIDATES``. Those that break a constraint are left out, unless all do.
    """
    slots, names, constraints = slots_of(spec.space), list(spec.space), ParameterConstraints(spec.constraints)

    def candidate(number: int, params: Mapping[str, Any]) -> Params:
        def value_of(slot: Slot) -> Any:
            values = ends(slot.dimension)
            return params.get(slot.name, values[number % len(values)])

        return {**spec.fixed, **nested(slots, existing_values(slots, value_of), names)}

    supernet = [{**spec.fixed, SUPERNET: True}] if spec.search.one_shot is not None else []
    candidates = [candidate(number, {}) for number in range(min(MOST_CANDIDATES, _num_values(spec)))]
    for slot in slots:  # a parameter under several conditions may be in none of these
        name = slot.path[0]
        if (
            len(slot.path) == 1
            and len(candidates) < MOST_CANDIDATES
            and not any(name in params for params in candidates)
        ):
            candidates.append(candidate(len(candidates), _needed(slot, slots)))
    return supernet + ([params for params in candidates if not constraints.broken(params)] or candidates)


def _needed(slot: Slot, slots: Sequence[Slot]) -> Params:
    """Values of the parameters that ``slot`` depends on, with which it exists unless its conditions contradict."""
    by_name, values, needs = {slot.name: slot for slot in slots}, Params(), list(slot.needs)
    while needs:
        need = needs.pop()
        needs += by_name[need.name].needs
        allowed = [value for value in ends(by_name[need.name].dimension) if need.holds({need.name: value})]
        inside = (key for key in need.keys or () if isinstance(key, tuple))  # as ``key_of`` makes them
        allowed += [value for is_bool, value in inside if is_bool is False]  # also those inside of a range
        values.setdefault(need.name, allowed[0] if allowed else None)
    return values


def found_in(answer: Json, candidates: Sequence[Params], have_all_values: bool) -> DryRun:
    """Reads the answer of a dry run. ``have_all_values``: the candidates have every choice between them."""
    tries: Sequence[Mapping[str, Any]] = answer["tries"]
    ended = [result for result in tries if "metrics" in result]
    metrics = dict.fromkeys(name for result in ended for name in result["metrics"])
    had = {name for params, result in zip(candidates, tries, strict=False) if "metrics" in result for name in params}
    return DryRun(
        frozenset(name for result in ended for name in result["read"]),
        tuple(metrics),
        frozenset(answer["mentioned"]),
        frozenset(answer["not_in_source"]),
        frozenset(answer["quoted"]),
        frozenset(name for params in candidates for name in params) - had,
        have_all_values and answer["all_tried"] and not any("failed" in result for result in tries),
        any(result.get("unsummarized") for result in ended),
        tuple(dict.fromkeys(name for result in ended for name in result.get("uneven", ()))),
        tuple(dict.fromkeys(name for result in ended for name in result.get("untrained", ()))),
        tuple(
            f"{result['failed']} (with {', '.join(f'{name}={value}' for name, value in params.items())})"
            for params, result in zip(candidates, tries, strict=False)
            if "failed" in result
        ),
    )


def judge(spec: StudySpec, dry_run: DryRun) -> list[str]:
    """Warnings about parameters that were never read, an objective that was not returned, and samples of unknown size.

    Raises ``InvalidInput`` where these are certain to be mistakes.
    """
    if not dry_run.has_ended:
        return _failures(dry_run)
    wrong, doubtful, misspelt = list(_wrong_objective(spec, dry_run)), list[str](), list[str]()
    study_params = {*spec.space, *spec.fixed}
    free = sorted((dry_run.read | READ_BY_SCAMP) - study_params)
    if spec.search.one_shot is not None and SUPERNET not in dry_run.read:
        wrong.append(f"search.one_shot: the workload never reads the parameter {SUPERNET!r}, so it has no supernet")
    for name in dict.fromkeys([*spec.space, *spec.fixed]):
        similar = _did_you_mean(name, sorted({*free, *dry_run.quoted} - study_params))
        may_be_read = name in dry_run.read or name in dry_run.mentioned or name in dry_run.absent
        if name in READ_BY_SCAMP:
            continue
        if similar and may_be_read and name in dry_run.not_in_source:  # such as by a loop over all parameters
            misspelt.append(f"no Python file of the workload contains the name of the parameter {name!r}{similar}")
        elif name in dry_run.read:
            continue
        elif may_be_read:
            doubtful.append(name)
        else:
            wrong.append(never_read(name, free))
    if wrong:
        raise InvalidInput("; ".join(wrong))
    warnings = [*_failures(dry_run), *misspelt]
    if doubtful:
        names = ", ".join(map(repr, doubtful))
        warnings.append(
            f"no candidate that was tried on a few samples has read {names}: see that training reads it, "
            "with other parameters or later"
        )
    for metric in spec.every_objective.measured:
        if not _may_be_returned(metric, dry_run):
            warnings.append(
                f"no candidate that was tried has returned the objective {metric!r}, only {_listed(dry_run)}"
            )
    if dry_run.uneven:
        sets = " and ".join(f'"{name}"' for name in dry_run.uneven)
        warnings.append(
            f"samples of {sets} differ in size, and memory is predicted for the largest of a few that were read: "
            "define `lengths` in the workload, so that it is predicted for the largest of all"
        )
    if dry_run.untrained:
        names = ", ".join(dry_run.untrained[:MOST_NAMED])
        names += f" and {more} more" if (more := len(dry_run.untrained) - MOST_NAMED) > 0 else ""
        warnings.append(
            f"no optimizer has the parameters {names} of the model, so they are never trained: pass them to it, or "
            "freeze them by requires_grad_(False), which also saves their gradients"
        )
    return warnings


def _failures(dry_run: DryRun) -> list[str]:
    """A warning about candidates that failed; data may be missing on this host alone, so it is no refusal."""
    if not dry_run.failed:
        return []
    which = f"{len(dry_run.failed)} of the candidates" if dry_run.has_ended else "all candidates"
    return [f"{which} that were tried on a few samples failed here, the first with {dry_run.failed[0]}"]


def _wrong_objective(spec: StudySpec, dry_run: DryRun) -> Iterator[str]:
    for metric in spec.every_objective.measured:
        if _may_be_returned(metric, dry_run) or not (dry_run.is_complete or metric not in dry_run.mentioned):
            continue
        advice = _did_you_mean(metric, [*dry_run.metrics, REPORTED_BY_SCAMP])
        advice = advice or f": choose one of these or {REPORTED_BY_SCAMP}, or return it from evaluate"
        yield f"the objective is {metric!r}, but evaluate returns {_listed(dry_run)}{advice}"


def _may_be_returned(metric: str, dry_run: DryRun) -> bool:
    """Whether candidates that were tried have returned ``metric``, or may return it for more samples."""
    return metric in (*dry_run.metrics, REPORTED_BY_SCAMP) or dry_run.is_unsummarized


def _listed(dry_run: DryRun) -> str:
    return ", ".join(dry_run.metrics)


def _did_you_mean(name: str, names: Iterable[str]) -> str:
    close = get_close_matches(name, list(names), 1, 0.7)
    return f": did you mean {close[0]!r}?" if close else ""
