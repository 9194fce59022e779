"""Decides who is told what: events and lasting conditions become notices, and these become deliveries. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from placement.packing.device_time import DeviceTime, IdleRule, busy_share, day_of
from placement.packing.projects import Quota
from scamp_service.lifecycle import ENDED_WELL, StudyState, TrialState, WaitsFor, state_text
from scamp_service.model import Attempt, Event, Json, Study, Trial, WaitingTrials
from scamp_service.receivers import Kind, Receiver
from scamp_service.study.objectives import Objectives

MOST_AN_HOUR = 20
"""Notices of one kind about one study that an address gets within an hour: a thousand trials may fail at once."""
MOST_REASON = 1000
"""Characters of a trial's reason in a text; the data have it whole."""
NEAR_PERCENTS = (100, 80)
"""Percents of a quota at which people are told."""
IDLE_SECONDS = 600.0
"""How long devices are idle while trials wait before people are told."""
IDLE_AGAIN_SECONDS = 6 * 3600.0
WAITS_FOR_US = frozenset({WaitsFor.DEVICES, WaitsFor.PLAN, WaitsFor.NEW_PLAN, WaitsFor.QUOTA, WaitsFor.RETRY})
"""Waits that nobody has asked for in the study itself, as with ``paused`` or ``max_concurrent``."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that people are told. ``text`` says it in a sentence or two, ``data`` to programs."""

    kind: Kind
    text: str
    data: Json
    time: float
    study_id: int | None = None
    """The only study that it is about."""
    concerns: frozenset[int] = frozenset()
    """Studies whose own receivers are told."""
    topic: str = ""
    """Names a lasting condition, about which nobody is told again before ``again_seconds``."""
    again_seconds: float = math.inf


def study_ended(event: Event, study: Study, states: Mapping[TrialState, int], best: Trial | None) -> Notice | None:
    """The notice of a study's end; None for any other change, such as of the priority of one that has ended."""
    if study.finished_at != event.time:
        return None
    text = f"{_name(study)}: {state_text(study.state, states)}"
    if study.reason:
        text += f" ({study.reason})"
    counted = ", ".join(f"{num} {state.value.lower()}" for state, num in sorted(states.items()) if num)
    text += f". Trials: {counted or 'none'}."
    data = {"study": _study(study), "trials": dict(states), "best": None}
    if best is not None and best.state is TrialState.COMPLETED and best.value is not None:
        text += f" Best {_objective(study)} {best.value:.4g}, of trial {best.number}."
        data["best"] = {"number": best.number, "value": best.value}
    return _about(study, "study.ended", text, data, event.time)


def trial_ended(event: Event, study: Study, trial: Trial, is_best: bool) -> list[Notice]:
    """The notices of a trial's end; none for any other change. ``is_best``: no other completed trial is as good."""
    if trial.finished_at != event.time:
        return []
    name, data = f"{_name(study)}, trial {trial.number}", {"study": _study(study), "trial": _trial(trial)}
    texts: dict[Kind, str] = {}
    if trial.state is TrialState.FAILED:
        texts["trial.failed"] = f"{name} has failed: {trial.reason[:MOST_REASON]}"
    if trial.is_healed:
        times = "once" if trial.num_oom == 1 else f"{trial.num_oom} times"
        state = trial.state.value.lower()
        texts["trial.healed"] = f"{name} ran out of memory {times}, and then was {state} under a new plan."
    if is_best and trial.state in ENDED_WELL and trial.value is not None:
        texts["trial.best"] = f"{name} is better than all before: {_objective(study)} {trial.value:.4g}."
    return [_about(study, kind, text, data, event.time) for kind, text in texts.items()]


def quota_near(
    quotas: Mapping[str, Quota], used: Mapping[str, DeviceTime], live: Mapping[str, frozenset[int]], now: float
) -> list[Notice]:
    """Notices of projects and users that have used up most of their hours. ``live`` are the running studies of each."""
    notices = []
    for holder, quota in quotas.items():
        time, month = used.get(holder, DeviceTime()), day_of(now).strftime("%Y-%m")
        kind, _, name = holder.rpartition(" ")
        for unit, seconds, most, words, period in (
            ("device_hours", time.device_seconds, quota.device_hours, "device-hours of this month", month),
            ("mib_hours", time.mib_seconds, quota.mib_hours, "MiB·hours", ""),
        ):
            share = seconds / 3600 / most if most else 0.0
            if percent := next((percent for percent in NEAR_PERCENTS if share >= percent / 100), 0):
                then = "no other trial of it starts" if percent == 100 else "at 100 % no other trial of it starts"
                who = f"{(kind or 'project').capitalize()} “{name}”"
                text = f"{who} has used {100 * share:.0f} % of {most:g} {words}; {then}."
                data = {kind or "project": name, f"used_{unit}": seconds / 3600, unit: most}
                topic = " ".join(filter(None, ("quota", holder, unit, f"{percent}", f"{most:g}", period)))
                notices.append(
                    Notice("quota.near", text, data, now, concerns=live.get(holder, frozenset()), topic=topic)
                )
    return notices


