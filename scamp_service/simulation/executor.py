"""Runs gangs in virtual time, where a live service has Ray: ranks train as long as was predicted, and nothing fails.

It implements the ``Executor`` of ``control.executor``, and reports to the store what ranks and their sink would report.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from placement.model import NONE_READY, Cluster, Ready
from placement.simulation.progress import Progress
from scamp_service.control.decide.rules.growth import counted_by
from scamp_service.control.executor import SPARE_SECONDS, GangState, GangStatus, Order
from scamp_service.lifecycle import Outcome
from scamp_service.model import Metric, Report
from scamp_service.simulation.outcome import Span
from scamp_service.simulation.overheads import VirtualRanks
from scamp_service.store.parts.reports import Reports
from workloads.batch import BatchRequest

MetricsAt = Callable[[Order, int], Mapping[str, float]]
"""The metrics that the ranks of an order report at a step."""


@dataclass(slots=True)
class _Gang:
    order: Order
    first: int  # step from which it trains
    until: int  # step to which it trains; one more than ``first`` for an evaluation alone
    step_seconds: float  # alone on its devices, of a step as the study counts them
    launched: float
    starts: float  # when its ranks begin to train
    gain: float  # steps that one optimizer step counts as
    next_step: int  # of the next report, or with which it ends
    starting_seconds: float = 0.0  # that it loses to starts of ranks, alone on its devices
    trains: bool = False
    keeps: bool = False  # it ends with a checkpoint at its next step
    seq: int = 0

    def left_at(self, step: int) -> float:
        """Seconds alone that are left once it has made ``step`` steps."""
        return (self.until - step) * self.step_seconds


@dataclass(frozen=True, slots=True)
class Trainings:
    """How simulated trials train.

    ``seconds_of`` returns the seconds of a step of an order, ``values`` what its trial reports, and
    ``communication_of`` the share of its steps in which ranks communicate (None: it is not known). A gang trains
    ``start_seconds`` after its launch, whatever else is on its devices. On virtual devices a rank that must start
    first takes ``rank_seconds`` of a core. ``noise_scale`` is that of all gradients, in samples, where AdaScale
    estimates it; None: it is not known.
    """

    seconds_of: Callable[[Order], float]
    values: MetricsAt
    communication_of: Callable[[Order], float | None]
    start_seconds: float
    noise_scale: float | None = None
    rank_seconds: float = 0.0


class VirtualExecutor:
    """Gangs on ``cluster``, from ``launch`` to their end. Trials report each ``report_every`` steps, and keep a
    checkpoint."""

    def __init__(self, reports: Reports, cluster: Cluster, progress: Progress, trainings: Trainings) -> None:
        self._reports, self._cluster, self._trainings = reports, cluster, trainings
        self._progress = progress
        self._ranks = VirtualRanks(cluster, SPARE_SECONDS)
        self._gangs: dict[str, _Gang] = {}
        self.spans: list[Span] = []
        self.num_launches = 0

    # --- Executor ---------------------------------------------------------------------------------------------------

    def cluster(self) -> Cluster:
        """The devices; none ever leaves or joins."""
        return self._cluster

    def gangs(self) -> Mapping[str, GangStatus]:
        """Every attempt that runs."""
        return {key: GangStatus(GangState.ALIVE) for key in self._gangs}

    def silent(self) -> frozenset[str]:
        """No devices: every process answers."""
        return frozenset()

    def put_off(self) -> frozenset[str]:
        """No attempts: all start at once."""
        return frozenset()

    def closed(self) -> Mapping[str, str]:
        """No devices."""
        return {}

    def leaving(self) -> Mapping[str, str]:
        """No devices."""
        return {}

    def ready(self) -> Ready:
        """None are known. Devices are exchanged only for equal ones, so the makespan hardly depends on them."""
        return NONE_READY

    def launch(self, order: Order) -> None:
        """Start the attempt."""
        if order.key in self._gangs:
            return
        first = order.resume.step if order.resume else 0
        until = max(first + 1, order.until or order.steps)
        now, every = self._progress.now, order.report_every
        next_step = min(until, (first // every + 1) * every)
        gain = counted_by(order.candidate.params, order.plan, self._trainings.noise_scale)
        seconds = self._trainings.seconds_of(order) / gain
        num_cold = self._ranks.take(order.devices, now)
        self._gangs[order.key] = _Gang(
            order=order,
            first=first,
            until=until,
            step_seconds=seconds,
            launched=now,
            starts=now + self._trainings.start_seconds,
            gain=gain,
            next_step=next_step,
            starting_seconds=self._trainings.rank_seconds * num_cold / len(order.devices),
        )
        self.num_launches += 1

    def stop(self, key: str, *, keep: bool = False) -> None:
        """End the attempt, at once or with a checkpoint after its present step. There is none within an epoch."""
        gang = self._gangs.get(key)
        if gang is None or gang.keeps:
            return
        if not keep or not gang.trains or gang.order.in_epochs:
            self._end(key, "stopped")
            return
        done = gang.until - self._progress.left(key) / gang.step_seconds
        gang.keeps, gang.next_step = True, min(gang.next_step, max(gang.first, math.floor(done)) + 1)

    # --- virtual time -----------------------------------------------------------------------------------------------

    @property
    def next_event(self) -> float:
        """When the next rank begins to train or has something to report; infinite if none runs."""
        return min((self._due(gang) for gang in self._gangs.values()), default=math.inf)

    def advance(self, now: float) -> None:
        """Move time on to ``now``, and report all that is due."""
        self._progress.now = now
        for key, gang in list(self._gangs.items()):
            while key in self._gangs and self._due(gang) <= now * (1 + 1e-12):
                self._report(gang, now) if gang.trains else self._train(gang, now)

    def _due(self, gang: _Gang) -> float:
        if not gang.trains:
            return gang.starts
        return self._progress.now + self._progress.seconds_until(gang.order.key, gang.left_at(gang.next_step))

    def _train(self, gang: _Gang, now: float) -> None:
        order = gang.order
        self._progress.start(order.key, order.devices, gang.left_at(gang.first) + gang.starting_seconds)
        self._reports.start(order.trial_id, order.attempt, order.token, now=now)
        gang.trains = True

    def _report(self, gang: _Gang, now: float) -> None:
        order, step = gang.order, gang.next_step
        attempt_key = order.trial_id, order.attempt, order.token
        reported, metrics = min(step, order.steps), []
        if step == gang.until or step % order.report_every == 0:
            gang.seq += 1
            values = self._trainings.values(order, reported)
            metrics.append(Metric(order.trial_id, order.attempt, gang.seq, reported, values, now))
        self._reports.add(
            Report(
                *attempt_key,
                metrics=metrics,
                objectives=order.objectives,
                checkpoint_step=reported,
                step_seconds=(now - gang.starts) / (step - gang.first) * gang.gain,
                timed_steps=step - gang.first,
                best_of=order.best_of,
                noise_scale=self._trainings.noise_scale if BatchRequest.of(order.candidate.params).scales else None,
            ),
            now=now,
        )
        if step < gang.until and not gang.keeps:
            gang.next_step = min(gang.until, step + order.report_every)
            return
        is_done = step == gang.until
        self._reports.end(*attempt_key, Outcome.DONE if is_done else Outcome.STOPPED, "", now=now)
        self._end(order.key, "done" if is_done else "stopped")

    def _end(self, key: str, ending: str) -> None:
        gang = self._gangs.pop(key)
        self._ranks.give_back(gang.order.devices, self._progress.now)
        if gang.trains:
            self._progress.stop(key)
        self.spans.append(_span(gang, self._progress.now, ending, self._trainings.communication_of(gang.order)))


def _span(gang: _Gang, now: float, ending: str, communication_share: float | None) -> Span:
    order = gang.order
    return Span(
        study=order.study_id,
        trial=order.number,
        attempt=order.attempt,
        devices=tuple(order.devices),
        mib_per_rank=order.mib_per_rank,
        start=gang.launched,
        end=now,
        plan=str(order.plan),
        ending=ending,
        communication_share=communication_share,
    )


def slow_down_of_slowest(cluster: Cluster, order: Order, slow: Mapping[str, float]) -> float:
    """How many times as long the slowest rank of an order takes as one with the largest share on the fastest kind.

    ``slow`` are factors by kind.
    """
    kinds, plan = {device.id: device.kind for device in cluster.devices}, order.plan
    factors = (slow[kinds[device]] * plan.samples_of_rank(rank) for rank, device in enumerate(order.devices))
    return max(factors) / plan.micro_batch
