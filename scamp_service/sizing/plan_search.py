"""The search for a candidate's plan: ask the policy, trace the layouts that it needs, and ask again.

Studies and ``scamp estimate`` share it. A study makes one trace at a time, in turn with other candidates; an estimate
makes all missing traces in parallel. Pure: it traces nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from estimators.model import Layout
from estimators.profile import ModelProfile
from estimators.trace import Trace, profile_of

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Missing:
    """The policy's answer when it needs these layouts to be traced first."""

    layouts: Sequence[Layout]


PlanSearch = Generator[Sequence[Layout], Mapping[Layout, "Trace | str"], Answer]
"""Yields the layouts that must be traced next, is sent their traces, and returns the policy's answer.

Where a layout cannot be traced, the reason is sent instead. The plain layout must be traced."""


def search_plan(
    ask: Callable[[ModelProfile, int], Answer | Missing], *, on_gpu: bool, expandable: bool = False
) -> PlanSearch[Answer]:
    """Search until ``ask`` has an answer for a profile and the candidate's batch. The plain layout is traced first."""
    sent = yield [Layout()]
    profile = None
    batch = 0
    while True:
        traces = {layout: trace for layout, trace in sent.items() if isinstance(trace, Trace)}
        batch = traces[Layout()].batch if Layout() in traces else batch
        profile = profile_of(traces, profile, on_gpu=on_gpu, expandable=expandable)
        profile = profile.without({layout: why for layout, why in sent.items() if isinstance(why, str)})
        answer = ask(profile, batch)
        if not isinstance(answer, Missing):
            return answer
        sent = yield answer.layouts


def run_search(search: PlanSearch[Answer], trace: Callable[[Sequence[Layout]], Mapping[Layout, Trace | str]]) -> Answer:
    """The search's answer; ``trace`` is a function that traces several layouts, or says why it cannot."""
    try:
        layouts = next(search)
        while True:
            layouts = search.send(trace(layouts))
    except StopIteration as end:
        answer: Answer = end.value
        return answer
