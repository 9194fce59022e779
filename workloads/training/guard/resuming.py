"""Records what the steps after a checkpoint came to; whoever resumes from it takes these steps and compares.

A training may keep something that its checkpoints do not hold: the rest of a Python generator, an object of another
library. No list of such code is complete, so it is measured, on the training itself. A checkpoint
counts, and is reported, once the step after it is recorded; an attempt that ends at one takes that step only to record
it.

Under the same plan the loss, the options of the optimizer and the changes of all tensors of the model must be equal.
Under a plan that divides a batch otherwise only the loss is compared, and nothing where it may depend on the division.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from estimators.model import Plan
from scamp.workload.seeds import drawn_from, kept_generators, seed_everything
from workloads.parallel.forward_state.snapshot import has_fractions
from workloads.refusals import in_enough_digits
from workloads.training.attempt.rank import TrainingRank
from workloads.training.checkpoints import outbox
from workloads.training.checkpoints.folders import explained, read_json, replace_json
from workloads.training.checkpoints.name import CheckpointName
from workloads.training.guard.division import is_left_out
from workloads.training.guard.pace import Pace
from workloads.training.guard.sketch import sketches
from workloads.training.guard.tolerance import COARSE, tolerance_of

RECORD = "next.json"
_RECORDED = (1, 2, 4)
"""Steps after a checkpoint that are recorded: state that the first one does not use may show in a later one."""
_SAME_OPTION = 1e-6
"""Relative difference of an option that counts as rounding."""


class ResumesDifferently(Exception):
    """The step after a checkpoint is another one than it was when the checkpoint was written; the message says how."""


@dataclass(frozen=True, slots=True)
class Came:
    """Results of a step: its loss, the numbers among the options of each group, and a sketch of all changes.

    There is no ``change`` where it was not computed.
    """

    loss: float
    options: list[dict[str, float]]
    change: list[float]


@dataclass(slots=True)
class Record:
    """The steps after a checkpoint, by how many they are after it, and how and where they were taken.

    ``left_out`` are attributes that the checkpoint does not hold, and their types. ``draws``: the passes draw random
    numbers, which are others under another plan.
    """

    plan: dict[str, Any]
    steps: int
    place: str
    left_out: dict[str, str]
    draws: bool = False
    came: dict[str, Came] = field(default_factory=dict)


@dataclass(slots=True)
class _Awaited:
    """A checkpoint whose next steps are recorded; it was written after ``num_steps`` steps of this attempt.

    Others are ``needed`` as well.
    """

    name: CheckpointName
    needed: Collection[CheckpointName]
    num_steps: int
    record: Record


class ResumeGuard:
    """Records the steps after the checkpoints of one rank, and compares those after a resume; all ranks call it."""

    def __init__(self, rank: TrainingRank, pace: Pace) -> None:
        self._rank, self._pace = rank, pace
        self._awaited: list[_Awaited] = []
        self._before: Record | None = None
        """The record of the checkpoint that was resumed from, while steps are compared with it."""
        self._num_steps = 0  # of this attempt
        self._wants_change = False
        self._sketch: Tensor | None = None  # before the present step, if its changes are wanted
        self._sketch_seconds: float | None = None

    def resume(self) -> None:
        """Compare the next steps with those that were recorded after the checkpoint to resume from, if any were."""
        job, listed = self._rank.job, list[Record | None]([None])
        resume = job.resume
        if not job.guard or resume is None or resume.trial_id != job.trial_id:  # a copy has parameters of its own
            return
        if self._rank.is_first:
            listed = [_read(self._rank, resume)]
        if self._rank.mesh is not None:
            dist.broadcast_object_list(listed, src=0)
        self._before = listed[0] if listed[0] and listed[0].steps == job.steps else None
        self._wants_change = self._before is not None

    def begin(self, name: CheckpointName, left_out: Mapping[str, str], needed: Collection[CheckpointName]) -> None:
        """Record the next steps: the checkpoint ``name`` was written, which counts from then on; others are ``needed``.

        It counts at once where nobody compares, or where training has ended.
        """
        rank, job = self._rank, self._rank.job
        if not job.guard or name.step * job.unit_steps >= job.steps:
            self._report(name, needed)
            return
        record = Record(job.plan.to_json(), job.steps, _place(rank.device), dict(left_out))
        self._awaited.append(_Awaited(name, needed, self._num_steps, record))
        is_end = name.step * job.unit_steps >= job.last_step
        seconds = 2 * self._sketch_seconds if self._sketch_seconds is not None and not is_end else 0.0
        self._wants_change = rank.any(rank.is_first and (not seconds or self._pace.may_take(seconds, time.monotonic())))

    @property
    def awaits_next(self) -> bool:
        """Whether the newest checkpoint does not count yet, as the step after it is not recorded."""
        return any(not awaited.record.came for awaited in self._awaited)

    def begin_step(self) -> None:
        """Note the tensors of the model before a step, if their changes are wanted."""
        self._sketch = self._sketched() if self._wants_change else None

    def end_step(self, step: int, loss: float) -> None:
        """Compare and record optimizer step ``step``. Raises ``ResumesDifferently`` on every rank."""
        self._num_steps += 1
        if self._before is None and not self._awaited:
            return
        change = (self._sketched() - self._sketch).tolist() if self._sketch is not None else []
        self._sketch, self._wants_change = None, False
        came = Came(loss, _options(self._rank.optimizer), change)
        self._compare(step, came)
        self._record(step, came)

    def _compare(self, step: int, came: Came) -> None:
        before = self._before
        if before is None:
            return
        rank, was = self._rank, before.came.get(str(self._num_steps))
        if was is not None:
            kind = _comparable(rank, before)
            words = self._difference(before, was, came, kind == "same") if kind and rank.is_first else ""
            if words := rank.first(words):
                raise ResumesDifferently(f"{words.format(step + 1)}: {_advice(before.left_out)}")
        if self._num_steps >= _RECORDED[-1]:
            self._before = None

    def _difference(self, before: Record, was: Came, came: Came, is_same: bool) -> str:
        """Words for a difference, with a place for the number of the step; empty if there is none."""
        tolerance = tolerance_of(self._rank) if before.place == _place(self._rank.device) else COARSE
        if math.isfinite(was.loss) != math.isfinite(came.loss) or tolerance.is_other_loss(was.loss, came.loss):
            then, now = in_enough_digits(was.loss, came.loss)
            return f"the loss of step {{}} is {now}, and was {then} before the trial was interrupted"
        if not is_same:
            return ""
        for number, (then_options, now_options) in enumerate(zip(was.options, came.options, strict=False)):
            for name, value in then_options.items():
                if not math.isclose(value, now_options.get(name, math.nan), rel_tol=_SAME_OPTION):
                    of_group = f" of group {number}" if len(came.options) > 1 else ""
                    now_words = now_options.get(name, "missing")
                    return f"{name}{of_group} is {now_words} in step {{}}, and was {value} before the interruption"
        if len(was.options) != len(came.options):
            now_groups, then_groups = len(came.options), len(was.options)
            return f"the optimizer has {now_groups} groups in step {{}}, and had {then_groups} before the interruption"
        if not (was.change and came.change):
            return ""
        then_change, now_change = torch.tensor(was.change), torch.tensor(came.change)
        difference = float((now_change - then_change).norm())
        size = max(float(then_change.norm()), float(now_change.norm()))
        allowed = tolerance.gradient if self._rank.device.type == "cpu" else COARSE.gradient
        if not difference > allowed * size:
            return ""
        percent = f"{100 * difference / size:.2g}"
        return f"step {{}} changes the model otherwise, by {percent} %, than before the trial was interrupted"

    def _record(self, step: int, came: Came) -> None:
        for awaited in list(self._awaited):
            after = self._num_steps - awaited.num_steps
            is_first = not awaited.record.came
            if after in _RECORDED:
                awaited.record.came[str(after)] = came
                awaited.record.draws = self._rank.any(self._draws(step)) if is_first else awaited.record.draws
                self._write(awaited)
                if is_first:
                    self._report(awaited.name, awaited.needed)
            if after >= _RECORDED[-1]:
                self._awaited.remove(awaited)

    def _draws(self, step: int) -> bool:
        """Whether anybody drew random numbers in the passes of the step that has just been made."""
        rank = self._rank
        now = drawn_from(rank.workload)
        with kept_generators(rank.workload):
            seed_everything((rank.job.seed, step, rank.job.plan.data_rank(rank.number)), rank.workload)
            return drawn_from(rank.workload) != now

    def _write(self, awaited: _Awaited) -> None:
        folder = awaited.name.folder(self._rank.job.checkpoint_root)
        if self._rank.is_first and folder.is_dir():  # it may be outdated by now
            with explained(f"the steps after the checkpoint {folder.name} cannot be written to {folder}"):
                replace_json(folder / RECORD, asdict(awaited.record))

    def _report(self, name: CheckpointName, needed: Collection[CheckpointName]) -> None:
        if self._rank.is_first:
            if self._rank.job.is_mirrored:
                with explained(f"the checkpoint of step {name.step} cannot be handed to the mirror"):
                    outbox.push(self._rank.job.checkpoint_root, name, needed, ends=True)
            self._rank.reporter.checkpoint(name.step)

    def _sketched(self) -> Tensor:
        """One sketch of all parameters and buffers, over all ranks; those that several ranks hold count several
        times."""
        model, began = self._rank.model, time.monotonic()
        with self._rank.budget.uncounted():
            tensors = [*model.parameters(), *(buffer for buffer in model.buffers() if has_fractions(buffer))]
            signs = torch.randint(2, (len(tensors), 1), generator=torch.Generator().manual_seed(1)) * 2.0 - 1.0
            sketch = self._rank.sum((sketches(tensors) * signs).sum(0))
        self._sketch_seconds = time.monotonic() - began
        self._pace.take(self._sketch_seconds)
        return sketch


def _read(rank: TrainingRank, name: CheckpointName) -> Record | None:
    """The record of a checkpoint; None if it has none, as those of older versions and of trainings without guard."""
    try:
        values = read_json(name.folder(rank.job.checkpoint_root), RECORD)
        came = {after: Came(**fields) for after, fields in values.pop("came").items()}
        Plan.from_json(values["plan"])
        return Record(**values, came=came)
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):  # none, or a damaged one
        return None


def _comparable(rank: TrainingRank, before: Record) -> str:
    """How the steps of a record compare with this training's: as the ``same``, by their ``loss`` alone, or not."""
    plan, then = (replace(each, evaluation_batch=0) for each in (rank.job.plan, Plan.from_json(before.plan)))
    if plan == then:
        return "same"
    depends = before.draws or rank.workload.accepts_parts or any(map(is_left_out, rank.model.modules()))
    return "" if depends or plan.batch != then.batch or rank.device.type != "cpu" else "loss"


def _options(optimizer: torch.optim.Optimizer) -> list[dict[str, float]]:
    """The numbers among the options of each group."""
    return [
        {name: float(value) for name, value in group.items() if type(value) in (int, float)}
        for group in optimizer.param_groups
    ]


def _place(device: torch.device) -> str:
    """The kind of device, on another of which sums are rounded otherwise."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def _advice(left_out: Mapping[str, str]) -> str:
    names = ", ".join(f"{name} ({kind})" for name, kind in left_out.items())
    such = f", such as {names}" if names else ""
    return (
        f"something that the training keeps is not in its checkpoints{such}. Keep it in attributes of the workload, as "
        "numbers, tensors, lists or dictionaries, or give the workload state_dict and load_state_dict; what Python "
        "generators hold is lost"
    )
