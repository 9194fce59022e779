"""The loop of a training: steps, the evaluations between them, and the end that all ranks agree on."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch._C._autograd import _get_sequence_nr

from estimators.learning import AttemptPhase
from scamp.workload.seeds import seed_everything
from workloads.protocol import Batch, defines
from workloads.refusals import WorkloadError
from workloads.training.attempt.evaluation import evaluate_held_out
from workloads.training.attempt.needs import Needs
from workloads.training.attempt.rank import TrainingRank
from workloads.training.attempt.saving import Saving
from workloads.training.attempt.timing import Timing
from workloads.training.data.feed import Repeated
from workloads.training.digests import expect_agreement
from workloads.training.guard.division import DivisionGuard
from workloads.training.guard.pace import Pace, path_of, with_users_modules
from workloads.training.guard.resuming import ResumeGuard
from workloads.training.memory.peak import measure_peak
from workloads.training.metrics import reportable
from workloads.training.reported import TRAIN_LOSS, expect_own_names, plain_metrics
from workloads.training.step import train_step
from workloads.training.updates.update import updates_of

MEASURED_STEP = 2  # after the start, as optimizer states and lazily created buffers exist by then
_OF_ON_STEP, _OF_ON_EVALUATE = -3, -4  # in seeds
ROUNDING = 1e-6  # of a step: sums of gains that are one step in exact numbers


class NonFiniteLoss(Exception):
    """The training loss became infinite or not a number."""


@dataclass(frozen=True, slots=True)
class _Read:
    """Micro-batches that are held on the host for as long as this is, even after they are all on the device: torch
    would count that they are freed, though not that they were made."""

    batches: list[Batch]
    rank: TrainingRank

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.rank.all_on_device(self.batches))


class _SinceReport:
    """Training losses of the steps since the last report, which a checkpoint between two reports keeps."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.total, self.count = 0.0, 0
        self.phase_losses: dict[str, list[float]] = {}

    def add(self, loss: float) -> None:
        self.total, self.count = self.total + loss, self.count + 1


