"""How many devices the gangs that run and wait want, for the autoscaler of a Ray cluster."""

from __future__ import annotations

from placement.packing.autoscaling import devices_wanted
from scamp_service.control.decide.rules.admission import in_start_order
from scamp_service.control.decide.rules.faults import must_wait
from scamp_service.control.decide.snapshot import Snapshot
from scamp_service.lifecycle import TrialState


def num_devices_wanted(s: Snapshot, most: int) -> int:
    """Devices of open attempts, of queued trials by their plans, and one for each trial that has no plan yet.

    At most ``most``, unless more are in use. Candidates that are yet to be proposed count when they are.
    """
    in_use = {device for attempt in s.attempts for device in attempt.devices}
    queued = [trial.sized.demand.num_ranks for trial in in_start_order(s) if trial.sized is not None]
    unplanned = [
        trial
        for trial in s.in_state(TrialState.WAITING)
        if s.studies[trial.study_id].progress.is_running and not must_wait(s.now, trial)
    ]
    return devices_wanted(len(in_use), [*queued, *[1] * len(unplanned)], most)
