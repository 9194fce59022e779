"""Replays studies in virtual time: the controller, decisions, sizer and samplers are those of a service.

Only the executor differs, which runs gangs in virtual time. Virtual time stands still until traces and samplers have
answered, and traces take as much of it as the user says. So a simulation depends on its seed alone, and ends as fast as
candidates are traced.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from estimators.devices.kind import DeviceKind
from placement.model import Cluster, Queued
from placement.packing.packer import pack
from placement.packing.policies import policy_named
from placement.packing.projects import Project
from placement.simulation.progress import Progress, domains_of
from scamp_service.control.controller import Controller, TimeAndTokens
from scamp_service.control.decide.rules.gangs import ledger_of
from scamp_service.control.decide.snapshot import Packing
from scamp_service.control.executor import Demand, Order, Unsized
from scamp_service.errors import InvalidInput
from scamp_service.lifecycle import LIVE_STUDIES, TrialState
from scamp_service.model import Sized
from scamp_service.search.running.threads import ThreadProposer
from scamp_service.simulation.executor import Trainings, VirtualExecutor, slow_down_of_slowest
from scamp_service.simulation.outcome import PLAN, VERDICT, Simulated
from scamp_service.simulation.overheads import VirtualTraces
from scamp_service.simulation.values import drawn_values
from scamp_service.sizing.cluster_file import NamedCluster
from scamp_service.sizing.sizer import ProcessSizer
from scamp_service.store.store import Store
from scamp_service.study.objectives import Objectives
from scamp_service.study.spec import StudySpec
from scamp_service.study.stopping import NeverOptions

PATIENCE_SECONDS = 2 * 3600.0
"""Virtual seconds after which a study in which nothing runs counts as stuck; it may wait an hour for lost devices."""
IDLE_SECONDS = 5.0
WAITS = {TrialState.PAUSED: VERDICT, TrialState.WAITING: PLAN}


@dataclass(frozen=True, slots=True)
class Submitted:
    """A study, and the zip of its files; None for a built-in workload."""

    spec: StudySpec
    code: bytes | None = None


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How to simulate. ``cache_dir`` keeps traces for the next time.

    Without ``early_stopping`` every trial trains to its end. ``epoch_steps`` are the optimizer steps of an epoch, for
    studies that count in epochs. A gang trains ``start_seconds`` after its launch; on virtual devices a rank that must
    start first takes ``rank_seconds`` of a core. A candidate is traced for ``trace_seconds``, on virtual devices on one
    of their cores. ``projects`` have weights and quotas. ``policy`` is the name of the policy that packs trials onto
    devices. ``measured`` has seconds of a step of a gang alone on its devices, by the number of its trial and its plan
    in words; all other steps take as long as is predicted. ``noise_scale`` is that of all gradients, in samples, where
    AdaScale estimates it; None: no batch grows. Gangs that share a GPU are together ``sharing_gain`` times as fast as
    one alone.
    """

    cache_dir: Path
    seed: int = 0
    early_stopping: bool = True
    epoch_steps: int | None = None
    start_seconds: float = 1.0
    max_gangs_per_device: int = 4
    projects: Mapping[str, Project] = field(default_factory=dict)
    policy: str = "pack"
    measured: Mapping[tuple[int, str], float] = field(default_factory=dict)
    noise_scale: float | None = None
    rank_seconds: float = 0.0
    trace_seconds: float = 0.0
    sharing_gain: float = 1.0


def simulate(studies: Sequence[Submitted], named_cluster: NamedCluster, options: ReplayOptions) -> Simulated:
    """Replay the studies on a cluster, to their ends. Raises ``InvalidInput`` for a study that cannot be simulated."""
    with _replay(studies, named_cluster, options) as replay:
        return replay.run()


@contextmanager
def _replay(studies: Sequence[Submitted], named_cluster: NamedCluster, options: ReplayOptions) -> Iterator[_Replay]:
    with ExitStack() as stack:
        store = Store("sqlite://")
        stack.callback(store.close)
        news = threading.Event()
        kind, kinds = named_cluster.fastest, named_cluster.kinds
        cores = kind.cores.value if kind.cores is not None else math.inf
        progress = Progress(domains_of(named_cluster.cluster, cores, sharing_gain=options.sharing_gain))
        traces = VirtualTraces(progress, named_cluster.cluster, options.trace_seconds)
        processes = ProcessSizer(
            store.blobs, options.cache_dir, kind_of=lambda _: kind, kinds_of=lambda _: kinds, has_news=news.set
        )
        sizer = _Sizer(processes, traces)
        stack.callback(sizer.close)
        proposer = ThreadProposer(code_of=lambda study_id: _code_of(store, study_id), has_news=news.set)
        stack.callback(proposer.close)
        yield _Replay(studies, named_cluster, options, store, sizer, proposer, news, progress)


