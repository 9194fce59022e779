"""Decides when a training writes a checkpoint, writes it, and resumes from one."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import torch

from estimators.learning import AttemptPhase
from workloads.training.attempt.rank import TrainingRank
from workloads.training.checkpoints import checkpoint, outbox
from workloads.training.checkpoints.folders import remove
from workloads.training.checkpoints.kept import KeptState
from workloads.training.checkpoints.name import CheckpointName, trial_folder, written_checkpoints
from workloads.training.faults import StorageFault
from workloads.training.guard.resuming import ResumeGuard
from workloads.training.updates.update import updates_of

CHECKPOINT_SHARE = 0.1  # the largest share of the time since the last checkpoint that the next one may take


class Saving:
    """The checkpoints of an attempt: the newest one, and that of the best evaluation if the trial counts by it."""

    def __init__(self, rank: TrainingRank, resuming: ResumeGuard, since_report: object) -> None:
        """The attributes of ``since_report`` are kept, too."""
        self._rank, self._resuming = rank, resuming
        self._seconds = 0.0  # that the last checkpoint took
        self._saved_at = -math.inf  # when it was done, by the monotonic clock
        self._saved_step = -1
        self._kept = KeptState(rank.workload, rank.model, rank.optimizer, {"since the last report": since_report})
        self._is_told = False  # that some attributes are not kept
        self._is_unstored = False  # whether checkpoints are late in object storage, as was printed
        self._best: tuple[float, int] | None = None  # the best value of a trial that counts by it, and its step

    def resume(self) -> int:
        """Load the checkpoint to resume from, and return its optimizer step; 0 if there is none to resume from.

        Raises ``StorageFault`` on every rank if one of them does not find it: a trial never silently starts again.
        """
        job = self._rank.job
        start = self._loaded()
        if job.resume is None and (self._rank.is_first or job.is_mirrored):  # of attempts whose curve does not count
            for forgotten in written_checkpoints(job.checkpoint_root, job.trial_id):
                remove(forgotten.folder(job.checkpoint_root))
            if job.is_mirrored and self._rank.is_first and job.attempt > 1:
                outbox.forget(job.checkpoint_root, job.trial_id, before=job.attempt)
        if job.best is not None and job.best[1] <= start // job.unit_steps:  # a later one is evaluated again
            self._best = job.best
        return start

    def _loaded(self) -> int:
        rank = self._rank
        root, resume = rank.job.checkpoint_root, rank.job.resume
        if resume is None:
            return 0
        num_blind = int(rank.sum(torch.tensor(float(not checkpoint.exists(root, resume)))))
        if num_blind:
            raise StorageFault(
                f"the checkpoint of step {resume.step}, which the study database has recorded, is not in "
                f"{trial_folder(root, resume.trial_id)} on {num_blind} of {rank.job.plan.world_size} ranks: mount or "
                "restore this folder on every node"
            )
        if int(rank.sum(torch.tensor(resume.step))) != resume.step * rank.job.plan.world_size:
            raise StorageFault(
                f"ranks see different checkpoints in {trial_folder(root, resume.trial_id)}: it must be one folder that "
                "all nodes share"
            )
        with rank.budget.lifted():
            is_own = resume.trial_id == rank.job.trial_id  # a copy of another trial has options of its own
            kept = checkpoint.load(root, resume, rank.model, rank.optimizer, with_options=is_own, is_checked=is_own)
        self._kept.load(kept)
        if not is_own:
            updates_of(rank.model).skip(rank.job.begin)
        return resume.step * rank.job.unit_steps

    def is_best(self, step: int, values: Mapping[str, float]) -> bool:
        """Whether this is the best evaluation of the trial, if that one counts. Rank 0 decides for all ranks."""
        job = self._rank.job
        if not job.best_of:
            return False
        value = values[job.metrics[0]]
        before = self._best[0] if self._best else math.nan
        is_better = value > before if job.best_of == "maximize" else value < before
        is_best = math.isfinite(value) and (self._best is None or is_better)
        if is_best := self._rank.any(is_best and self._rank.is_first):
            self._best = value, step // job.unit_steps
        return is_best

    def is_due(self) -> bool:
        """Whether to write a checkpoint: at the first evaluation, then if it takes only a small share of the time.

        Rank 0's clock decides for all ranks.
        """
        passed = time.monotonic() - self._saved_at
        return self._rank.any(self._rank.is_first and self._seconds <= passed * CHECKPOINT_SHARE)

    def save_at_stop(self, step: int) -> None:
        """Write a checkpoint after ``step`` steps if there is none; not within an epoch, for which there is no name."""
        if step != self._saved_step and step % self._rank.job.unit_steps == 0:
            self.save(step)

    def save(self, step: int) -> None:
        """Write a checkpoint after ``step`` steps, which is reported once the step after it is recorded."""
        rank, job, began = self._rank, self._rank.job, time.monotonic()
        with rank.budget.during(AttemptPhase.CHECKPOINT), rank.budget.uncounted():
            name = CheckpointName(job.trial_id, step // job.unit_steps)
            needed = {*rank.reporter.needed_checkpoints()}
            if self._best is not None:
                needed.add(CheckpointName(job.trial_id, self._best[1]))
            attempt = job.attempt if job.is_mirrored else None
            values = self._kept.values()
            checkpoint.save(job.checkpoint_root, name, rank.model, rank.optimizer, needed, values, attempt)
        self._tell()
        if job.is_mirrored and rank.is_first:
            self._tell_unstored(name)
        self._saved_step, self._saved_at = step, time.monotonic()
        self._seconds = self._saved_at - began
        self._resuming.begin(name, self._kept.left_out, needed)

    def _tell_unstored(self, newest: CheckpointName) -> None:
        """Say once that checkpoints before ``newest`` are only on this host, and once that they no longer are."""
        words = outbox.late_words(self._rank.job.checkpoint_root, newest.trial_id, before=newest)
        if bool(words) != self._is_unstored:
            print(words or f"all checkpoints before that of step {newest.step} are in object storage", flush=True)
        self._is_unstored = bool(words)

    def _tell(self) -> None:
        """Say once which attributes a resumed training would not have."""
        if self._kept.left_out and self._rank.is_first and not self._is_told:
            self._is_told = True
            names = ", ".join(f"{name} ({kind})" for name, kind in self._kept.left_out.items())
            print(
                f"checkpoints do not hold {names}, so a trial that resumes begins with new values: keep numbers, "
                "tensors, or lists and dictionaries of these, or define state_dict and load_state_dict",
                flush=True,
            )