class Loop:
    """The steps of a rank. ``begun`` counts the optimizer steps that earlier attempts have made.

    ``step`` is the number of an optimizer step, and ``done`` is as how many steps of the budget those before it count:
    the same, but with AdaScale.
    """

    def __init__(self, rank: TrainingRank, begun: int) -> None:
        self._rank, self._job, self._begun = rank, rank.job, begun
        self._pace = Pace(time.monotonic(), resumes=begun > 0)
        self._division, self._resuming = DivisionGuard(rank), ResumeGuard(rank, self._pace)
        self._since_report = _SinceReport()
        self._saving = Saving(rank, self._resuming, self._since_report)
        self._timing, self._needs = Timing(rank), Needs(rank)
        self._mean_loss = math.nan  # of the steps since the last report but one
        self._watched = with_users_modules(rank.workload, rank.model)
        self._num_nodes = 0  # operations of the last step that autograd has recorded

    def train(self) -> Literal["done", "stopped"]:
        """Train until the last step ("done"), or until a rank's reporter says to stop ("stopped")."""
        job, rank = self._job, self._rank
        start = self._saving.resume()
        self._resuming.resume()
        expect_agreement(rank.model, rank.mesh, "before they train")
        measured_step = self._begun + self._measured_step(start)
        self._timing.measured_step = measured_step
        losses = self._since_report
        if job.last_step == 0:
            self._report(0)
        step, done = self._begun, self._done(start)  # optimizer steps, and as how many they count
        is_measured = step == measured_step
        self._report_all(start, done)  # where a trial was paused within them
        while done < job.last_step:
            rank.present_step = done
            self._resuming.begin_step()
            began = time.perf_counter()
            with rank.budget.during(AttemptPhase.STEP):
                with self._timing.step(step):
                    own_loss = self._step(step, done, measured=is_measured)
                needs_more = self._needs.more(step, is_measured)
                check_due = self._is_check_due()
                loss, stop, keep, needs_more, check_due = self._agree(own_loss, needs_more, check_due)  # waits for all
            if step == self._begun:
                expect_agreement(rank.model, rank.mesh, "after their first step")
            if not is_measured and not self._has_company:
                self._timing.end_step(step, began)
            is_measured = step + 1 == measured_step or (step + 1 > measured_step and needs_more)
            self._resuming.end_step(step, loss)
            if not math.isfinite(loss):
                raise NonFiniteLoss(f"the training loss became {loss} at step {done + 1}{self._advice(step)}")
            losses.add(loss)
            before, step, done = done, step + 1, self._end_step(done, losses.total / losses.count)
            is_last = self._is_guarded and done >= job.last_step
            if check_due or is_last:
                self._check(step - 1, is_last=is_last)
            self._report_all(before, done)
            if stop and done < job.last_step:
                if keep:
                    self._saving.save_at_stop(done)
                self._take_next(step, done)
                return "stopped"
        self._take_next(step, done)
        return "done"

    def _take_next(self, step: int, done: int) -> None:
        """Take the step after a checkpoint with which the attempt ends, for whoever resumes there to compare."""
        if not self._resuming.awaits_next:
            return
        self._resuming.begin_step()
        began = time.monotonic()
        with self._rank.budget.during(AttemptPhase.STEP):
            own_loss = self._step(step, done, measured=False)
            loss, *_ = self._agree(own_loss, needs_more=False, check_due=False)
        self._pace.take(time.monotonic() - began)
        self._resuming.end_step(step, loss)
        if self._rank.is_first:
            self._timing.report_seconds(self._pace.share(time.monotonic()))

    @property
    def _has_company(self) -> bool:
        """Whether others train in this process, so that a step takes as long as theirs."""
        return self._rank.member is not None and self._rank.member.pack.num_others > 0

    @property
    def _is_guarded(self) -> bool:
        return self._job.guard and not self._division.is_idle

    def _is_check_due(self) -> bool:
        """Whether this rank asks for a check that the curve does not depend on how a batch is divided."""
        if not self._is_guarded:
            return False
        return self._pace.is_due(path_of(self._num_nodes, self._watched), time.monotonic())

    def _check(self, step: int, *, is_last: bool) -> None:
        """Check that the curve does not depend on how a batch is divided."""
        began = time.monotonic()
        with self._rank.budget.uncounted():  # what libraries keep for other sizes is not the candidate's memory
            self._division.check(step, is_last=is_last)
            expect_agreement(self._rank.model, self._rank.mesh, f"after {step + 1} steps")
        self._pace.end_check(time.monotonic() - began)

    def _advice(self, step: int) -> str:
        """Advice for a loss of optimizer step ``step`` that is not finite, to follow it."""
        if step > 0 or updates_of(self._rank.model).phased is not None:  # a phase may follow the update of another
            return ": lower the learning rate"
        return (
            ", with the initial weights, so it is not the learning rate: look for the log or the root of 0 or less, a "
            "division by 0, samples with nan or inf, and numbers that are too large for the precision"
        )

    def _done(self, start: int) -> int:
        """The number of steps that count as done: ``start``, or more where AdaScale counts them."""
        scaling = updates_of(self._rank.model).ada_scale
        if scaling is None:
            return start
        if not scaling.num_steps:  # new, or from a checkpoint that was written without it
            scaling.progress, scaling.num_steps = float(start), self._begun
            scaling.num_samples = self._begun * self._job.plan.batch
        self._mean_loss = scaling.mean_loss
        return int(scaling.progress + ROUNDING)

    def _measured_step(self, start: int) -> int:
        """The number of optimizer steps before the measured one; not 0 if there may be more than one."""
        scaling, most = updates_of(self._rank.model).ada_scale, self._job.last_step - start - 1
        fewest = math.ceil((most + 1) / scaling.scale) - 1 if scaling is not None else most
        return min(MEASURED_STEP, max(fewest, min(most, 1)))

    def _report_all(self, before: int, done: int) -> None:
        """Report for all steps that are to be evaluated after ``before`` and up to ``done``.

        They are several where a step counts as more than there are between reports.
        """
        due = [step for step in range(before + 1, min(done, self._job.last_step) + 1) if self._job.is_evaluated(step)]
        for due_step in due:
            self._report(due_step, self._mean_loss, keeps=due_step == due[-1])

    def _end_step(self, done: int, loss: float) -> int:
        """The number of steps that count as done after an update, before which ``done`` were.

        ``loss`` is the mean since the last report.
        """
        updates, after, self._mean_loss = updates_of(self._rank.model), done + 1, loss
        if updates.ada_scale is not None:
            updates.ada_scale.end_step(self._job.plan.batch, loss)
            after = int(updates.ada_scale.progress + ROUNDING)
        updates.end_step(min(after, self._job.steps) - min(done, self._job.steps))
        return after

    def _step(self, step: int, done: int, measured: bool) -> Tensor:
        updates_of(self._rank.model).step = step
        if defines(self._rank.workload, "on_step"):  # it draws the same on every rank, and in every attempt
            seed_everything((self._job.seed, step, _OF_ON_STEP), self._rank.workload)
        self._rank.workload.on_step(done, self._job.steps, self._rank.optimizer)
        member = self._rank.member
        if member is not None:
            member.keep_what_trains()
        if not measured:
            with self._rank.budget.settling(), member.step() if member is not None else nullcontext():
                return self._train_step(self._batches(step))
        losses: list[Tensor] = []

        def run() -> None:  # keeps what it returns, and frees nothing older, whose size torch does not know
            losses.append(self._train_step(batches))

        with self._rank.budget.uncounted():  # the profiler's records are not the candidate's memory
            # Torch counts batches that workers send, which lie on the host, unless they come and go out of its sight.
            batches = self._batches(step, ahead=self._rank.feed.is_shared)
            own_peak = measure_peak(self._rank.device, self._rank.model, self._rank.optimizer, run)
        limit = self._job.budget_bytes
        if limit is not None and own_peak > limit:
            raise self._rank.budget.overrun(0, own_peak)
        peak, is_partial = self._rank.highest(own_peak), self._rank.any(self._needs.is_partial)
        if self._rank.is_first and not is_partial:
            self._rank.reporter.measured(peak)
        return losses[0]

    def _train_step(self, batches: Iterable[Batch]) -> Tensor:
        rank, before = self._rank, _get_sequence_nr()
        loss = train_step(rank.workload, rank.model, rank.optimizer, batches, self._job.plan.num_micro_batches)
        self._num_nodes = _get_sequence_nr() - before
        return loss

    def _batches(self, step: int, *, ahead: bool = False) -> Iterable[Batch]:
        """This rank's micro-batches of a step, on its device; ``ahead``: all of them are read now."""
        if updates_of(self._rank.model).phases:
            return Repeated(self._rank.feed, step, self._rank.on_device, ahead=ahead)
        read = self._rank.feed.step(step)
        return _Read(list(read), self._rank) if ahead else self._rank.all_on_device(read)

    def _agree(self, loss: Tensor, needs_more: bool, check_due: bool) -> tuple[float, bool, bool, bool, bool]:
        """The mean loss over the batch, whether any rank must stop, and with a checkpoint, whether any ``needs_more``
        memory in the next step than in all that were measured, and whether any has a ``check_due``; equal on all ranks,
        or some would hang."""
        plan, phases = self._job.plan, updates_of(self._rank.model).losses
        weight = plan.weight_of(self._rank.number)
        losses = [weight * float(loss_part) for loss_part in (loss, *phases.values())]
        stop = self._rank.reporter.should_stop()
        flags = map(float, (bool(stop), stop == "keep", needs_more, check_due))
        mine = torch.tensor([*flags, *losses], dtype=torch.float64)
        stops, keeps, need_more, due, *totals = self._rank.sum(mine).tolist()
        share = plan.pp / plan.world_size  # in a pipeline only the last stage has a loss
        for name, total in zip(phases, totals[1:], strict=True):
            self._since_report.phase_losses.setdefault(name, []).append(total * share)
        return totals[0] * share, stops > 0, keeps > 0, need_more > 0, due > 0

    def _report(self, step: int, train_loss: float | None = None, *, keeps: bool = True) -> None:
        """Evaluate and report, and write a checkpoint if it is time; there is none without a step to keep."""
        rank = self._rank
        values = evaluate_held_out(rank, step // self._job.unit_steps)
        if rank.member is not None:
            rank.member.expect_unchanged()
        with reportable("the workload"):
            expect_own_names(values, [phase.name for phase in updates_of(rank.model).phases])
        if train_loss is not None:
            values[TRAIN_LOSS] = train_loss
        phases = self._since_report.phase_losses
        values |= {f"{name}_loss": sum(losses) / len(losses) for name, losses in phases.items()}
        self._since_report.clear()
        missing = next((metric for metric in self._job.metrics if metric not in values), None)
        if missing is not None:
            raise WorkloadError(
                f"the workload reports {', '.join(values)}, but the objective is {missing!r}: set the study's "
                "objective to one of these, or return that metric from evaluate"
            )
        seed_everything((self._job.seed, step, _OF_ON_EVALUATE), rank.workload)
        updates_of(rank.model).after_evaluation(rank.workload, values)
        with reportable("on_evaluate"):
            values = plain_metrics(values)  # which it may have changed
        is_best = self._saving.is_best(step, values)
        self._timing.report_waiting()
        if rank.is_first:
            self._timing.report_seconds(self._pace.share(time.monotonic()))
            self._report_noise()
            rank.reporter.metrics(step // self._job.unit_steps, values)
        if keeps and step and (is_best or step == self._job.last_step or self._saving.is_due()):
            self._saving.save(step)

    def _report_noise(self) -> None:
        """Report the noise scale, by which it is decided whether a larger batch trains faster."""
        scaling = updates_of(self._rank.model).ada_scale
        if scaling is not None and (noise_scale := scaling.noise_scale) is not None:
            self._rank.reporter.learned_noise(noise_scale)
