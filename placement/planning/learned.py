"""Chooses a plan with the memory that earlier attempts were found to need, and says in the reason what was learned.

Pure; the planner is passed in. What other trials needed makes no candidate infeasible, because it may not need it. What
the candidate itself needed can, and then the reason says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from estimators.learning import Learned
from estimators.memory import NO_EXTRA, Extra
from estimators.model import MIB, Layout
from placement.planning.options import ChosenPlan, NoPlan, Untraced

Answer = ChosenPlan | Untraced | NoPlan


def choose_learned(
    ask: Callable[[Extra], Answer], own: Mapping[Layout, int], learned: Mapping[Layout, Learned]
) -> Answer:
    """The planner's answer with what was learned; ``ask`` is the planner for one candidate and one cluster.

    ``own`` are the bytes that the candidate needed beyond its trace when it ran out of memory, under each layout. As
    long as a plan fits, they are added under all its layouts: its code is the same in each. ``learned`` is what its
    family needed, which is added under the same layout only. If no plan fits with all this, only ``own`` is added, and
    only under the layouts that failed.
    """
    most = max(own.values(), default=0)
    everything = Extra({layout: max(known.extra_bytes, most) for layout, known in learned.items()}, elsewhere=most)
    answer = ask(everything)
    if isinstance(answer, Untraced):
        return answer
    if isinstance(answer, ChosenPlan):
        return _with_words(answer, _examined(answer, own, learned), learned)
    only_own = Extra(own)
    answer = ask(only_own)
    if isinstance(answer, ChosenPlan):
        layout = answer.plan.layout
        without = (
            _family_words(learned.get(layout), only_own.bytes_for(layout)) or f"{most / MIB:.1f} MiB {_own_words(own)}"
        )
        return _with_words(answer, f"; without {without}, with which no plan fits", learned)
    if isinstance(answer, Untraced) or not own:
        return answer
    traced = ask(NO_EXTRA)
    if not isinstance(traced, ChosenPlan):
        return traced
    needs = f"{traced.plan}: one rank needs {traced.prediction.reserved_mib} MiB"
    return NoPlan(
        f"{answer.reason}; this is learned: {most / MIB:.1f} MiB {_own_words(own)}; by its trace it fits ({needs})"
    )


def _with_words(chosen: ChosenPlan, words: str, learned: Mapping[Layout, Learned]) -> ChosenPlan:
    known = learned.get(chosen.plan.layout)
    bias_bytes = min(known.bias_bytes, chosen.prediction.extra_bytes) if known else 0
    prediction = replace(chosen.prediction, bias_bytes=bias_bytes)
    return replace(chosen, prediction=prediction, reason=chosen.reason + words)


def _examined(chosen: ChosenPlan, own: Mapping[Layout, int], learned: Mapping[Layout, Learned]) -> str:
    """The corrections of layouts with at most as many ranks, which the planner has examined."""
    most = max(own.values(), default=0)
    words = [f"{most / MIB:.1f} MiB {_own_words(own)}"] if most else []
    near = (known for layout, known in learned.items() if layout.world_size <= chosen.plan.world_size)
    words += [found for known in near if (found := _family_words(known, most))]
    return f"; with {' and '.join(words)}" if words else ""


def _family_words(known: Learned | None, own_bytes: int) -> str:
    return str(known) if known and known.extra_bytes > own_bytes else ""


def _own_words(own: Mapping[Layout, int]) -> str:
    return f"beyond the trace, as it ran out of memory with layout {', '.join(map(str, own))}"
