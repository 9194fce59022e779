"""Chooses a plan with the memory that earlier attempts were found to need, and says in the reason what was learned.

Pure; the planner is passed in. What other trials needed makes no candidate infeasible, because it may not need it. What
the candidate itself needed can, and then the reason says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from estimators.learning import Learned, PastAttempt
from estimators.memory import NO_EXTRA, Extra
from estimators.model import MIB, Layout, Plan, Prediction
from placement.option import NoPlan
from placement.planning.answers import Answer, ChosenPlan, Untraced
from placement.planning.healing import corrections


def choose_learned(
    ask: Callable[[Extra], Answer], own: Sequence[PastAttempt], learned: Mapping[Layout, Learned]
) -> Answer:
    """The planner's answer with what was learned; ``ask`` is the planner for one candidate and one cluster.

    ``own`` are the candidate's runs that ran out of memory: the first of their ``corrections`` with which a plan fits
    is added. ``learned`` is what its family needed, which is added under the same layout only. If no plan fits with
    both, only what the candidate itself needed is added.
    """
    under = {layout: known.extra_bytes for layout, known in learned.items() if known.extra_bytes}
    own_extras = corrections(own)
    for extra in [*(replace(one, under=under) for one in own_extras if under), *own_extras]:
        answer = ask(extra)
        if isinstance(answer, ChosenPlan):
            return _with_words(answer, _words(answer, own, learned, extra), learned)
        if isinstance(answer, Untraced):
            return answer
    assert isinstance(answer, NoPlan)
    if not own:
        return answer
    traced = ask(NO_EXTRA)
    if not isinstance(traced, ChosenPlan):
        return traced
    most_bytes = max(run.held_bytes - run.traced_bytes for run in own)
    needs = f"{traced.plan}: one rank needs {traced.prediction.reserved_mib} MiB"
    return NoPlan(
        f"{answer.reason}; this is learned: {_beyond(most_bytes, own)}, divided as a plan divides the model; by its "
        f"trace it fits ({needs})"
    )


def _with_words(chosen: ChosenPlan, words: str, learned: Mapping[Layout, Learned]) -> ChosenPlan:
    wider = tuple(replace(one, prediction=_biased(one.plan, one.prediction, learned)) for one in chosen.wider)
    prediction = _biased(chosen.plan, chosen.prediction, learned)
    return replace(chosen, prediction=prediction, reason=chosen.reason + words, wider=wider)


def _biased(plan: Plan, prediction: Prediction, learned: Mapping[Layout, Learned]) -> Prediction:
    known = learned.get(plan.layout)
    return replace(prediction, bias_bytes=min(known.bias_bytes, prediction.extra_bytes) if known else 0)


def _words(chosen: ChosenPlan, own: Sequence[PastAttempt], learned: Mapping[Layout, Learned], extra: Extra) -> str:
    """Says what was added, with the corrections of layouts with at most as many ranks, which the planner examined."""
    own_bytes = replace(extra, under={}).bytes_for(chosen.plan.layout, chosen.plan.micro_batch)
    larger = [str(known) for known in learned.values() if known.extra_bytes > own_bytes]
    words = [_beyond(chosen.prediction.extra_bytes, own)] if own else []
    if larger and not extra.under:
        layout = chosen.plan.layout
        dropped = str(learned[layout]) if layout in learned else larger[0]
        return "".join(f"; with {one}" for one in words) + f"; without {dropped}, with which no plan fits"
    num_ranks = chosen.plan.world_size
    near = (known for known in learned.values() if known.layout.world_size <= num_ranks)
    words += [str(known) for known in near if known.extra_bytes > own_bytes]
    return f"; with {' and '.join(words)}" if words else ""


def _beyond(extra_bytes: int, own: Sequence[PastAttempt]) -> str:
    layouts = dict.fromkeys(str(run.layout) for run in own)
    return f"{extra_bytes / MIB:.1f} MiB beyond the trace, as it ran out of memory with layout {', '.join(layouts)}"
