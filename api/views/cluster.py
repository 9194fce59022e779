"""The cluster: its devices, the gangs that hold them, and the trials that wait for devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from api.views.view import LastEvent, NumRanks, Time, View
from scamp_service.lifecycle import AttemptState, TrialState
from scamp_service.model import Attempt, Json, Trial


class GangView(View):
    """An attempt that holds devices."""

    key: Annotated[str, Field(description="trial id/attempt", examples=["17/1"])]
    study_id: int
    study_name: str
    trial_id: int
    number: Annotated[int, Field(description="of the trial in its study")]
    attempt: int
    state: AttemptState
    plan_text: str
    devices: list[str]
    mib_per_rank: int
    placement_reason: str
    created_at: Time


class DeviceView(View):
    id: str
    node: str
    index: int
    kind: str
    capacity_mib: int
    reserved_mib: int
    free_mib: int
    gangs: list[GangView]


class WaitingView(View):
    """A trial that has yet to get devices, and why."""

    study_id: int
    study_name: str
    trial_id: int
    number: int
    state: TrialState
    plan: dict[str, Any] | None
    plan_text: str
    num_ranks: NumRanks
    reserved_mib: int
    reason: str


class ClusterView(View):
    status: Annotated[str, Field(description="`starting` until a live controller has reported", examples=["ready"])]
    detail: str
    controller_alive: bool
    controller_silent_seconds: Annotated[float | None, Field(description="since it was last heard of; null: never")]
    devices: list[DeviceView]
    gangs: list[GangView]
    waiting: Annotated[list[WaitingView], Field(description="the first 200")]
    num_waiting: int
    last_event_id: LastEvent


def gang_view(attempt: Attempt, trial: Trial, study_name: str) -> GangView:
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
        mib_per_rank=attempt.mib_per_rank,
        placement_reason=attempt.placement_reason,
        created_at=attempt.created_at,
    )


def device_view(device: Json, gangs: Sequence[GangView]) -> DeviceView:
    here = [gang for gang in gangs if device["id"] in gang.devices]
    reserved = sum(gang.mib_per_rank for gang in here)
    return DeviceView(
        id=device["id"],
        node=device["node"],
        index=device["index"],
        kind=device["kind"],
        capacity_mib=device["capacity_mib"],
        reserved_mib=reserved,
        free_mib=device["capacity_mib"] - reserved,
        gangs=here,
    )


def waiting_view(trial: Trial, study_name: str) -> WaitingView:
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
    )
