"""View of one simulated optimizer step of a pipeline: what each rank does when, and what it holds meanwhile."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from api.views.view import View
from estimators.model import MIB
from placement.pipelining.timeline import Message, Passed, StageRow, Timeline
from scamp_service.model import RecordedPipeline

Moment = Annotated[float, Field(ge=0, description="since the step began, in `unit`")]
StageNumber = Annotated[int, Field(ge=0, description="stage of the pipeline, from 0")]


class PassView(View):
    """A pass of one micro-batch through a stage, or the update of its parameters."""

    kind: Literal["forward", "backward", "update"]
    micro_batch: int | None
    """number of the micro-batch, from 0; null for the update"""
    start: Moment
    end: Moment
    communicating_from: float
    """from then to `end` the rank communicates: it sends the result, and waits for ranks of its own stage as far as
    computation does not hide it. `end` if nothing is known of the links"""


class MessageView(View):
    """The result of a pass on its way from one stage to another; `end` is the end of that pass."""

    sender: StageNumber
    receiver: StageNumber
    micro_batch: int
    start: Moment
    end: Moment


class RowView(View):
    """The ranks of one stage. Each of them does the same at the same time."""

    stage: StageNumber
    ranks: list[int]
    passes: list[PassView]
    """in the order of time"""
    waits: list[tuple[float, float]]
    """(start, end) of each time in which the ranks wait for other stages, in `unit`"""
    memory: list[tuple[float, int]]
    """(time in `unit`, bytes that each of the ranks holds from then on)"""
    peak_bytes: int
    """predicted peak of one rank, with what was learned"""


class TimelineView(View):
    """One optimizer step of a pipeline, simulated from the costs that its plan was predicted with."""

    unit: Literal["s", "FLOP"]
    """`s`: seconds; `FLOP` where the speed of the devices is not known"""
    makespan: float
    """length of the step, in `unit`; in seconds it is `predicted_step_seconds` of the plan"""
    num_micro_batches: int
    cores: float | None
    """cores of a host that all ranks share, if there are more ranks than cores; null otherwise"""
    bubble_share: float
    """share of the step, 0 to 1, in which ranks wait for other stages"""
    communication_share: float | None
    """share of the step, 0 to 1, in which ranks communicate; null: the links are not known"""
    offered_bytes: int | None
    """bytes that each device offers; null: not known"""
    rows: list[RowView]
    messages: list[MessageView]
    """in the order of time"""


def timeline_view(pipeline: RecordedPipeline) -> TimelineView:
    """View of a step that is simulated again."""
    step, offered_mib = pipeline.step, pipeline.offered_mib
    timeline = step.timeline()
    return TimelineView(
        unit=pipeline.unit,
        makespan=timeline.makespan_seconds,
        num_micro_batches=step.plan.num_micro_batches,
        cores=step.cores if step.cores is not None and step.cores < step.plan.world_size else None,
        bubble_share=timeline.bubble_share,
        communication_share=timeline.communication_share if pipeline.communicates else None,
        offered_bytes=offered_mib * MIB if offered_mib is not None else None,
        rows=[_row(stage, row, timeline) for stage, row in enumerate(timeline.rows)],
        messages=[_message(message) for message in timeline.messages],
    )


def _row(stage: int, row: StageRow, timeline: Timeline) -> RowView:
    return RowView(
        stage=stage,
        ranks=list(row.ranks),
        passes=[_pass(pass_) for pass_ in row.passes],
        waits=list(timeline.waits(row)),
        memory=list(row.memory),
        peak_bytes=row.peak_bytes,
    )


def _pass(passed: Passed) -> PassView:
    return PassView(
        kind=passed.kind,
        micro_batch=passed.micro_batch,
        start=passed.start_seconds,
        end=passed.end_seconds,
        communicating_from=passed.communicating_from_seconds,
    )


def _message(message: Message) -> MessageView:
    return MessageView(
        sender=message.sender,
        receiver=message.receiver,
        micro_batch=message.micro_batch,
        start=message.start_seconds,
        end=message.end_seconds,
    )