class _Sizer:
    """Passes requests on to a sizer, and keeps its answers back until they are due in virtual time.

    It remembers what is under way and how much of each plan is communication.
    """

    def __init__(self, sizer: ProcessSizer, traces: VirtualTraces) -> None:
        self._sizer, self.traces = sizer, traces
        self._pending: set[int] = set()
        self.num_requests = 0
        self.communication: dict[tuple[int, str], float | None] = {}

    def request(self, trial_id: int, demand: Demand, cluster: Cluster) -> None:
        if trial_id not in self._pending and trial_id not in self._sizer.results():
            self.num_requests += 1
            self.traces.begin(trial_id)
        self._pending.add(trial_id)
        self._sizer.request(trial_id, demand, cluster)

    def results(self) -> Mapping[int, Sized | Unsized]:
        results = self._sizer.results()
        for trial_id, sized in results.items():
            if trial_id in self._pending and isinstance(sized, Sized):
                for option in sized.options:
                    self.communication[trial_id, str(option.plan)] = option.communication_share
                for choice in sized.choices:
                    self.communication[trial_id, str(choice.plan)] = choice.communication_share
        self._pending -= results.keys()
        return {trial_id: sized for trial_id, sized in results.items() if trial_id not in self.traces}

    def forget(self, trial_ids: Sequence[int]) -> None:
        self._pending.difference_update(trial_ids)
        self.traces.forget(trial_ids)
        self._sizer.forget(trial_ids)

    def held_up(self) -> Mapping[int, Sequence[int]]:
        return {}

    def close(self) -> None:
        self._sizer.close()

    @property
    def is_busy(self) -> bool:
        """Whether a candidate is still being traced."""
        self.results()
        return bool(self._pending)


