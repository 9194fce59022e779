"""Predicts the seconds of an optimizer step under a plan whose layouts have been traced, from the work of the traces.

The gang is assumed to be alone on its host: ranks share its cores with each other, not with other trials.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from estimators.axes import MESH
from estimators.devices.communication import StepTime, gang_time, step_time
from estimators.devices.kind import FLOP_COUNTER, DeviceKind
from estimators.memory import predict_stages
from estimators.model import Layout, Plan
from estimators.pipelining.schedules import holders_of, schedule_of, stages_of
from estimators.profile import ModelProfile
from estimators.work import StepWork
from placement.pipelining.timeline import PassTime, PipelineStep, StageStep, Timeline
from placement.pricing.unit_costs import ModelCosts

FORWARD_SHARE, FORWARD_SHARE_OF_RECOMPUTE = 1 / 3, 1 / 4
"""Share of the forward pass in what a stage computes of a micro-batch: the backward pass has twice the FLOPs, and with
recompute those of the forward pass as well. It hardly changes the step of a pipeline, as the sum of both passes decides
when the slowest stage ends."""

_STATES = ("parameters", "gradients", "optimizer", "buffers", "learned")


@dataclass(frozen=True, slots=True)
class PredictedStep:
    """``seconds`` that an optimizer step takes. The mean rank computes for ``compute_seconds`` of it.

    The rest is waiting: the shares (0 to 1) are the parts of the step that go to messages and to idle stages, for all
    ranks together. ``least_waiting_share`` is that of the rank that waits least; None if all wait equally long.
    """

    seconds: float
    compute_seconds: float
    communication_share: float = 0.0
    bubble_share: float = 0.0
    least_waiting_share: float | None = None

    @property
    def waiting_share(self) -> float:
        """Share of the step in which the rank that waits least waits: what ``workloads.training.waiting`` measures."""
        all_ranks = self.communication_share + self.bubble_share
        return all_ranks if self.least_waiting_share is None else self.least_waiting_share


def predicted_step(profile: ModelProfile, plan: Plan, kind: DeviceKind | None) -> PredictedStep | None:
    """One step; None without a ``kind``, without a trace, and for a gang if the links of its kind are not known."""
    if kind is None or (kind.links is None and plan.world_size > 1):
        return None
    return comparable_step(profile, plan, kind)


def comparable_step(profile: ModelProfile, plan: Plan, kind: DeviceKind | None) -> PredictedStep | None:
    """One step, to compare plans by; None if the work of a layout is not known.

    Without a ``kind`` FLOPs stand for seconds; without links communication takes no time.
    """
    if plan.pp > 1:
        step = pipeline_step(profile, plan, kind)
        return _of_timeline(step.timeline()) if step else None
    if plan.layout not in profile.work:
        return None
    work, speed = profile.work[plan.layout].step(plan.micro_batch, plan.num_micro_batches), kind or FLOP_COUNTER
    time = step_time(speed, plan, work, plan.num_micro_batches) or StepTime(speed.seconds(work))
    return PredictedStep(time.seconds, time.compute_seconds, time.communication_share)


def pipeline_step(profile: ModelProfile, plan: Plan, kind: DeviceKind | None) -> PipelineStep | None:
    """One step of a plan with a pipeline, without its memory; None if the work of its passes is not known.

    Without a ``kind`` FLOPs stand for seconds; without links communication takes no time.
    """
    needed = plan.layouts if plan.num_stages == plan.pp else (Layout(), *plan.layouts)  # units divide a rank's time
    if any(layout not in profile.work for layout in needed):
        return None
    alone = replace(kind or FLOP_COUNTER, cores=None)  # the simulation knows when ranks of other stages use them, too
    ranks = [_rank(profile.work[layout], plan, layout.stage_index, alone) for layout in plan.layouts]
    stages = tuple(_stages(ranks, profile, plan, alone))
    return PipelineStep(plan, stages, kind.cores.value if kind and kind.cores else None)


def with_memory(step: PipelineStep, profile: ModelProfile, extra_bytes: int) -> PipelineStep:
    """The step with the bytes that ranks hold, which at their highest are those of the traced peaks.

    States are held all the time: they are those at the peak, and ``extra_bytes`` that were learned. Activations are
    those of the units of the stage; they are held from the forward to the backward pass. Whatever else the peak has is
    held while ranks compute, as if the peak were always where most micro-batches are in flight.
    """
    plan, stages = step.plan, list(step.stages)
    schedule = schedule_of(plan.schedule, plan.pp, plan.num_micro_batches)
    all_kept = ModelCosts(profile, FLOP_COUNTER).kept_bytes(plan, plan.micro_batch)
    for rank, prediction in enumerate(predict_stages(profile, plan, extra_bytes)):
        states = sum(prediction.parts.get(name, 0) for name in _STATES)
        other_bytes, held = prediction.peak_bytes - states, stages_of(plan.schedule, plan.pp, rank)
        in_flight = {stage: schedule.in_flight(rank, stage) for stage in held}
        kept_bytes = sum(num * int(all_kept[stage]) for stage, num in in_flight.items())
        share = min(1.0, other_bytes / kept_bytes) if kept_bytes else 0.0
        kept = {stage: int(share * int(all_kept[stage])) for stage in held}
        passing = other_bytes - sum(num * kept[stage] for stage, num in in_flight.items())
        for stage in held:  # the states of the rank are those of its first stage
            first = states if stage == held[0] else 0
            stage_step = stages[stage]
            stages[stage] = replace(stage_step, state_bytes=first, kept_bytes=kept[stage], passing_bytes=passing)
    return replace(step, stages=tuple(stages))


def _of_timeline(timeline: Timeline) -> PredictedStep:
    seconds, waiting, idle = timeline.makespan_seconds, timeline.communication_share, timeline.bubble_share
    return PredictedStep(seconds, seconds * (1 - waiting - idle), waiting, idle, timeline.least_waiting_share)


def _stages(ranks: Sequence[StageStep], profile: ModelProfile, plan: Plan, kind: DeviceKind) -> Iterator[StageStep]:
    """Yield the times of each stage: those of its rank, divided among its stages by the seconds of their units."""
    if plan.num_stages == plan.pp:
        yield from (ranks[rank] for (rank,) in holders_of(plan.schedule, plan.pp))
        return
    costs = ModelCosts(profile, kind)
    seconds = [sum(unit.seconds(plan, plan.micro_batch) for unit in stage) for stage in costs.stages(plan)]
    for stage, (rank,) in enumerate(holders_of(plan.schedule, plan.pp)):
        held = stages_of(plan.schedule, plan.pp, rank)
        held_seconds = sum(seconds[held_stage] for held_stage in held)
        share = seconds[stage] / held_seconds if held_seconds else 1 / len(held)
        rank_step = ranks[rank]
        forward, backward = (
            PassTime(
                *(
                    share * amount
                    for amount in (pass_time.computing_seconds, pass_time.waiting_seconds, pass_time.sending_seconds)
                )
            )
            for pass_time in (rank_step.forward, rank_step.backward)
        )
        yield StageStep(forward, backward, share * rank_step.update_seconds)


def _rank(work: StepWork, plan: Plan, stage: int, kind: DeviceKind) -> StageStep:
    """The times of the passes of a rank, which is busy in a step as long as its trace says."""
    num, step_work = plan.num_micro_batches, work.step(plan.micro_batch, plan.num_micro_batches)
    update_seconds = kind.seconds(work.update)
    computing = max(0.0, kind.seconds(step_work) - update_seconds) / num
    time = step_time(kind, plan, step_work, num)
    has_two = plan.num_stages > plan.pp  # then both passes of a rank end with messages
    sends = [has_two or stage < plan.pp - 1, has_two or stage > 0]  # outputs forward, gradients backward
    sending = waiting = 0.0
    if time is not None and kind.links is not None:
        messages = [
            collectives
            for collectives in step_work.collectives
            if collectives.kind == "message" and collectives.dimension == MESH["pp"].name
        ]
        sending = gang_time(kind, kind.links, plan, 0.0, messages, num).exposed_seconds / num
        waiting = time.exposed_seconds / num - sending
    recomputes_all = plan.co_shard > 1 or (plan.recompute and not plan.selective and not plan.recomputed)
    share = FORWARD_SHARE_OF_RECOMPUTE if recomputes_all else FORWARD_SHARE
    forward, backward = (
        PassTime(part * computing, part * waiting, sending / sum(sends) if is_sent else 0.0)
        for part, is_sent in zip((share, 1 - share), sends, strict=True)
    )
    return StageStep(forward, backward, update_seconds)
