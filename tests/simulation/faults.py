"""The faults of a simulation, each with its probability, and its clock."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass
class Faults:
    crash: float = 0.02  # at each write or executor call
    lose_message: float = 0.1  # launch or stop never arrives
    double_message: float = 0.1
    late_report: float = 0.3  # a report is delayed by up to a minute
    kill_rank: float = 0.05  # per gang and step
    lose_node: float = 0.01  # per gang and step
    fill_disk: float = 0.02  # per gang and step: no checkpoint can be written for up to two minutes
    lose_sink: float = 0.03  # per gang and step: its reports wait for up to ten seconds, and are lost if it dies
    join_late: float = 0.3  # per simulation: at first there is only one device on each node
    shrink: float = 0.2  # per simulation: one device leaves, in half of them for good, in half 30 s after a notice
    freeze_rank: float = 0.01  # per gang and step
    hang_start: float = 0.05  # a launch of which a rank never answers
    slow_start: float = 0.2  # a launch that takes up to a minute
    silent_rank: float = 0.2  # a gang that a new controller finds, but of which a rank does not answer at once
    pause: float = 0.01  # a controller stands still at a write or executor call
    lose_database: float = 0.002  # per cycle, for up to a minute
    jump_clock: float = 0.02  # per cycle
    stall: float = 0.01  # per gang and step: its ranks answer, and do nothing
    slow_call: float = 0.02  # a call of a controller takes up to a second
    slow_sampler: float = 0.1  # a proposal takes up to five seconds
    raise_error: float = 0.0  # per gang and step: the user's code fails
    resume_otherwise: float = 0.0  # per gang that resumes: it finds that its next step is another one than before
    fail_sizing: float = 0.05  # the host fails a candidate's trace again and again


def no_faults() -> Faults:
    """A world in which nothing goes wrong."""
    return Faults(**dict.fromkeys((field.name for field in fields(Faults)), 0.0))


@dataclass
class Clock:
    now: float = 1_000.0

    def __call__(self) -> float:
        return self.now