@dataclass
class _Replay:
    studies: Sequence[Submitted]
    named_cluster: NamedCluster
    options: ReplayOptions
    store: Store
    sizer: _Sizer
    proposer: ThreadProposer
    news: threading.Event
    progress: Progress
    now: float = 0.0
    waited: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.objectives: dict[int, Objectives] = {}
        fastest = self.named_cluster.fastest
        self.slow = {name: _slow_down(kind, fastest) for name, kind in self.named_cluster.kinds.items()}
        self.executor = VirtualExecutor(
            self.store.reports,
            self.named_cluster.cluster,
            self.progress,
            Trainings(
                self.step_seconds,
                self.values,
                lambda order: self.sizer.communication.get((order.trial_id, str(order.plan))),
                self.options.start_seconds,
                self.options.noise_scale,
                self.options.rank_seconds,
            ),
        )
        self.tokens = 0
        self.policy = policy_named(self.options.policy)
        self.controller = Controller(
            self.store,
            self.executor,
            self.sizer,
            self.proposer,
            packing=Packing(self.policy, self.options.max_gangs_per_device, self.options.projects),
            time_and_tokens=TimeAndTokens(lambda: self.now, lambda: self.now, self.new_token),
        )

    def new_token(self) -> str:
        self.tokens += 1
        return f"token-{self.tokens}"

    # --- the loop ---------------------------------------------------------------------------------------------------

    def run(self) -> Simulated:
        idle_since: float | None = None
        self.submit()
        while True:
            self.settle()
            if self.has_ended:
                return self.result("")
            soonest = min(self.executor.next_event, self.sizer.traces.next_end)
            idle_since = None if soonest < math.inf else self.now if idle_since is None else idle_since
            if idle_since is not None and self.now - idle_since > PATIENCE_SECONDS:
                return self.result(f"nothing has run for {PATIENCE_SECONDS:.0f} s")
            until = soonest if idle_since is None else self.now + IDLE_SECONDS
            self.note_waits(until - self.now)
            self.now = until
            self.executor.advance(self.now)
            self.sizer.traces.advance(self.now)

    def submit(self) -> None:
        for submitted in self.studies:
            spec = simulated_spec(submitted.spec, early_stopping=self.options.early_stopping)
            if spec.budget.epochs is not None and self.options.epoch_steps is None:
                raise InvalidInput(f"{spec.name} counts in epochs: say how many steps one has (--epoch-steps)")
            code = self.store.blobs.put(submitted.code) if submitted.code else None
            study = self.store.studies.create(spec.to_json(), code=code, now=self.now)
            self.objectives[study.id] = spec.every_objective

    def settle(self) -> None:
        """Let the controller decide until nothing follows any more, and wait for traces and samplers meanwhile."""
        while True:
            before = self.sizer.num_requests, self.executor.num_launches
            self.controller.tick()
            was_asked = self.wait() or (self.sizer.num_requests, self.executor.num_launches) != before
            if not was_asked and not self.controller.has_changed:
                return

    def wait(self) -> bool:
        """Wait until nothing is under way; returns whether anything was, or whether a sampler has answered."""
        was_busy = False
        while True:
            self.news.clear()
            requests = self.proposer.requests().values()
            if not self.sizer.is_busy and all(request.answer is not None for request in requests):
                return was_busy or bool(requests)
            was_busy = True
            self.news.wait(0.2)

    @property
    def has_ended(self) -> bool:
        return not self.store.attempts.open() and not any(
            study.state in LIVE_STUDIES for study in self.store.studies.page()
        )

    def note_waits(self, seconds: float) -> None:
        """Count what every waiting trial waits for until the next event."""
        if seconds <= 0:
            return
        trials = self.store.trials.live()
        ledger = ledger_of(self.named_cluster.cluster, self.store.attempts.open(), self.options.max_gangs_per_device)
        kinds = {study.id: study.kinds for study in self.store.studies.page()}
        queue = [
            Queued(
                f"{trial.id}",
                (trial.sized.demand,),
                trial.passed_over,
                trial.id,
                trial.study_id,
                kinds=kinds[trial.study_id],
            )
            for trial in trials
            if trial.state is TrialState.QUEUED and trial.sized is not None
        ]
        blocked = [wait.blocked.value for wait in self.policy(queue, ledger, {}).waits.values()]
        blocked += [WAITS[trial.state] for trial in trials if trial.state in WAITS]
        for event in blocked:
            self.waited[event] = self.waited.get(event, 0.0) + seconds

    # --- costs ------------------------------------------------------------------------------------------------------

    def step_seconds(self, order: Order) -> float:
        """Seconds of a step, or of an epoch, of an order alone on its devices."""
        if (measured := self.options.measured.get((order.number, str(order.plan)))) is not None:
            return measured
        choice = self.store.attempts.of_trial(order.trial_id)[order.attempt - 1].choice
        if choice.step_seconds is None:
            raise InvalidInput("the seconds of a step cannot be predicted on these devices")
        unit_steps = (self.options.epoch_steps or 1) if order.in_epochs else 1
        seconds = choice.step_seconds / choice.step_factor * unit_steps
        if choice.kind:
            return seconds
        return seconds * slow_down_of_slowest(self.named_cluster.cluster, order, self.slow)

    def values(self, order: Order, step: int) -> Mapping[str, float]:
        progress = step / order.steps if order.steps else 1.0
        return drawn_values(self.objectives[order.study_id], self.options.seed, order.number, progress)

    def result(self, why_unfinished: str) -> Simulated:
        trials = [trial for study in self.store.studies.page() for trial in self.store.trials.every(study.id)]
        wrong = (TrialState.FAILED, TrialState.INFEASIBLE)
        return Simulated(
            self.named_cluster.cluster,
            self.executor.spans,
            self.waited,
            Counter(trial.state for trial in trials),
            [f"trial {trial.number}: {trial.reason}" for trial in trials if trial.state in wrong],
            why_unfinished,
            self.assumed(),
        )

    def assumed(self) -> list[str]:
        """The assumptions of the figures, in words."""
        kinds = " and ".join(f"{name}: {kind.provenance}" for name, kind in self.named_cluster.kinds.items())
        assumptions = [f"seconds of a step are predicted ({kinds})"]
        if not self.options.early_stopping:
            assumptions.append("no trial is stopped early")
        elif any(simulated_spec(study.spec).stopping_rules[0].rule != "none" for study in self.studies):
            assumptions.append(f"stopping rules judge drawn values (seed {self.options.seed}), not real curves")
        if any({"largest_batch", "scale_lr"} <= {*study.spec.fixed, *study.spec.space} for study in self.studies):
            scale = self.options.noise_scale
            noise_words = None if scale is None else f"gradients have a noise scale of {scale:g} samples"
            assumptions.append(noise_words or "no batch grows, as the noise scale is not known (--noise-scale)")
        if len(self.named_cluster.kinds) > 1 and self.policy is not pack:
            fastest = self.named_cluster.fastest.name
            assumptions.append(f"plans are made for {fastest}; other kinds are slower by their matrix products")
        gain = self.options.sharing_gain
        together = "take turns" if gain == 1 else f"are together {gain:g} times as fast as one alone"
        assumptions.append(f"gangs that share a device {together}")
        if self.options.trace_seconds:
            assumptions.append(f"the trace of a candidate takes {self.options.trace_seconds:g} s of a core")
        traces = "" if self.options.trace_seconds else "traces, "
        assumptions.append(f"{traces}evaluations, checkpoints and loading of data take no time; nothing fails")
        return assumptions


def simulated_spec(spec: StudySpec, *, early_stopping: bool = True) -> StudySpec:
    """The study without all that depends on real values: targets, terminator, history, and rules that read curves.

    Stopping rules that compare trials with each other stay.
    """
    data = spec.to_json()
    data["budget"] |= {"target": None, "terminator": None}
    data["search"]["history"] = []
    rules = [rule for rule in spec.stopping_rules if early_stopping and not rule.one_objective]
    data["stopping"] = [rule.model_dump(mode="json") for rule in rules or [NeverOptions(rule="none")]]
    return StudySpec.model_validate(data)


def _slow_down(kind: DeviceKind, fastest: DeviceKind) -> float:
    return kind.rates["matmul"].per_flop / fastest.rates["matmul"].per_flop


def _code_of(store: Store, study_id: int) -> bytes | None:
    code = store.studies.get(study_id).code
    return store.blobs.get(code) if code else None
