"""Views of the cluster: its devices, the gangs that hold them, and the trials that wait for devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import Field

from api.views.view import LastEvent, NumRanks, Time, View
from placement.packing.device_time import IdleRule
from scamp_service.lifecycle import AttemptState, TrialState
from scamp_service.model import Attempt, Trial
from scamp_service.store.recorded_cluster import RecordedController, RecordedDevice


class GangView(View):
    """An attempt that holds devices, one rank on each."""

    key: Annotated[
        str,
        Field(
            description="trial id/attempt, after `hidden-` for one of a project that you may not read",
            examples=["17/1"],
        ),
    ]
    study_id: Annotated[int, Field(description="0 if you may not read it")]
    study_name: str
    trial_id: int
    number: Annotated[int, Field(description="number of the trial in its study")]
    attempt: int
    state: AttemptState
    plan_text: Annotated[str, Field(description="the plan in words")]
    devices: Annotated[list[str], Field(description="device of each rank, in rank order")]
    mib_per_rank: Annotated[int, Field(description="MiB reserved on a device for one rank, the largest of all")]
    mibs: Annotated[list[int], Field(description="MiB reserved for each rank, in rank order")]
    placement_reason: Annotated[str, Field(description="why it was placed on these devices")]
    created_at: Time
    busy_share: Annotated[
        float | None,
        Field(description="how busy its first rank was in the last measured minute, from 0 to 1; null: not measured"),
    ]
    idle_seconds: Annotated[
        float,
        Field(description="for how long it is idle by SCAMP_IDLE_PCT and SCAMP_IDLE_MINUTES; 0: it is not"),
    ]


class DeviceView(View):
    """A device, and the memory that gangs have reserved on it."""

    id: str
    node: str
    index: Annotated[int, Field(description="index of the device on its node, from 0")]
    kind: Annotated[
        str, Field(description="kind of the GPU, as in `scamp estimate --device`, or its product, or `virtual`")
    ]
    capacity_mib: Annotated[int, Field(description="MiB that it offers to all ranks together")]
    reserved_mib: int
    free_mib: Annotated[
        int, Field(description="capacity_mib − reserved_mib, or 0 if other processes have taken more since")
    ]
    closed: Annotated[str, Field(description="why no gang is placed on it now; empty if it is open")]
    gangs: list[GangView]


class WaitingView(View):
    """A trial that waits for devices, and why."""

    study_id: int
    study_name: str
    trial_id: int
    number: Annotated[int, Field(description="number of the trial in its study")]
    state: TrialState
    plan: Annotated[dict[str, Any] | None, Field(description="null while there is no plan")]
    plan_text: Annotated[str, Field(description="the plan in words; empty while there is none")]
    num_ranks: NumRanks
    reserved_mib: Annotated[int, Field(description="MiB to reserve for one rank; 0 while there is no plan")]
    reason: Annotated[str, Field(description="why it waits")]
    blocked: Annotated[
        str,
        Field(
            description="what it lacks: `plan`, `verdict` (of the stopping rule), `retry` (after a fault of the host), "
            "`busy`, `fragmented`, `reserved`, `own reservation`, `too large`, `no devices`, `quota`, `limit` (of "
            "trials of its study) or `predictions` (of all candidates); empty if it is about to start"
        ),
    ]
    starts_in_seconds: Annotated[
        float | None, Field(description="seconds until it starts, by a simulation of the queue; null: not known")
    ]


class ContainedView(View):
    """An error of ScaMP's own code that the controller survived; the next cycle tries again."""

    doing: Annotated[str, Field(description="what it could not do", examples=["propose 4 candidates"])]
    error: str
    study_id: Annotated[int | None, Field(description="the study that it concerns; null: none alone")]
    first_at: Time
    last_at: Time
    times: Annotated[int, Field(description="how often it has happened")]


class ControllerView(View):
    """The process that leads, or led last."""

    host: str
    pid: Annotated[int, Field(description="process id on that host")]
    since: Annotated[Time, Field(description="when it began to lead")]
    errors: Annotated[
        list[ContainedView], Field(description="the last ten different errors, also of earlier ones, the newest first")
    ]


