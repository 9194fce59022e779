"""How the supervisor sees that a child process gets on."""

from __future__ import annotations

import os

import pytest

from scamp_service.processes import heartbeat
from scamp_service.processes.heartbeat import VARIABLE, Heartbeat, Pulse


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(heartbeat, "time", clock)
    return clock


def test_silence_counts_from_the_last_beat(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    pulse = Pulse()
    monkeypatch.setenv(VARIABLE, str(os.dup(pulse.child_end)))
    child = Heartbeat()
    pulse.started()
    for clock.now in range(10):
        assert pulse.silent_seconds() == clock.now and not pulse.has_beaten
    child.beat()
    assert pulse.silent_seconds() == 0 and pulse.has_beaten
    for clock.now in range(10, 20):
        silent = pulse.silent_seconds()
    assert silent == 10
    pulse.close()
    child.beat()  # nobody listens any more


def test_time_in_which_the_supervisor_itself_stood_still_does_not_count(clock: Clock) -> None:
    pulse = Pulse()
    clock.now = 1000.0
    assert pulse.silent_seconds() <= 5.0
    pulse.started()
    pulse.close()


def test_a_child_that_beats_all_the_time_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    pulse = Pulse()
    monkeypatch.setenv(VARIABLE, str(pulse.child_end))
    child = Heartbeat()
    for _ in range(100_000):  # more than the pipe holds
        child.beat()
    pulse.started()
    pulse.close()
    monkeypatch.delenv(VARIABLE)
    Heartbeat().beat()
