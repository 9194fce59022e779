"""Trains one rank of a candidate under a plan: every plan gives the same loss curve, step for step.

The caller provides a rendezvous, a reporter and a warm process. The process group, the memory limit and the model are
gone when ``train`` returns or raises. Other modules decide which plan runs, where and when.
"""

from __future__ import annotations

import gc
import math
import re
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import Store
from torch.distributed.device_mesh import DeviceMesh

from estimators.learning import AttemptPhase
from estimators.model import Candidate, Plan
from workloads.imports import import_early
from workloads.loading import load_workload
from workloads.parallel.apply import rank_part
from workloads.parallel.forward_state.watch import FREED
from workloads.protocol import Batch, Workload
from workloads.refusals import WorkloadError
from workloads.seeds import DATA_SEED, seed_everything
from workloads.training.building import build_model
from workloads.training.checkpoints import checkpoint
from workloads.training.checkpoints.folders import expect_shared_folder
from workloads.training.checkpoints.intact import newest_intact
from workloads.training.checkpoints.name import CheckpointName, Donor, trial_folder
from workloads.training.data.data_checks import expect_data, expect_order
from workloads.training.data.feed import Feed, Repeated, feeding
from workloads.training.data.order import SampleOrder
from workloads.training.data.outputs import Collected, expect_summary, has_summary, summary
from workloads.training.digests import expect_agreement
from workloads.training.faults import StorageFault
from workloads.training.gang import process_group
from workloads.training.memory import budget
from workloads.training.memory.peak import measure_peak
from workloads.training.metrics import Sums, common_names
from workloads.training.step import evaluate, to_device, train_step
from workloads.training.updates.update import expect_reduction, make_optimizer, scaled_from, updates_of
from workloads.training.waiting import Waiting
from workloads.training.warm_up import warm_up
from workloads.trial import ARTIFACTS, TrialContext

CHECKPOINT_SHARE = 0.1  # the largest share of the time since the last checkpoint that the next one may take
MEASURED_STEP = 2  # after the start, as optimizer states and lazily created buffers exist by then
ROUNDING = 1e-6  # of a step: sums of gains that are one step in exact numbers
TIMED_STEPS = 1000  # the most steps whose median is the time of a step: the newest ones


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """The orders for all ranks of an attempt. ``resume`` None: do not resume; ``budget_bytes`` None: no limit.

    Training ends after step ``until`` of ``steps``, or after the last one if that is None. ``resume`` is the checkpoint
    to load; ``checkpoint_root`` holds those of all trials. ``steps``, ``until``, ``report_every`` and the steps of
    checkpoints and reports are optimizer steps, or epochs if the job is ``in_epochs``. ``each`` counts the optimizer
    steps in one step of a checkpoint or report. Without a checkpoint to resume from, the model begins with
    weights of ``donor``. Without steps it is evaluated once. Each evaluation must return all ``metrics``.
    With ``best_of`` (``maximize`` or ``minimize``) each evaluation with a better value of the first metric is followed
    by a checkpoint, which is kept; ``best`` is what earlier attempts have reached: the value, and its step.
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
    each: int = 1
    donor: Donor | None = None
    best_of: str = ""
    best: tuple[float, int] | None = None

    @property
    def last_step(self) -> int:
        """Number of steps after which training ends, which are fewer than ``steps`` where a trial is paused."""
        return self.steps if self.until is None else self.until

    @property
    def begin(self) -> int:
        """Number of optimizer steps that earlier attempts have trained."""
        return self.resume.step * self.each if self.resume else 0

    def is_evaluated(self, step: int) -> bool:
        """Whether an evaluation follows when ``step`` steps are done."""
        return step % self.report_every == 0 or step == self.last_step

    def in_optimizer_steps(self, epoch_length: int, batch: int) -> TrainingJob:
        """The job with its limits in optimizer steps; an epoch has as many as it takes to see all its samples.

        ``batch`` is the number of samples of a step, with AdaScale those of the base batch.
        """
        each = math.ceil(epoch_length / batch) if self.in_epochs else 1
        until = None if self.until is None else self.until * each
        return replace(self, steps=self.steps * each, until=until, report_every=self.report_every * each, each=each)


class Reporter(Protocol):
    """Receives a rank's reports. Only rank 0 reports; every rank asks whether to stop, and one yes stops all."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Report an evaluation after ``step`` steps: the workload's metrics, and ``train_loss``.

        ``train_loss`` is the mean over the steps since the last evaluation.
        """
        ...

    def measured(self, peak_bytes: int) -> None:
        """Report the measured peak of one early step: the highest of all ranks."""
        ...

    def timed(self, step_seconds: float, num_steps: int) -> None:
        """Report the median seconds of an optimizer step. ``num_steps`` have been timed so far in this attempt.

        The first steps, evaluations and checkpoints do not count.
        """
        ...

    def communicated(self, share: float) -> None:
        """Report the share of a step (0 to 1) in which the rank that waits least waits for others, in a gang."""
        ...

    def checkpoint(self, step: int) -> None:
        """Report that a checkpoint after ``step`` steps is committed."""
        ...

    def progressed(self, step: int) -> None:
        """Say that training continues, within optimizer step ``step``; called for each batch."""
        ...

    def needed_checkpoints(self) -> Collection[CheckpointName]:
        """Checkpoints that must be kept, because a trial may resume from them.

        They are the newest one that is known to be recorded, and those reported since that may be recorded by now.
        """
        ...

    def should_stop(self) -> bool:
        """Whether training must end after the present step."""
        ...


class NonFiniteLoss(Exception):
    """The training loss became infinite or not a number."""


class PeerLost(Exception):
    """A collective failed because another rank of the gang is gone; that rank's error has the cause."""


