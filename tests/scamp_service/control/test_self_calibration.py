"""A machine is measured once, while it is idle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scamp_service.control.self_calibration import (
    BUSY_SECONDS,
    IDLE_SECONDS,
    LONGEST_SECONDS,
    PAUSE_SECONDS,
    TRIES,
    Act,
    CalibrationState,
    next_act,
)

READY = CalibrationState(
    is_known=False,
    idle_seconds=IDLE_SECONDS,
    is_quiet=True,
    running_seconds=None,
    num_failures=0,
    since_failure_seconds=0.0,
)
RUNNING = replace(READY, running_seconds=3.0)


@pytest.mark.parametrize(
    ("seen", "act"),
    [
        (READY, Act.START),
        (replace(READY, is_known=True), Act.WAIT),
        (replace(READY, idle_seconds=0.0), Act.WAIT),
        (replace(READY, idle_seconds=IDLE_SECONDS - 0.1), Act.WAIT),
        (replace(READY, is_quiet=False), Act.WAIT),
        (replace(READY, is_quiet=False, idle_seconds=BUSY_SECONDS), Act.START),
        (RUNNING, Act.WAIT),
        (replace(RUNNING, is_quiet=False), Act.WAIT),
        (replace(RUNNING, idle_seconds=0.0), Act.STOP),
        (replace(RUNNING, running_seconds=LONGEST_SECONDS + 1), Act.GIVE_UP),
        (replace(READY, num_failures=1, since_failure_seconds=PAUSE_SECONDS - 1), Act.WAIT),
        (replace(READY, num_failures=1, since_failure_seconds=PAUSE_SECONDS), Act.START),
        (replace(READY, num_failures=TRIES, since_failure_seconds=10 * PAUSE_SECONDS), Act.WAIT),
    ],
)
def test_a_machine_is_measured_once_while_it_is_idle_and_no_study_waits_for_it(
    seen: CalibrationState, act: Act
) -> None:
    assert next_act(seen) is act
