"""The loop that finds, decides and applies. The process that runs it is the only one that starts and stops gangs.

It loses nothing in a restart: the database is the only truth, and the executor finds running gangs again. The pure
half of the loop is ``decide``; ``projection`` follows the database; ``leadership`` says which of several processes runs
a controller.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from placement.model import Offer, offers_more
from scamp_service.control.contained import ContainedErrors
from scamp_service.control.decide import decide, effects
from scamp_service.control.decide.autoscale import num_devices_wanted
from scamp_service.control.decide.rules.hopeless import is_hopeless
from scamp_service.control.decide.snapshot import USUAL_PACKING, Packing, Snapshot
from scamp_service.control.decide.study_rules import Progress, StudyRules
from scamp_service.control.executor import Executor, Sizer, Unsized
from scamp_service.control.failing import Failing
from scamp_service.control.first_seen import FirstSeen
from scamp_service.control.projection import Projection
from scamp_service.control.proposing import Proposing, why_ended, why_hung
from scamp_service.control.ran import Ran
from scamp_service.control.specs import Specs
from scamp_service.control.steady_clock import SteadyClock
from scamp_service.control.stopping.rule import due_rungs
from scamp_service.errors import Deposed, Unavailable
from scamp_service.lifecycle import AttemptState, Origin, Outcome, StudyState, TrialState
from scamp_service.limits import limit_reached
from scamp_service.model import Attempt, Json, Refusals, Sized, Study, Trial, TrialChanges
from scamp_service.search.proposer import ProposalRequest, Proposer
from scamp_service.store.store import Store
from scamp_service.store.tallies import BESIDE, own_states
from scamp_service.study.objectives import Values
from scamp_service.study.spec import StudySpec
from workloads.training.checkpoints.name import Donor

log = logging.getLogger("scamp.controller")

ARE_TRAINED = frozenset({TrialState.QUEUED, TrialState.RUNNING, TrialState.PAUSED, TrialState.COMPLETED})
"""States of trials that are trained, or will be."""
_CHANGES = effects.MoveTrial | effects.MoveAttempt | effects.CreateTrials | effects.Repeat
"""Effects from which more may follow at once."""
WENT_WRONG = (Outcome.ERROR, Outcome.LOST, Outcome.STALLED)


@dataclass(frozen=True, slots=True)
class TimeAndTokens:
    """Functions that answer differently each time; a simulation gives its own.

    ``clock`` returns seconds since the epoch, and ``monotonic`` those of a clock that never jumps. ``new_token``
    returns a fencing token for an attempt.
    """

    clock: Callable[[], float] = field(default_factory=SteadyClock)
    monotonic: Callable[[], float] = time.monotonic
    new_token: Callable[[], str] = lambda: secrets.token_hex(16)


class Controller:
    """Runs one cycle per ``tick``. ``errors`` collects those that a cycle survives, for the dashboard."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        sizer: Sizer,
        proposer: Proposer,
        *,
        packing: Packing = USUAL_PACKING,
        time_and_tokens: TimeAndTokens = TimeAndTokens(),
        errors: ContainedErrors | None = None,
    ) -> None:
        self._store, self._executor, self._sizer = store, executor, sizer
        self._packing = packing
        self._clock, self._monotonic = time_and_tokens.clock, time_and_tokens.monotonic
        self._new_token = time_and_tokens.new_token
        self._projection = Projection(store)
        self._specs = Specs()
        self._ran = Ran(store.studies, self._monotonic)
        self._proposing = Proposing(self._projection, proposer)
        self._asked: dict[int, tuple[bool, int]] = {}  # trial → its state when a plan was asked for
        self._params_of_donors: dict[int, Json] = {}  # of the last cycle; they never change
        self._refusals: FirstSeen[Refusals] = FirstSeen(self._monotonic)
        self._absent: FirstSeen[str] = FirstSeen(self._monotonic)
        self._contained = ContainedErrors() if errors is None else errors
        self.is_idle = False
        """Whether the last cycle found neither a live study nor an open attempt."""
        self.num_devices_wanted = 0
        """Devices that the trials of the last cycle want, where an autoscaler may be asked for them."""
        self.has_changed = False
        """Whether the last cycle has written something from which more may follow at once."""
        self._undecided: Failing | None = None  # cycles without decisions
        self._failing: dict[int, Failing] = {}  # study → cycles in which our own code failed on it

    def tick(self) -> None:
        """Run one cycle: find, decide, apply. Raises ``Deposed`` once another controller leads, and ``Unavailable``.

        Any other error while an effect is applied concerns that effect alone: the next cycle decides again. A study on
        which this happens in every cycle, or whenever its sampler is asked, is stopped. An error in finding or deciding
        is raised. If it comes again and again, and does not come when one study is left out, that study becomes FAILED.
        """
        failed: dict[int, str] = {}
        self.has_changed = False
        for effect in self._decisions():
            try:
                self.apply(effect)
                self.has_changed |= isinstance(effect, _CHANGES)
            except (Deposed, Unavailable):
                raise
            except Exception as error:
                log.exception("cannot apply %s", type(effect).__name__)
                study_id = effects.study_of(effect)
                self._contained.add(effects.words_of(effect), error, study_id, self._clock())
                failed[study_id] = _in_words(error)
        self._ran.store()
        for study_id, words in self._proposing.newly_slow():
            self._contained.add("propose candidates", TimeoutError(words), study_id, self._clock())
        first, before = Failing(self._monotonic()), self._failing
        failed_again = {study: before.get(study, first).after_failure(why) for study, why in failed.items()}
        self._failing = {study: before[study] for study in self._proposing.unanswered() & before.keys()} | failed_again

    def _decisions(self) -> list[effects.Effect]:
        self.is_idle = False
        try:
            with self._store.reading():
                snapshot = self.find()
            decided = decide(snapshot)
        except (Deposed, Unavailable):
            raise
        except Exception as error:
            now = self._monotonic()
            self._undecided = (self._undecided or Failing(now)).after_failure(_in_words(error))
            if self._undecided.is_lasting(now):
                self._fail_culprits(self._undecided, now)
                self._undecided = None  # if there was none, the next search for one waits as long
            raise
        self._undecided = None
        self.is_idle = not snapshot.studies and not snapshot.attempts
        if self._packing.autoscale_devices:
            self.num_devices_wanted = num_devices_wanted(snapshot, self._packing.autoscale_devices)
        return decided

    def _fail_culprits(self, failing: Failing, now: float) -> None:
        """End each study for which alone nothing can be decided, if something can when there is no study."""
        if not self._why_undecided([]):
            for study in self._live_studies():
                if why := self._why_undecided([study]):
                    self._fail(study, replace(failing, why=why).in_words(now))

    def _why_undecided(self, studies: Sequence[Study]) -> str:
        """The error in finding and deciding with these studies alone; empty if there is none."""
        try:
            decide(self.find(studies))
        except (Deposed, Unavailable):
            raise
        except Exception as error:
            return _in_words(error)
        return ""

    def record_stops(self) -> None:
        """Record that attempts without an outcome are stopped in order, so that it costs their trials no loss.

        Call it before their ranks are killed, because a step, an evaluation or a checkpoint takes them too long.
        """
        why = "its ranks were stopped in order, with the service"
        for attempt in self._store.attempts.open():
            if attempt.outcome is None:
                self.apply(effects.MoveAttempt(attempt, AttemptState.STOPPING, Outcome.STOPPED, why))

    # --- find ------------------------------------------------------------------------------------------------------

    def find(self, live: Sequence[Study] | None = None) -> Snapshot:
        """Read the database, the executor and the sizer into one snapshot, of the studies ``live`` or else of all."""
        silent = self._executor.silent()
        gangs = self._executor.gangs()  # gangs, attempts, trials: Snapshot explains this order
        put_off = self._executor.put_off()
        silent |= self._executor.silent()  # a rank that answers while this is read is in one of the three
        attempts = self._store.attempts.open()
        closed, leaving = self._executor.closed(), self._executor.leaving()
        cluster = self._executor.cluster()  # after what closes devices: those of a node that goes meanwhile are in none
        requests = self._proposing.requests()
        live_studies = self._live_studies() if live is None else live
        studies = {study.id: self._rules(study, requests.get(study.id)) for study in live_studies}
        trials = [trial for trial in self._projection.follow(attempts) if trial.study_id in studies]
        self._projection.forget_ended(studies)
        self._specs.forget_ended(studies)
        self._ran.forget_ended(studies)
        self._proposing.forget_ended(studies)
        running = [trial for trial in trials if trial.state is TrialState.RUNNING]
        judged = {trial.study_id for trial in trials if trial.state is TrialState.PAUSED}
        judged |= {trial.study_id for trial in running if due_rungs(studies[trial.study_id].stopping, trial)}
        waiting = [trial for trial in trials if trial.state in (TrialState.WAITING, TrialState.QUEUED)]
        to_plan = {studies[trial.study_id].family(trial) for trial in waiting or trials}
        failed = [t.id for t in trials if t.state is TrialState.WAITING and t.num_oom]
        refusals = self._dated_refusals()
        resumable = {t.id for t in trials if t.attempt and t.resumes and t.state is not TrialState.WAITING}
        people = self._store.users.quotas() if waiting or running else {}
        snapshot = Snapshot(
            now=self._clock(),
            studies=studies,
            trials=trials,
            attempts=attempts,
            gangs=gangs,
            silent=silent,
            closed=silent.union(closed),
            leaving=leaving,
            ready=self._executor.ready(),
            cluster=cluster,
            packing=self._packing,
            sized=self._sizings(trials),
            requests=requests,
            held_up=self._sizer.held_up(),
            rungs={i: self._projection.rungs(i, studies[i].objectives, studies[i].stopping.rungs) for i in judged},
            fronts=self._fronts(studies, waiting),
            checkpoints=self._store.attempts.checkpoints(sorted(resumable)) if resumable else {},
            donors=self._donors(trials),
            past=self._projection.family_runs(to_plan),
            refusals=self._refusals.seconds({refusal: self._clock() - refusal.newest_at for refusal in refusals}),
            absent=self._absent.seconds(
                dict.fromkeys({attempt.key for attempt in attempts} - gangs.keys() - put_off, 0.0)
            ),
            former=self._former(attempts),
            refused=self._no_longer_refused(refusals, self._packing.to_plan_for(cluster).offer),
            failures=self._store.attempts.trial_runs(failed),
            people=people,
        )
        if snapshot.has_quotas_of_hours:
            return replace(snapshot, held=self._store.usage.of_holders(snapshot.now))
        return snapshot

    def _fronts(self, studies: Mapping[int, StudyRules], waiting: Sequence[Trial]) -> dict[int, dict[int, Values]]:
        """Trials on the Pareto fronts of the studies whose objectives are all predicted, if any of their trials waits.

        All count that are trained, or will be.
        """
        fronts = {}
        for study_id in {trial.study_id for trial in waiting if studies[trial.study_id].objectives.are_predicted}:
            objectives = studies[study_id].objectives
            scores = self._projection.scores(study_id, objectives)
            scored = [(number, values) for number, (state, values) in scores.items() if state in ARE_TRAINED]
            front = objectives.front([values for _, values in scored])
            fronts[study_id] = {scored[index][0]: scored[index][1] for index in front}
        return fronts

    def _sizings(self, trials: Sequence[Trial]) -> dict[int, Sized | Unsized]:
        """Results that answer what would be asked now.

        A plan made before an out-of-memory error is outdated, and so is one that an earlier controller asked for.
        """
        results = self._sizer.results()
        if not results:
            return {}
        now = {trial.id: _sized_for(trial) for trial in trials if trial.id in results}
        outdated = [
            trial_id for trial_id in results if trial_id not in now or self._asked.get(trial_id) != now[trial_id]
        ]
        self._forget_sizing(outdated)
        return {trial_id: result for trial_id, result in results.items() if trial_id not in outdated}

    def _donors(self, trials: Iterable[Trial]) -> dict[int, Donor]:
        """Trial → with whose weights it begins as a new model, for each that waits for devices or starts."""
        donors = {
            trial.id: trial.parent
            for trial in trials
            if trial.parent is not None and not trial.is_copy and trial.state in (TrialState.QUEUED, TrialState.RUNNING)
        }
        parents = {parent.trial_id for parent in donors.values()}
        params_of = {key: params for key, params in self._params_of_donors.items() if key in parents}
        if unknown := sorted(parents - params_of.keys()):
            params_of |= {trial.id: trial.trained_params for trial in self._store.trials.with_ids(unknown)}
        self._params_of_donors = params_of
        return {trial_id: Donor(parent, params_of[parent.trial_id]) for trial_id, parent in donors.items()}

    def _former(self, attempts: Sequence[Attempt]) -> dict[int, Attempt]:
        """The last attempt that trained before each one that went wrong before its first checkpoint."""
        wrong = [
            attempt
            for attempt in attempts
            if attempt.attempt > 1 and attempt.checkpoint_step < 0 and attempt.outcome in WENT_WRONG
        ]
        former = {}
        for attempt in wrong:
            earlier = self._store.attempts.of_trial(attempt.trial_id)[: attempt.attempt - 1]
            if trained := [before for before in earlier if before.timed_steps]:
                former[attempt.trial_id] = trained[-1]
        return former

    def _dated_refusals(self) -> list[Refusals]:
        """INFEASIBLE trials. A new controller believes their dates, and sets those that the clock has yet to reach."""
        refusals, now = self._store.trials.refusals(), self._clock()
        if self._refusals.is_first and any(refusal.newest_at > now for refusal in refusals):
            self._store.trials.redate_refusals(now=now)
            return self._store.trials.refusals()
        return refusals

    def _no_longer_refused(self, refusals: Sequence[Refusals], offer: Offer) -> list[Trial]:
        outdated = {(refusal.study_id, refusal.offer) for refusal in refusals if offers_more(offer, refusal.offer)}
        return [
            trial for study_id, before in sorted(outdated) for trial in self._store.trials.refused(study_id, before)
        ]

    def _live_studies(self) -> list[Study]:
        return [study for study in list(self._store.studies.live()) if self._readable(study)]

    def _readable(self, study: Study) -> bool:
        """Whether this version can read the stored spec. If not, the study becomes FAILED, and all others continue."""
        try:
            self._specs.read(study)
        except ValueError as error:
            self._fail(study, f"this version of ScaMP cannot read the study; submit it again: {error}")
            return False
        return True

    def _fail(self, study: Study, reason: str) -> None:
        """Cancel the live trials of a study about which nothing can be decided, and end it. Their attempts follow."""
        now, expected = self._clock(), [StudyState.RUNNING, StudyState.STOPPING]
        for trial in self._store.trials.live():
            if trial.study_id == study.id:
                to = TrialState.CANCELLED
                self._store.trials.move(trial.id, trial.state, trial.attempt, to, now=now, reason=reason)
        if self._store.studies.move(study.id, expected, StudyState.FAILED, reason=reason, now=now):
            log.error("study %s: %s", study.id, reason)

    def _rules(self, study: Study, request: ProposalRequest | None) -> StudyRules:
        tallies = self._store.counts.tallies(study.id)
        counts = own_states(tallies)
        spec = self._specs.read(study)
        is_running = study.state is StudyState.RUNNING
        progress = Progress(
            study.state,
            num_trials=sum(counts.values()) - int(tallies.get(BESIDE, 0)),
            exhausted=self._proposing.is_exhausted(study.id),
            regret_bound=study.regret_bound,
            used_up=self._used_up(study, spec) if is_running else "",
            broken=self._why_broken(study, counts, request) if is_running else "",
            reason=study.reason,
            ends_as=study.ends_as,
        )
        return replace(self._specs.rules(study), progress=progress)

    def _used_up(self, study: Study, spec: StudySpec) -> str:
        """Why the study ends before its last trial; empty if it has reached no limit of its budget."""
        ran = replace(study, ran_seconds=self._ran.seconds(study))
        reached = limit_reached(spec, self._store.counts.used(ran, spec, self._projection.scores, now=self._clock()))
        return reached.why if reached else ""

    def _why_broken(self, study: Study, counts: Mapping[TrialState, int], request: ProposalRequest | None) -> str:
        """Why the study must be stopped as FAILED; empty if it need not. ``counts`` are its own trials by state."""
        if not is_hopeless(counts):
            return why_hung(request) or why_ended(request) or self._our_fault(study)
        failed = counts[TrialState.FAILED]
        every = self._store.trials.page(study.id, states=[TrialState.FAILED])
        first = next(trial for trial in every if trial.origin is not Origin.EXTERNAL)
        return f"its first {failed} trials all failed; trial {first.number}: {first.reason}"

    def _our_fault(self, study: Study) -> str:
        """Why the study cannot continue although its trials might; empty if it can."""
        now, failing = self._monotonic(), self._failing.get(study.id)
        return failing.in_words(now) if failing and failing.is_lasting(now) else ""

    # --- apply: one transaction per effect, then at most one act that is safe to repeat -----------------------------

    def apply(self, effect: effects.Effect) -> None:
        """Write one effect to the database, then act on it; a lost race changes nothing."""
        now = self._clock()
        match effect:
            case effects.MoveTrial(trial, to, reason, changes, sized, waits_for):
                moved = self._store.trials.move(
                    trial.id,
                    trial.state,
                    trial.attempt,
                    to,
                    reason=reason,
                    changes=self._with_value_of_plan(changes, trial, sized),
                    sized=sized,
                    waits_for=waits_for,
                    now=now,
                )
                is_asked_again = to is TrialState.WAITING and bool(changes)
                if moved and (sized or to is not trial.state or is_asked_again):
                    self._forget_sizing([trial.id])
            case effects.Branch(trial, donor, params, step, reason):
                self._store.trials.branch(trial, donor, params, reason=reason, step=step, now=now)
            case effects.Repeat(trial, count, reason):
                self._store.trials.repeat(trial, count, reason=reason, now=now)
            case effects.MoveAttempt(attempt, to, outcome, detail):
                key, before = (attempt.trial_id, attempt.attempt), [attempt.state]
                self._store.attempts.move(*key, before, to, outcome=outcome, detail=detail, now=now)
            case effects.Begin(attempt, order):
                token = self._new_token()
                if self._store.attempts.begin(replace(attempt, token=token)):
                    self._forget_sizing([attempt.trial_id])
                    self._executor.launch(replace(order, token=token))
            case effects.Launch(order):
                self._executor.launch(order)
            case effects.StopGang(key, keep=keep):
                self._executor.stop(key, keep=keep)
            case effects.Size(trial, demand):
                asked_for = _sized_for(trial)
                if self._asked.get(trial.id) != asked_for:
                    self._forget_sizing([trial.id])
                self._asked[trial.id] = asked_for
                self._sizer.request(trial.id, demand, self._packing.to_plan_for(self._executor.cluster()))
            case effects.Propose(study_id, first_number, count):
                self._proposing.ask(study_id, self._specs[study_id], first_number, count)
            case effects.CreateTrials(study_id, first_number, candidates, is_last, parents, reasons):
                numbered = {index: parent for index, parent in enumerate(parents, first_number) if parent is not None}
                placed = list(enumerate(candidates, first_number))
                why = dict(enumerate(reasons, first_number))
                self._store.trials.create(study_id, placed, parents=numbered, reasons=why, now=now)
                self._proposing.stored(study_id, is_last)  # only now: had this failed, they would be stored again
            case effects.NoteRegret(study_id, regret):
                self._store.studies.note_regret(study_id, regret, now=now)
            case effects.FinishStudy(study_id, to, reason, ends_as):
                expected = [StudyState.RUNNING, StudyState.STOPPING]
                self._ran.store_those([study_id])
                if self._store.studies.move(study_id, expected, to, reason=reason, ends_as=ends_as, now=now):
                    log.info("study %s: %s %s", study_id, to, reason)

    def _with_value_of_plan(self, changes: TrialChanges, trial: Trial, sized: Sized | None) -> TrialChanges:
        """The changes, with the value that a new plan gives the trial if all objectives of its study are predicted."""
        objectives = self._specs[trial.study_id].every_objective
        if sized is None or not objectives.are_predicted:
            return changes
        return {**changes, "value": sized.quantities[objectives.leading.predicted]}

    def _forget_sizing(self, trial_ids: Sequence[int]) -> None:
        self._sizer.forget(trial_ids)
        for trial_id in trial_ids:
            self._asked.pop(trial_id, None)


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _sized_for(trial: Trial) -> tuple[bool, int]:
    """Whether the trial waits for a plan, and how often it ran out of memory: a plan answers for these two alone."""
    return trial.state is TrialState.WAITING, trial.num_oom