def lost_its_peers(error: BaseException) -> bool:
    """Whether the error only says that another rank is gone; the cause is then in that rank's error."""
    return isinstance(error, (PeerLost, dist.DistError))


def train(
    job: TrainingJob, rank: int, world_size: int, rendezvous: Store | None, reporter: Reporter
) -> Literal["done", "stopped"]:
    """Train until ``job.last_step`` ("done"), or until a rank's reporter says to stop ("stopped").

    Raises ``budget.OutOfMemory``, ``NonFiniteLoss``, ``PeerLost``, ``WorkloadError``, ``StorageFault``, or any error of
    the workload.
    """
    if world_size != job.plan.world_size:
        raise ValueError(f"the plan ({job.plan}) needs {job.plan.world_size} ranks, got {world_size}")
    torch.set_num_threads(1)
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        seed_everything(DATA_SEED)  # for what the user's modules and the constructor draw
        workload = load_workload(job.candidate.workload, job.code_dir)(job.candidate.params)
        kept = trial_folder(job.checkpoint_root, job.trial_id) / ARTIFACTS
        workload.trial = TrialContext(job.study_id, job.number, job.attempt, rank, world_size, kept)
        expect_data(workload)
        expect_order(workload, job.plan.batch)
        expect_summary(workload, job.plan)
        expect_reduction(workload, job.plan.layout)
        base_batch = scaled_from(workload)  # None: every step counts as one
        job = job.in_optimizer_steps(SampleOrder(workload, job.seed).epoch_length, base_batch or job.plan.batch)
        job = _from_an_intact_checkpoint(job, rank)
        begun, first = _begun(job) if base_batch else (job.begin, 0)
        steps = range(begun, begun + job.last_step - job.begin)  # the most that there may be
        is_evaluated = None if base_batch else job.is_evaluated
        # Workers are forked first, so that they hold none of the gang's connections and nothing of the model.
        with feeding(workload, job.plan, rank, job.seed, steps, is_evaluated, first) as feed:
            with process_group(job.plan, rank, rendezvous, device) as mesh:
                return _train(job, workload, device, mesh, rank, reporter, feed, begun)
    except budget.OutOfMemory as error:
        overrun = error.with_traceback(None)  # the traceback's frames hold memory that the next job needs
        overrun.__cause__ = overrun.__context__ = None
    except RuntimeError as error:
        if "out of bounds for storage of size 0" in str(error) and job.plan.fsdp_mesh:
            raise WorkloadError(FREED) from error
        if world_size > 1 and re.search(_PEER_GONE, str(error)) and not _is_raised_by_others(error):
            raise PeerLost(f"another rank of the gang is gone; look for the cause in its error ({error})") from error
        raise
    finally:
        gc.collect()
        budget.give_back(device)
    raise overrun


