"""The job of a gang: the training that all ranks of one attempt are to do, and how far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from estimators.model import Candidate, Plan
from workloads.training.checkpoints.name import CheckpointName, Donor


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """The job of all ranks of an attempt. ``resume`` None: do not resume; ``budget_bytes`` None: no limit.

    Training ends after step ``until`` of ``steps``, or after the last one if that is None. ``resume`` is the checkpoint
    to load; ``checkpoint_root`` holds those of all trials. ``steps``, ``until``, ``report_every`` and the steps of
    checkpoints and reports are optimizer steps, or epochs if the job is ``in_epochs``. ``unit_steps`` counts the
    optimizer steps in one step of a checkpoint or report. Without a checkpoint to resume from, the model begins with
    weights of ``donor``. Without steps it is evaluated once. Each evaluation must return all ``metrics``.
    With ``best_of`` (``maximize`` or ``minimize``) each evaluation with a better value of the first metric is followed
    by a checkpoint, which is kept; ``best`` is what earlier attempts have reached: the value, and its step. With
    ``guard`` the training checks now and then that its curve does not depend on how a batch is divided. In a pack
    ``shared_bytes`` of the budget are frozen weights, which its members have once. Where checkpoints are mirrored
    (``is_mirrored``), ``checkpoint_root`` is a folder of each host, and object storage has what they share.
    """

    candidate: Candidate
    code_dir: Path | None
    plan: Plan
    seed: int
    steps: int
    report_every: int
    budget_bytes: int | None
    checkpoint_root: Path
    trial_id: int
    resume: CheckpointName | None
    metrics: Sequence[str]
    until: int | None = None
    study_id: int = 0
    number: int = 0
    attempt: int = 0
    in_epochs: bool = False
    unit_steps: int = 1
    donor: Donor | None = None
    best_of: str = ""
    best: tuple[float, int] | None = None
    guard: bool = True
    shared_bytes: int = 0
    is_mirrored: bool = False

    @property
    def last_step(self) -> int:
        """Number of steps after which training ends, which are fewer than ``steps`` where a trial is paused."""
        return self.steps if self.until is None else self.until

    @property
    def begin(self) -> int:
        """Number of optimizer steps that earlier attempts have trained."""
        return self.resume.step * self.unit_steps if self.resume else 0

    @property
    def most_steps(self) -> int:
        """The most optimizer steps that there may be, with one after the last checkpoint, which is only recorded."""
        return self.last_step - self.begin + (self.guard and self.last_step < self.steps)

    def is_evaluated(self, step: int) -> bool:
        """Whether an evaluation follows when ``step`` steps are done."""
        return step % self.report_every == 0 or step == self.last_step

    def in_optimizer_steps(self, epoch_length: int, batch: int) -> TrainingJob:
        """The job with its limits in optimizer steps; an epoch has as many as it takes to see all its samples.

        ``batch`` is the number of samples of a step, with AdaScale those of the base batch.
        """
        unit_steps = math.ceil(epoch_length / batch) if self.in_epochs else 1
        until = None if self.until is None else self.until * unit_steps
        return replace(
            self,
            steps=self.steps * unit_steps,
            until=until,
            report_every=self.report_every * unit_steps,
            unit_steps=unit_steps,
        )