class ClusterView(View):
    """The cluster as the controller last recorded it, with the current gangs and waiting trials."""

    status: Annotated[str, Field(description="`starting` until a live controller has reported", examples=["ready"])]
    detail: Annotated[
        str,
        Field(description="why the cluster is not ready, why GPUs offer nothing, or that it is a rehearsal; or empty"),
    ]
    data_directory: Annotated[
        str, Field(description="what is wrong with the data directory, such as a full disk; empty if nothing is")
    ]
    speed: Annotated[
        str, Field(description="how well the speed of the devices is known, from which step times are predicted")
    ]
    controller_alive: Annotated[bool, Field(description="whether the controller has renewed its lease in time")]
    controller_silent_seconds: Annotated[
        float | None, Field(description="seconds since the controller last reported; null: it never has")
    ]
    controller: Annotated[ControllerView | None, Field(description="null: none has reported yet")]
    devices: list[DeviceView]
    gangs: list[GangView]
    waiting: Annotated[list[WaitingView], Field(description="the first 200 waiting trials")]
    num_waiting: Annotated[int, Field(description="number of all waiting trials")]
    last_event_id: LastEvent


def gang_view(attempt: Attempt, mib: int, trial: Trial, study_name: str, rule: IdleRule) -> GangView:
    """View of an attempt that holds devices, with ``mib`` reserved for one of its ranks."""
    return GangView(
        key=attempt.key,
        study_id=trial.study_id,
        study_name=study_name,
        trial_id=trial.id,
        number=trial.number,
        attempt=attempt.attempt,
        state=attempt.state,
        plan_text=str(attempt.plan),
        devices=list(attempt.devices),
        mib_per_rank=mib,
        mibs=list(attempt.mibs) or [mib] * len(attempt.devices),
        placement_reason=attempt.placement_reason,
        created_at=attempt.created_at,
        busy_share=_newest_share(attempt),
        idle_seconds=rule.idle_seconds(attempt.load),
    )


def hidden_gang_view(attempt: Attempt, mib: int, rule: IdleRule) -> GangView:
    """View of an attempt in a project that the user may not read: only its devices, and how it uses them."""
    return GangView(
        key=f"hidden-{attempt.key}",
        study_id=0,
        study_name="",
        trial_id=0,
        number=0,
        attempt=0,
        state=attempt.state,
        plan_text="",
        devices=list(attempt.devices),
        mib_per_rank=mib,
        mibs=list(attempt.mibs) or [mib] * len(attempt.devices),
        placement_reason="",
        created_at=attempt.created_at,
        busy_share=_newest_share(attempt),
        idle_seconds=rule.idle_seconds(attempt.load),
    )


def _newest_share(attempt: Attempt) -> float | None:
    return attempt.load[-1].busy_share if attempt.load else None


def controller_view(controller: RecordedController, with_errors: bool) -> ControllerView:
    """View of the controller that recorded the cluster."""
    errors = [
        ContainedView(**{**asdict(error), "study_id": error.study_id or None}) for error in reversed(controller.errors)
    ]
    errors = errors if with_errors else []
    return ControllerView(host=controller.host, pid=controller.pid, since=controller.since, errors=errors)


def device_view(recorded: RecordedDevice, gangs: Sequence[GangView]) -> DeviceView:
    """View of a recorded device, with those of ``gangs`` that hold it."""
    device = recorded.device
    here = [gang for gang in gangs if device.id in gang.devices]
    reserved = sum(gang.mibs[gang.devices.index(device.id)] for gang in here)
    return DeviceView(
        **asdict(device),
        reserved_mib=reserved,
        free_mib=max(0, device.capacity_mib - reserved),
        closed=recorded.closed,
        gangs=here,
    )


def waiting_view(trial: Trial, study_name: str, blocked: str, starts_in_seconds: float | None) -> WaitingView:
    """View of a trial that waits for devices."""
    return WaitingView(
        study_id=trial.study_id,
        study_name=study_name,
        trial_id=trial.id,
        number=trial.number,
        state=trial.state,
        plan=trial.plan.to_json() if trial.plan else None,
        plan_text=str(trial.plan or ""),
        num_ranks=trial.plan.world_size if trial.plan else 0,
        reserved_mib=trial.prediction.reserved_mib,
        reason=trial.reason,
        blocked=blocked,
        starts_in_seconds=starts_in_seconds,
    )
