"""Chooses a plan with the memory that earlier attempts were found to need, and says in the reason what was learned.

Pure; the planner is passed in. What other trials needed makes no candidate infeasible, because it may not need it. What
the candidate itself needed can, and then the reason says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from estimators.learning import Learned, PastAttempt
from estimators.memory import NO_EXTRA, Extra
from estimators.model import Layout, Plan, Prediction, mib_in_words
from placement.option import NoPlan
from placement.planning.answers import Answer, ChosenPlan, Untraced
from placement.planning.healing import corrections


def choose_learned(
    ask: Callable[[Extra], Answer], own_attempts: Sequence[PastAttempt], learned: Mapping[Layout, Learned]
) -> Answer:
    """The planner's answer with what was learned; ``ask`` is the planner for one candidate and one cluster.

    ``own_attempts`` are the candidate's runs that ran out of memory: the first of their ``corrections`` with which a
    plan fits is added. ``learned`` is what its family needed, which is added under the same layout only. If no plan
    fits with both, only what the candidate itself needed is added.
    """
    under = {layout: correction.extra_bytes for layout, correction in learned.items() if correction.extra_bytes}
    own_extras = corrections(own_attempts)
    for extra in [*(replace(extra_there, under=under) for extra_there in own_extras if under), *own_extras]:
        answer = ask(extra)
        if isinstance(answer, ChosenPlan):
            return _with_words(answer, _words(answer, own_attempts, learned, extra), learned)
        if isinstance(answer, Untraced):
            return answer
    assert isinstance(answer, NoPlan)
    if not own_attempts:
        return answer
    traced = ask(NO_EXTRA)
    if not isinstance(traced, ChosenPlan):
        return traced
    most_bytes = max(run.held_bytes - run.traced_bytes for run in own_attempts)
    needs = f"{traced.plan}: one rank needs {traced.prediction.reserved_mib} MiB"
    return NoPlan(
        f"{answer.reason}. This counts {_beyond(most_bytes, own_attempts)}; "
        f"plans divide these bytes as they divide the model. By its trace alone it would fit ({needs})"
    )


def _with_words(chosen: ChosenPlan, words: str, learned: Mapping[Layout, Learned]) -> ChosenPlan:
    wider = tuple(
        replace(option, prediction=_biased(option.plan, option.prediction, learned)) for option in chosen.wider
    )
    prediction = _biased(chosen.plan, chosen.prediction, learned)
    return replace(chosen, prediction=prediction, reason=chosen.reason + words, wider=wider)


def _biased(plan: Plan, prediction: Prediction, learned: Mapping[Layout, Learned]) -> Prediction:
    correction = learned.get(plan.layout)
    return replace(prediction, bias_bytes=min(correction.bias_bytes, prediction.extra_bytes) if correction else 0)


def _words(
    chosen: ChosenPlan, own_attempts: Sequence[PastAttempt], learned: Mapping[Layout, Learned], extra: Extra
) -> str:
    """Says what was added, and what was not: corrections of other layouts with at most as many ranks, which the planner
    examined."""
    own_bytes = replace(extra, under={}).bytes_for(chosen.plan.layout, chosen.plan.micro_batch)
    larger = [str(correction) for correction in learned.values() if correction.extra_bytes > own_bytes]
    words = [_beyond(chosen.prediction.extra_bytes, own_attempts)] if own_attempts else []
    if larger and not extra.under:
        layout = chosen.plan.layout
        dropped = str(learned[layout]) if layout in learned else larger[0]
        return "".join(f"; with {word}" for word in words) + f"; without {dropped}, with which no plan fits"
    num_ranks = chosen.plan.world_size
    near = [correction for correction in learned.values() if correction.layout.world_size <= num_ranks]
    near = [correction for correction in near if correction.extra_bytes > own_bytes]
    words += [str(correction) for correction in near if correction.layout == chosen.plan.layout]
    others = [str(correction) for correction in near if correction.layout != chosen.plan.layout]
    added = f"; with {' and '.join(words)}" if words else ""
    return added + (f"; not added to this plan: {' and '.join(others)}" if others else "")


def _beyond(extra_bytes: int, own_attempts: Sequence[PastAttempt]) -> str:
    layouts = dict.fromkeys(str(run.layout) for run in own_attempts)
    return f"{mib_in_words(extra_bytes)} beyond the trace, as it ran out of memory with layout {', '.join(layouts)}"
