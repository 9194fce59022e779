"""Measures the speed of the machine once, in a child process with the lowest priority, while no study is live.

``control.self_calibration`` decides when. A result is kept in the data directory; plans that are chosen from then on
have predicted step times.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from contextlib import suppress
from pathlib import Path

from scamp_service.control.self_calibration import LONGEST_SECONDS, Act, CalibrationState, next_act
from scamp_service.errors import InvalidInput
from scamp_service.processes.supervise import end_with_parent
from scamp_service.sizing.calibration import Measurement, calibrated, lock_machine, quick_measurement

log = logging.getLogger("scamp.calibration")

LOWEST_PRIORITY = 19
QUIET_PERCENT = 20.0
"""A host is quiet if some process had to wait for a core in less of the last 10 s."""
LOOK_SECONDS = 1.0
_POLL_SECONDS = 0.01


class Calibrator:
    """The measurement of one service. ``tick`` advances it; ``end`` must follow."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._measurement: Measurement | None = None
        self._lock: socket.socket | None = None
        self._is_known = False
        self._idle_since: float | None = None
        self._looked = self._failed_at = 0.0
        self._num_failures = 0
        self._trouble = ""

    @property
    def words(self) -> str:
        """Why no step times are predicted yet, in words; empty once the speed is known."""
        if self._is_known:
            return ""
        if self._measurement is not None:
            return "this machine is being measured, which takes some seconds"
        if self._trouble:
            return f"{self._trouble}; “scamp calibrate” tries again"
        return "this machine is measured as soon as no study runs, or by “scamp calibrate”"

    def tick(self, is_idle: bool) -> None:
        """Start, follow or stop the measurement. ``is_idle`` says whether nothing waits for devices or uses them."""
        now = time.monotonic()
        self._idle_since = (self._idle_since or now) if is_idle else None
        if self._measurement is None and (self._is_known or now - self._looked < LOOK_SECONDS):
            return
        self._looked = now
        self._is_known = self._measurement is None and calibrated(self._data_dir) is not None
        match next_act(self._state(now)):
            case Act.START:
                self._start()
            case Act.STOP:
                log.info("a study has arrived: this machine is measured later")
                self.end()
            case Act.GIVE_UP:
                self._fail(f"measuring this machine took more than {LONGEST_SECONDS:.0f} s")
            case Act.WAIT if self._measurement is not None:
                self._follow(self._measurement)

    def end(self) -> None:
        """End the measurement, if one runs."""
        if self._measurement is not None:
            self._measurement.stop()
        if self._lock is not None:
            self._lock.close()
        self._measurement = self._lock = None

    def _state(self, now: float) -> CalibrationState:
        return CalibrationState(
            is_known=self._is_known,
            idle_seconds=0.0 if self._idle_since is None else now - self._idle_since,
            is_quiet=self._measurement is not None or is_quiet(),
            running_seconds=None if self._measurement is None else self._measurement.seconds,
            num_failures=self._num_failures,
            since_failure_seconds=now - self._failed_at,
        )

    def _start(self) -> None:
        self._lock = lock_machine()
        if self._lock is None:
            return  # another service of this host measures now
        try:
            self._measurement = quick_measurement(self._data_dir, _in_the_background)
        except OSError as error:
            self._fail(f"measuring this machine cannot start: {error}")

    def _follow(self, measurement: Measurement) -> None:
        try:
            kind = measurement.result(_POLL_SECONDS)
        except InvalidInput as error:
            self._fail(str(error))
            return
        if kind is not None:
            log.info("%s was measured in %.0f s: %s", kind.name, measurement.seconds, kind.provenance)
            self._is_known, self._trouble = True, ""
            self.end()

    def _fail(self, why: str) -> None:
        if why != self._trouble:
            log.warning("no step times are predicted: %s", why)
        self._trouble, self._failed_at = why, time.monotonic()
        self._num_failures += 1
        self.end()


def is_quiet() -> bool:
    """Whether processes of this host rarely wait for a core, as Linux says; also where it does not say it."""
    with suppress(OSError):
        if match := re.search(r"some avg10=([\d.]+)", Path("/proc/pressure/cpu").read_text()):
            return float(match[1]) < QUIET_PERCENT
    return True


def _in_the_background() -> None:
    end_with_parent()
    os.nice(LOWEST_PRIORITY)
