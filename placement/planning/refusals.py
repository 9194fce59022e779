"""Says why a candidate has no plan: what hints exclude, what its best plan lacks, and what cannot be traced. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from estimators.model import Layout
from estimators.profile import ModelProfile
from placement.model import plural
from placement.option import Evidence, NoPlan, Option
from placement.planning.question import Question
from placement.planning.rows import Row
from placement.pricing.categories import bytes_by_category, categories_in_words

_LONGEST = 200  # characters of a cause


def nothing_allowed(question: Question, rows: Sequence[Row]) -> str:
    """Why there is no way to examine, whatever its memory; one rank always is one, unless hints exclude it."""
    constraints, num_devices = question.constraints, len(question.cluster.devices)
    assert constraints.limits
    if (least := constraints.least_ranks) > num_devices:
        return f"{constraints.words}: this takes {plural(least, 'device')}, and there are {num_devices}"
    refused = (question.profile.refusal(layout) for row in rows for layout in row.layouts)
    if why := next(filter(None, refused), ""):
        return f"{constraints.words}: this cannot be trained: {why}"
    multiple = constraints.least_shares * constraints.least("micro_batches")
    batch_words = f"a multiple of {multiple}" if question.batch % multiple else "larger"
    return f"{constraints.words}: for this the batch must be {batch_words}, it is {question.batch}"


def nothing_fits(refused: Sequence[Option], question: Question) -> NoPlan:
    """The refusal of the option that comes closest to fitting, with what its bytes are for."""
    best = min(refused, key=lambda option: (option.evidence is Evidence.STATES, option.lacking_mib))
    reason = f"needs {best.about}{best.prediction.reserved_mib} MiB per device on its best plan ({best.words})"
    reason += f"{best.learned}{best.evaluation}, {best.lacking_mib} more than the {best.offered_mib} offered"
    if best.evaluation:
        reason += ": evaluate must return its metrics with smaller tensors"
    elif num_bytes := _categories(best, question):
        reason += f": {categories_in_words(num_bytes)}"
    wider = 2 * max(option.plan.world_size for option in refused)
    if wider <= len(question.cluster.devices) and question.batch % wider:
        reason += f" (no wider plan: {wider} ranks do not divide the batch of {question.batch})"
    return NoPlan(reason)


def _categories(option: Option, question: Question) -> dict[str, int]:
    """Bytes that a rank needs by category, also of states alone, which are divided evenly; empty if not known."""
    prediction = option.prediction
    whole_bytes = question.profile.curves[Layout()].parts(1).get("parameters")
    if option.evidence is not Evidence.STATES or whole_bytes is None:
        return bytes_by_category(prediction)
    states = prediction.peak_bytes - prediction.extra_bytes
    parameters = states * whole_bytes // question.profile.state_bytes
    learned = {"learned": prediction.extra_bytes} if prediction.extra_bytes else {}
    categories = {"parameters": parameters, "gradients and optimizer": states - parameters}
    return {**categories, **learned, "margin": prediction.margin_bytes}


def causes(profile: ModelProfile, layouts: Iterable[Layout]) -> str:
    """The end of a reason: kinds of plans that traits of the code rule out among those with these ``layouts``, or that
    could not be traced, with the first cause; empty if there are none."""
    first: dict[str, str] = {}
    for layout in layouts:
        for plans, why, _ in profile.traits.ruling_out(layout):
            first.setdefault(plans.words, _cause(why))
    for layout, why in profile.refusals.items():
        first.setdefault(_kind(layout), _cause(why))
    kinds: dict[str, list[str]] = {}
    for kind, cause in first.items():
        kinds.setdefault(cause, []).append(kind)
    return "".join(f"; no {', '.join(words)}: {cause}" for cause, words in kinds.items())


def not_divided(question: Question) -> str:
    """The end of a reason: why several devices do not divide the batch; empty if they may, or there is only one."""
    ruled_out = question.profile.traits.ruling_out(Layout(dp_replicate=2))
    first = next(ruled_out, None) if len(question.cluster.devices) > 1 else None
    return f"; no {first[0].words}: {_cause(first[1])}" if first else ""


_KINDS = {
    "pp": "pipelines",
    "tp": "tensor parallelism",
    "spatial": "slabs of space",
    "dp_shard": "FSDP",
    "zero1": "ZeRO-1",
    "adasum": "Adasum",
    "divided": "divided layers",
    "dp_replicate": "replicas",
    "co_shard": "co-shard",
    "accumulate": "micro-batches",
    "recompute": "recompute",
}
"""Words for the plans that use an axis, with the likeliest cause first."""


def _kind(layout: Layout) -> str:
    """The kind of plan: the first axis that divides the model."""
    used = (words for axis, words in _KINDS.items() if getattr(layout, axis) != getattr(Layout(), axis))
    return next(used, "plans of one rank")


def _cause(why: str) -> str:
    """The error in words, without the line of code that called the library, and without advice for that line."""
    lines = [line for line in why.splitlines() if line.strip()]
    if len(lines) > 1 and re.search(r", line \d+: ", lines[0]):
        lines = lines[1:]
    cause = " ".join(line.strip() for line in lines if not line.startswith("→"))
    return f"{cause[: _LONGEST - 1]}…" if len(cause) > _LONGEST else cause