def _from_an_intact_checkpoint(job: TrainingJob, rank: int) -> TrainingJob:
    """The job, resuming from an older checkpoint of its trial if the wanted one is damaged."""
    if job.resume is None or job.resume.trial_id != job.trial_id:
        return job
    found, why = newest_intact(job.checkpoint_root, job.resume)
    if why and rank == 0:
        print(f"{why}; training continues from step {found.step}", flush=True)
    return replace(job, resume=found)


_PEER_GONE = r"onnection (closed|reset|refused)|[Bb]roken pipe|Timed out waiting|Application timeout|Socket closed"


def _is_raised_by_others(error: BaseException) -> bool:
    """Whether a ``raise`` of users' code or of another library than torch made the error, and no collective."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    own = (Path(torch.__file__).parent, Path(__file__).parents[1])
    return "raise" in (frame.line or "") and not any(Path(frame.filename).is_relative_to(folder) for folder in own)


def _begun(job: TrainingJob) -> tuple[int, int]:
    """Optimizer steps that were made before, and the position in the order of samples at which step 0 would begin."""
    if job.resume is None or (begun := checkpoint.begun(job.checkpoint_root, job.resume)) is None:
        return job.begin, 0
    num_steps, num_samples = begun
    return num_steps, num_samples - num_steps * job.plan.batch


def _train(
    job: TrainingJob,
    workload: Workload,
    device: torch.device,
    mesh: DeviceMesh | None,
    rank: int,
    reporter: Reporter,
    feed: Feed,
    begun: int,
) -> Literal["done", "stopped"]:
    warm_up(device, mesh)
    feed.open()
    if mesh is not None:
        expect_shared_folder(trial_folder(job.checkpoint_root, job.trial_id))
    if job.code_dir is not None:
        import_early(type(workload))
    baseline = budget.baseline(device)
    model = build_model(workload, job.plan, job.seed, device, mesh, _first_weights(job, workload))
    with budget.enforce(device, baseline, job.budget_bytes) as held:
        optimizer = make_optimizer(workload, model, job.plan.layout, mesh, job.steps)
        if (scaling := updates_of(model).scaling) is not None:
            scaling.scale = job.plan.batch / scaling.base_batch
            if scaling.scale < 1:
                raise WorkloadError(
                    f"AdaScale takes batches of at least base_batch, which is {scaling.base_batch}, and the plan has "
                    f"{job.plan.batch}"
                )
        run = _Run(job, workload, device, mesh, rank, reporter, held, model, optimizer, feed, begun)
        return run.train()


def _first_weights(job: TrainingJob, workload: Workload) -> Callable[[nn.Module], None] | None:
    """The function that fills a new model with other weights than those that it draws; None: there is none."""
    if job.resume is not None:
        return None
    return workload.load_weights if job.donor is None else _inheriting(job, workload, job.donor)


def _inheriting(job: TrainingJob, workload: Workload, donor: Donor) -> Callable[[nn.Module], None]:
    """Fills the candidate's whole model with weights of the donor's, as the workload says."""
    if type(workload).inherit is Workload.inherit:
        raise WorkloadError(
            f"the study lets candidates inherit weights, but {type(workload).__name__} has no method inherit: add one, "
            "or remove the option from the study"
        )

    def fill(model: nn.Module) -> None:
        parent = load_workload(job.candidate.workload, job.code_dir)(donor.params).build_model()
        checkpoint.load_whole(job.checkpoint_root, donor.checkpoint, parent)
        workload.inherit(model, parent, donor.params)

    return fill


@dataclass(slots=True)
class _Run:
    job: TrainingJob
    workload: Workload
    device: torch.device
    mesh: DeviceMesh | None
    rank: int
    reporter: Reporter
    held: budget.EnforcedBudget
    model: nn.Module
    optimizer: torch.optim.Optimizer
    feed: Feed
    begun: int  # optimizer steps that earlier attempts have made
    checkpoint_seconds: float = 0.0  # time that the last checkpoint took
    checkpoint_at: float = -math.inf  # when it was done, by the monotonic clock
    step_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=TIMED_STEPS))
    num_timed: int = 0
    phase_losses: dict[str, list[float]] = field(default_factory=dict)  # since the last report
    present_step: int = 0
    is_waiting_known: bool = False
    waiting: Waiting = field(default_factory=Waiting)
    mean_loss: float = math.nan  # of the steps since the last report but one
    best: tuple[float, int] | None = None  # the best value of a trial that counts by it, and its step

    def train(self) -> Literal["done", "stopped"]:
        job = self.job
        start = self._resume()
        if job.best is not None and job.best[1] <= start // job.each:  # a later one is evaluated again
            self.best = job.best
        expect_agreement(self.model, self.mesh, "before they train")
        measured_step = self.begun + self._measured_step(start)
        losses: list[float] = []
        if job.last_step == 0:
            self._report(0)
        step, done = self.begun, self._done(start)  # optimizer steps, and as how many they count
        self._report_all(start, done)  # where a trial was paused within them
        while done < job.last_step:
            self.present_step = done
            began = time.perf_counter()
            with self.held.during(AttemptPhase.STEP):
                with self.waiting.step() if self._measures_waiting(step, measured_step) else nullcontext():
                    own_loss = self._step(step, done, measured=step == measured_step)
                loss, stop = self._agree(own_loss)  # waits for all ranks
            if step == self.begun:
                expect_agreement(self.model, self.mesh, "after their first step")
            if step > measured_step:  # the steps before it warm up, and the measured one runs under a profiler
                self.step_seconds.append(time.perf_counter() - began)
                self.num_timed += 1
            if not math.isfinite(loss):
                raise NonFiniteLoss(f"the training loss became {loss} at step {done + 1}: lower the learning rate")
            losses.append(loss)
            before, step, done = done, step + 1, self._end_step(done, sum(losses) / len(losses))
            if self._report_all(before, done):
                losses.clear()
            if stop and done < job.last_step:
                return "stopped"
        return "done"

    def _done(self, start: int) -> int:
        """The number of steps that count as done: ``start``, or more where AdaScale counts them."""
        scaling = updates_of(self.model).scaling
        if scaling is None:
            return start
        if not scaling.num_steps:  # new, or from a checkpoint that was written without it
            scaling.progress, scaling.num_steps = float(start), self.begun
            scaling.num_samples = self.begun * self.job.plan.batch
        self.mean_loss = scaling.mean_loss
        return int(scaling.progress + ROUNDING)

    def _measures_waiting(self, step: int, measured_step: int) -> bool:
        return (
            self.mesh is not None
            and self.device.type == "cpu"
            and step > measured_step
            and not self.waiting.is_complete
            and not self.is_waiting_known
        )

    def _report_waiting(self) -> None:
        """Report once how much the ranks wait: as much as the one that waits least, for which all others wait."""
        if self.waiting.shares and not self.is_waiting_known:
            self.is_waiting_known = True
            least = torch.tensor(self.waiting.share, dtype=torch.float64)
            dist.all_reduce(least, op=dist.ReduceOp.MIN)
            if self.rank == 0:
                self.reporter.communicated(float(least))

    def _measured_step(self, start: int) -> int:
        """The number of optimizer steps before the measured one; not 0 if there may be more than one."""
        scaling, most = updates_of(self.model).scaling, self.job.last_step - start - 1
        fewest = math.ceil((most + 1) / scaling.scale) - 1 if scaling is not None else most
        return min(MEASURED_STEP, max(fewest, min(most, 1)))

    def _report_all(self, before: int, done: int) -> bool:
        """Report for all steps that are to be evaluated after ``before`` and up to ``done``; says whether there were.

        They are several where a step counts as more than there are between reports.
        """
        due = [one for one in range(before + 1, min(done, self.job.last_step) + 1) if self.job.is_evaluated(one)]
        for one in due:
            self._report(one, self.mean_loss, keeps=one == due[-1])
        return bool(due)

    def _end_step(self, done: int, loss: float) -> int:
        """The number of steps that count as done after an update, before which ``done`` were.

        ``loss`` is the mean since the last report.
        """
        updates, after, self.mean_loss = updates_of(self.model), done + 1, loss
        if updates.scaling is not None:
            updates.scaling.end_step(self.job.plan.batch, loss)
            after = int(updates.scaling.progress + ROUNDING)
        updates.end_step(min(after, self.job.steps) - min(done, self.job.steps))
        return after

    def _resume(self) -> int:
        """Load the checkpoint to resume from, and return its optimizer step; 0 if there is none to resume from.

        Raises ``StorageFault`` on every rank if one of them does not find it: a trial never silently starts again.
        """
        root, resume = self.job.checkpoint_root, self.job.resume
        if resume is None:
            return 0
        num_blind = int(self._sum(torch.tensor(float(not checkpoint.exists(root, resume)))))
        if num_blind:
            raise StorageFault(
                f"the checkpoint of step {resume.step}, which the study database has recorded, is not in "
                f"{trial_folder(root, resume.trial_id)} on {num_blind} of {self.job.plan.world_size} ranks: mount or "
                "restore this folder on every node"
            )
        if int(self._sum(torch.tensor(resume.step))) != resume.step * self.job.plan.world_size:
            raise StorageFault(
                f"ranks see different checkpoints in {trial_folder(root, resume.trial_id)}: it must be one folder that "
                "all nodes share"
            )
        with self.held.lifted():
            is_own = resume.trial_id == self.job.trial_id  # a copy of another trial has options of its own
            checkpoint.load(root, resume, self.model, self.optimizer, with_options=is_own, is_checked=is_own)
        if not is_own:
            updates_of(self.model).skip(self.job.begin)
        return resume.step * self.job.each

    def _step(self, step: int, done: int, measured: bool) -> Tensor:
        updates_of(self.model).step = step
        self.workload.on_step(done, self.job.steps, self.optimizer)
        if not measured:
            with self.held.settling():
                return self._train_step(self._batches(step))
        loss = torch.zeros(())

        def run() -> None:
            nonlocal loss
            loss = self._train_step(batches)

        with self.held.uncounted():  # the profiler's records are not the candidate's memory
            # Torch counts batches that workers send, which lie on the host, unless they come and go out of its sight.
            batches = self._batches(step, ahead=self.feed.is_shared)
            own_peak = measure_peak(self.device, self.model, self.optimizer, run)
        limit = self.job.budget_bytes
        if limit is not None and own_peak > limit:
            raise self.held.overrun(0, own_peak)
        peak = self._max(own_peak)
        if self.rank == 0:
            self.reporter.measured(peak)
        return loss

    def _train_step(self, batches: Iterable[Batch]) -> Tensor:
        return train_step(self.workload, self.model, self.optimizer, batches, self.job.plan.num_micro_batches)

    def _batches(self, step: int, *, ahead: bool = False) -> Iterable[Batch]:
        """This rank's micro-batches of a step, on its device; ``ahead``: all of them are read now."""
        if updates_of(self.model).phases:
            return Repeated(self.feed, step, self._ready, ahead=ahead)
        read = self.feed.step(step)
        return map(self._ready, list(read) if ahead else read)

    def _ready(self, batch: Batch) -> Batch:
        """This rank's part of a batch, on its device."""
        self.reporter.progressed(self.present_step)
        part = rank_part(self.model, batch, self.job.plan, self.rank)
        return to_device(part, self.device, copy=self.feed.is_shared)

    def _held_out(self, given: tuple[Batch, Tensor]) -> tuple[Batch, Tensor]:
        """This rank's part of a batch, on its device, and which of its samples count."""
        batch, counted = given
        return self._ready(batch), counted

    def _agree(self, loss: Tensor) -> tuple[float, bool]:
        """The mean loss over the batch, and whether any rank must stop; equal on all ranks, or some would hang."""
        plan, phases = self.job.plan, updates_of(self.model).losses
        mine = torch.tensor([float(self.reporter.should_stop()), float(loss), *map(float, phases.values())])
        stops, *totals = self._sum(mine.double()).tolist()
        share = plan.pp / plan.world_size  # in a pipeline only the last stage has a loss
        for name, total in zip(phases, totals[1:], strict=True):
            self.phase_losses.setdefault(name, []).append(total * share)
        return totals[0] * share, stops > 0

    def _report(self, step: int, train_loss: float | None = None, *, keeps: bool = True) -> None:
        """Evaluate and report, and write a checkpoint if it is time; there is none without a step to keep."""
        collected = Collected(self.workload) if has_summary(self.workload) else None
        with self.held.during(AttemptPhase.EVALUATION):
            with self.held.settling():
                values = self._evaluate(collected)
            if collected is not None:
                values |= self._summary(collected)
        if train_loss is not None:
            values["train_loss"] = train_loss
        values |= {f"{name}_loss": sum(losses) / len(losses) for name, losses in self.phase_losses.items()}
        self.phase_losses.clear()
        missing = next((metric for metric in self.job.metrics if metric not in values), None)
        if missing is not None:
            raise WorkloadError(
                f"the workload reports {', '.join(values)}, but the objective is {missing!r}: set the study's "
                "objective to one of these, or return that metric from evaluate"
            )
        updates_of(self.model).after_evaluation(self.workload, values)
        is_best = self._is_best(step, values)
        self._report_waiting()
        if self.rank == 0:
            if self.step_seconds:
                self.reporter.timed(median(self.step_seconds), self.num_timed)
            self.reporter.metrics(step // self.job.each, values)
        if keeps and step and (is_best or step == self.job.last_step or self._checkpoint_is_due()):
            self._checkpoint(step)

    def _is_best(self, step: int, values: Mapping[str, float]) -> bool:
        """Whether this is the best evaluation of the trial, if that one counts. Rank 0 decides for all ranks."""
        if not self.job.best_of:
            return False
        value = values[self.job.metrics[0]]
        before = self.best[0] if self.best else math.nan
        is_better = value > before if self.job.best_of == "maximize" else value < before
        is_best = math.isfinite(value) and (self.best is None or is_better)
        if is_best := bool(self._sum(torch.tensor(float(is_best and self.rank == 0)))):
            self.best = value, step // self.job.each
        return is_best

    def _checkpoint_is_due(self) -> bool:
        """Whether to write a checkpoint: at the first evaluation, then if it takes only a small share of the time.

        Rank 0's clock decides for all ranks.
        """
        passed = time.monotonic() - self.checkpoint_at
        due = self.rank == 0 and self.checkpoint_seconds <= passed * CHECKPOINT_SHARE
        return bool(self._sum(torch.tensor(float(due))))

    def _checkpoint(self, step: int) -> None:
        began = time.monotonic()
        with self.held.during(AttemptPhase.CHECKPOINT), self.held.uncounted():
            needed, name = (
                {*self.reporter.needed_checkpoints()},
                CheckpointName(self.job.trial_id, step // self.job.each),
            )
            if self.best is not None:
                needed.add(CheckpointName(self.job.trial_id, self.best[1]))
            checkpoint.save(self.job.checkpoint_root, name, self.model, self.optimizer, needed)
        self.checkpoint_at = time.monotonic()
        self.checkpoint_seconds = self.checkpoint_at - began
        if self.rank == 0:
            self.reporter.checkpoint(step // self.job.each)

    def _evaluate(self, collected: Collected | None) -> dict[str, float]:
        """Metrics averaged over all held-out samples. Padding gives every rank the same number of forward passes."""
        num, plan = self.workload.num_eval, self.job.plan
        batches = map(self._held_out, self.feed.evaluation())
        sums = evaluate(self.workload, self.model, batches, collected.add if collected else None)
        names = self._names(sums)
        same = plan.world_size // (plan.num_shares * plan.pp)  # ranks that report the same samples
        totals = self._sum(sums.of(names))
        return {name: float(total) / (same * num) for name, total in zip(names, totals, strict=True)}

    def _summary(self, collected: Collected) -> dict[str, float]:
        """Metrics of the whole held-out set: rank 0 computes them, outside of its budget, and sends them to all."""
        with self.held.uncounted():
            outputs = collected.gathered(self.job.plan, self.rank)
            found = [summary(self.workload, outputs, self.job.seed) if self.rank == 0 else {}]
            if self.mesh is not None:
                dist.broadcast_object_list(found, src=0)
        return found[0]

    def _names(self, sums: Sums) -> list[str]:
        """The names of the metrics. Raises ``WorkloadError`` if ranks have different ones."""
        listed: list[list[str]] = [sums.names]
        if self.mesh is not None:
            listed = [[] for _ in range(self.job.plan.world_size)]
            dist.all_gather_object(listed, sums.names)
        return common_names(listed, may_be_none=has_summary(self.workload))

    def _sum(self, mine: Tensor) -> Tensor:
        if self.mesh is not None:
            dist.all_reduce(mine)
        return mine

    def _max(self, mine: int) -> int:
        if self.mesh is None:
            return mine
        highest = torch.tensor(mine)
        dist.all_reduce(highest, op=dist.ReduceOp.MAX)
        return int(highest)