def devices_idle(
    idle: Sequence[str], waiting: Sequence[WaitingTrials], idle_seconds: float, now: float
) -> list[Notice]:
    """The notice that devices have been idle for so long while trials wait; none while that is short."""
    waiting = [trials for trials in waiting if trials.waits_for in WAITS_FOR_US]
    if not idle or not waiting or idle_seconds < IDLE_SECONDS:
        return []
    num = sum(trials.num_trials for trials in waiting)
    first = min(waiting, key=lambda trials: trials.study_id)
    devices, trials = "device" if len(idle) == 1 else "devices", "trial waits" if num == 1 else "trials wait"
    text = (
        f"{len(idle)} {devices} have been idle for {idle_seconds / 60:.0f} minutes while {num} {trials}. "
        f"One of study {first.study_id} {first.reason or 'gives no reason'}."
    )
    concerns = frozenset(trials.study_id for trials in waiting)
    data = {"devices": list(idle), "num_waiting": num, "studies": sorted(concerns)}
    return [Notice("devices.idle", text, data, now, concerns=concerns, topic="idle", again_seconds=IDLE_AGAIN_SECONDS)]


def gangs_idle(running: Sequence[tuple[Study, Trial, Attempt]], rule: IdleRule, now: float) -> list[Notice]:
    """A notice of each trial that holds devices and does not use them."""
    notices = []
    for study, trial, attempt in running:
        if idle := rule.idle_seconds(attempt.load):
            num, share = len(attempt.devices), busy_share(watch for watch in attempt.load if watch.ended > now - idle)
            text = (
                f"{_name(study)}, trial {trial.number} has used {100 * (share or 0):.0f} % of its "
                f"{'device' if num == 1 else f'{num} devices'} for {idle / 60:.0f} minutes. It may wait for data, for "
                "a file system or for a person; pause or cancel it to give them back."
            )
            data = {"study": _study(study), "trial": _trial(trial), "idle_seconds": idle}
            data |= {"devices": list(attempt.devices), "busy_share": share}
            concerns = frozenset({study.id})
            topic = f"idle {attempt.key}"
            notices.append(Notice("trial.idle", text, data, now, study.id, concerns, topic, IDLE_AGAIN_SECONDS))
    return notices


def deliveries_of(
    notices: Sequence[Notice],
    receivers_of: Callable[[Notice], Sequence[Receiver]],
    recent: Mapping[tuple[str, str, int | None], int],
    last_about: Mapping[tuple[str, str], float],
    now: float,
) -> list[dict[str, Any]]:
    """One delivery for each notice and address that asks for it, as rows.

    ``recent`` are the numbers of the last hour by address, kind and study; ``last_about`` says when each address was
    last told about each topic.
    """
    rows, counts = [], Counter(recent)
    for notice in notices:
        asking = {each.address: each for each in receivers_of(notice) if notice.kind in each.on}
        for address, receiver in asking.items():
            text, key = notice.text, (address, notice.kind, notice.study_id)
            if notice.topic:
                if now - last_about.get((address, notice.topic), -math.inf) < notice.again_seconds:
                    continue
            elif counts[key] >= MOST_AN_HOUR:
                continue
            elif counts[key] == MOST_AN_HOUR - 1:
                text += f" There were {MOST_AN_HOUR} such notices within an hour: more are left out."
            counts[key] += 1
            rows.append(delivery_row(notice.kind, receiver, {**notice.data, "text": text}, now, notice))
    return rows


def delivery_row(kind: str, receiver: Receiver, data: Json, now: float, notice: Notice | None = None) -> dict[str, Any]:
    """A delivery as a row, without its ids and state."""
    time = datetime.fromtimestamp(notice.time if notice else now, UTC).isoformat().replace("+00:00", "Z")
    return {
        "kind": kind,
        "topic": notice.topic if notice else "",
        "study_id": notice.study_id if notice else None,
        "address": receiver.address,
        "receiver": receiver.model_dump(mode="json"),
        "body": {"type": kind, "timestamp": time, "data": data},
        "created_at": now,
        "next_at": now,
    }


def _about(study: Study, kind: Kind, text: str, data: Json, time: float) -> Notice:
    return Notice(kind, text, data, time, study_id=study.id, concerns=frozenset({study.id}))


def _name(study: Study) -> str:
    return f"Study {study.id} “{study.name}”"


def _objective(study: Study) -> str:
    return Objectives.of_spec(study.spec).leading.metric


def _study(study: Study) -> Json:
    return {"id": study.id, "name": study.name, "state": StudyState(study.state).value, "reason": study.reason}


def _trial(trial: Trial) -> Json:
    value = trial.value if trial.value is not None and math.isfinite(trial.value) else None
    return {"number": trial.number, "state": trial.state.value, "value": value, "reason": trial.reason}
