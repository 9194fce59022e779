"""Predicts the seconds of an optimizer step under a plan whose layouts have been traced, from the work of the traces.

The gang is assumed to be alone on its host: ranks share its cores with each other, not with other trials.
"""

from __future__ import annotations

from dataclasses import replace

from estimators.devices.communication import StepTime, step_time
from estimators.devices.kind import DeviceKind
from estimators.model import Layout, Plan
from estimators.profile import ModelProfile
from placement.planning.schedules import SCHEDULES
from placement.planning.shared_cores import seconds_on
from placement.planning.simulator import StageCost, simulate

FORWARD_SHARE = 1 / 3
"""Share of the forward pass in a micro-batch of a stage: the backward pass has twice the FLOPs. It hardly changes the
step of a pipeline, as the sum of both passes decides when the slowest stage ends."""


def predicted_step_seconds(profile: ModelProfile, plan: Plan, kind: DeviceKind | None) -> float | None:
    """Seconds of a step; None without a ``kind``, and for a gang if the links of its kind are not known."""
    if kind is None or any(layout not in profile.work for layout in plan.layouts):
        return None
    if plan.pp > 1:
        return _pipeline_seconds(profile, plan, kind)
    time = _busy(profile, plan, plan.layout, kind)
    return time.seconds if time else None


def _pipeline_seconds(profile: ModelProfile, plan: Plan, kind: DeviceKind) -> float | None:
    """Seconds of a simulated step. A stage is busy with its own passes and messages, and waits for other stages."""
    alone = replace(kind, cores=None)  # the simulation knows when ranks of other stages use the cores, too
    stages = []
    for layout in plan.layouts:
        time = _busy(profile, plan, layout, alone)
        if time is None:
            return None
        update_seconds = kind.seconds(profile.work[layout].update)
        passes_seconds = max(0.0, time.seconds - update_seconds) / plan.num_micro_batches
        half = (1 - FORWARD_SHARE) / 2 * passes_seconds
        stages.append(StageCost(FORWARD_SHARE * passes_seconds, half, half, update_seconds=update_seconds))
    simulation = simulate(SCHEDULES[plan.schedule](plan.pp, plan.num_micro_batches), stages)
    ranks_per_stage = plan.world_size // plan.pp
    return seconds_on(simulation, _divided(kind, ranks_per_stage))


def _busy(profile: ModelProfile, plan: Plan, layout: Layout, kind: DeviceKind) -> StepTime | None:
    """Seconds that a rank with this layout is busy in a step."""
    work = profile.work[layout].step(plan.micro_batch, plan.num_micro_batches)
    return step_time(kind, plan, work, plan.num_micro_batches)


def _divided(kind: DeviceKind, num_ranks: int) -> DeviceKind:
    """The kind as a simulation sees it in which one rank stands for ``num_ranks`` that compute at the same time."""
    if kind.cores is None:
        return kind
    return replace(kind, cores=replace(kind.cores, value=kind.cores.value / num_ranks))
