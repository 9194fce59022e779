"""The simulated executor, sizer and samplers that a controller talks to."""

from __future__ import annotations

import random
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

from estimators.learned_seconds import SlowDowns, learn_slow_downs, way_kind
from estimators.memory import Extra
from estimators.model import MIB, Plan, Prediction
from placement.model import Cluster, Ready
from placement.option import NoPlan
from placement.planning.answers import ChosenPlan
from placement.planning.learned import choose_learned
from scamp_service.control.executor import Demand, GangState, GangStatus, Order, Unsized
from scamp_service.model import Choice, Json, Sized
from scamp_service.search.history import Past
from scamp_service.search.proposals import Search
from scamp_service.search.proposer import Proposal, ProposalRequest
from scamp_service.search.running.one_shot import OneShotSearch
from scamp_service.study.spec import StudySpec
from tests.simulation.faults import Clock
from tests.simulation.world import World


class SimulatedExecutor:
    """Implements ``Executor`` for one term: what it knows of gangs, it has heard from their ranks."""

    def __init__(self, world: World, term: int) -> None:
        self.world, self.term = world, term
        world.term = max(world.term, term)
        now, rng = world.clock.now, world.rng
        is_silent = {key: rng.random() < world.faults.silent_rank for key in world.gangs_by_key}
        self.heard = {key: now + (rng.uniform(0.0, 60.0) if is_silent[key] else 0.0) for key in world.gangs_by_key}
        for when in self.heard.values():
            world.after(when - now, lambda: None)  # the controllers are not to sleep through it

    def cluster(self) -> Cluster:
        world = self.world
        return Cluster(tuple(d for d in world.devices if d.node not in world.lost_nodes and d.id not in world.absent))

    def gangs(self) -> Mapping[str, GangStatus]:
        return {
            key: GangStatus(GangState.BROKEN, gang.broken)
            if gang.broken
            else GangStatus(GangState.ALIVE, quiet_seconds=self.world.clock.now - gang.progressed)
            for key, gang in self.world.gangs_by_key.items()
            if key not in self._unheard()
        }

    def silent(self) -> frozenset[str]:
        gangs = self.world.gangs_by_key
        return frozenset(device for key in self._unheard() if key in gangs for device in gangs[key].order.devices)

    def put_off(self) -> frozenset[str]:
        return frozenset()

    def closed(self) -> Mapping[str, str]:
        return dict.fromkeys(self.silent(), "a rank does not answer") | self.leaving()

    def leaving(self) -> dict[str, str]:
        return dict.fromkeys(self.world.leaving, "its node is leaving")

    def ready(self) -> Ready:
        """Half of the devices, which change all the time."""
        seconds = int(self.world.clock.now)
        return {device.id: frozenset({None}) for device in self.cluster().devices if (device.index + seconds) % 2}

    def launch(self, order: Order) -> None:
        if self.term == self.world.term:
            self.world.launch(order)

    def stop(self, key: str, *, keep: bool = False) -> None:
        if self.term == self.world.term:
            self.world.stop(key, keep=keep)

    def _unheard(self) -> set[str]:
        return {key for key, when in self.heard.items() if when > self.world.clock.now}


class SimulatedSizer:
    """Implements ``Sizer``: plans are looked up in the candidate itself, results take a while."""

    def __init__(self, clock: Clock, rng: random.Random, fail: float = 0.0) -> None:
        self.clock, self.rng, self.fail = clock, rng, fail
        self.pending: dict[int, tuple[float, Sized | Unsized]] = {}

    def request(self, trial_id: int, demand: Demand, cluster: Cluster) -> None:
        if trial_id in self.pending:
            return
        self.pending[trial_id] = (self.clock.now + self.rng.uniform(0.0, 2.0), self._size(demand, cluster))

    def _size(self, demand: Demand, cluster: Cluster) -> Sized | Unsized:
        if self.rng.random() < self.fail:
            return Unsized("No space left on device three times", infeasible=False, may_pass=True)
        params, num_devices = demand.candidate.params, len(cluster.devices)
        answer = choose_learned(
            lambda extra: self._first_plan(params, num_devices, extra), demand.own_attempts, demand.learned
        )
        if isinstance(answer, ChosenPlan):
            learned_bytes = demand.learned_bytes(answer.plan.layout)
            slow_downs = learn_slow_downs(demand.past, "virtual")
            own_choice = _choice(answer.plan, answer.prediction, slow_downs)
            wider = [ranks for ranks in (1, 2, 4) if answer.plan.world_size < ranks <= params.get("most_ranks", 1)]
            choices = [own_choice]
            for plan in (Plan(1, 4 // ranks, dp_shard=ranks) for ranks in wider):
                corrected = replace(own_choice.prediction, extra_bytes=demand.learned_bytes(plan.layout))
                other, least = _choice(plan, corrected, slow_downs), choices[-1].step_seconds or 0.0
                if corrected.reserved_mib <= 96 and (other.step_seconds or 0.0) < least:
                    choices.append(other)
            return Sized(
                "s", own_choice, answer.reason, learned_bytes, choices=tuple(choices) if len(choices) > 1 else ()
            )
        assert isinstance(answer, NoPlan)
        return Unsized(answer.reason, infeasible=True, offer=cluster.offer)

    def _first_plan(self, params: Json, num_devices: int, extra: Extra) -> ChosenPlan | NoPlan:
        """Candidates that grow may have more ranks; others have as many as they ask for."""
        ranks = int(params["ranks"])
        degrees = [degree for degree in (1, 2, 4) if degree >= ranks] if params.get("grows") else [ranks]
        answers = [self._plan(degree, params, num_devices, extra) for degree in degrees]
        return next((answer for answer in answers if isinstance(answer, ChosenPlan)), answers[0])

    def _plan(self, ranks: int, params: Json, num_devices: int, extra: Extra) -> ChosenPlan | NoPlan:
        if ranks > num_devices:
            return NoPlan(f"needs {ranks} devices; there are {num_devices}")
        plan = Plan(1, 4 // ranks, dp_shard=ranks)
        needed = Prediction(int(params["mib"]) * MIB, extra_bytes=extra.bytes_for(plan.layout))
        if needed.reserved_mib > 96:
            return NoPlan(f"needs {needed.reserved_mib} MiB; devices offer 96")
        held_bytes = min(extra.wanted_bytes(plan.layout), 96 * MIB) if extra.held_bytes else 0
        needed = replace(needed, extra_bytes=max(needed.extra_bytes, held_bytes - needed.traced_bytes))
        return ChosenPlan(plan, needed, f"{ranks} ranks of {needed.reserved_mib} MiB")

    def results(self) -> Mapping[int, Sized | Unsized]:
        return {trial: result for trial, (ready, result) in self.pending.items() if ready <= self.clock.now}

    def forget(self, trial_ids: Sequence[int]) -> None:
        for trial_id in trial_ids:
            self.pending.pop(trial_id, None)

    def held_up(self) -> Mapping[int, Sequence[int]]:
        return {}


def _choice(plan: Plan, prediction: Prediction, slow_downs: SlowDowns) -> Choice:
    """A plan with the seconds of its step: a second for one rank, times what was learned."""
    slow_down = slow_downs.get(way_kind(plan))
    factor = slow_down.factor if slow_down else 1.0
    return Choice(plan, prediction, factor / plan.world_size, factor)


class SimulatedProposer:
    """Implements ``Proposer``: samplers answer at once, except for some that take a while."""

    def __init__(self, clock: Clock, rng: random.Random, slow: float = 0.0) -> None:
        self.clock, self.rng, self.slow = clock, rng, slow
        self.pending: dict[int, tuple[float, float, int, Proposal | Exception]] = {}  # study → ready, begun, …
        self.searches: dict[int, Search | OneShotSearch] = {}

    def request(self, study_id: int, spec: StudySpec, changed: Iterable[Past], first_number: int, count: int) -> None:
        search = self.searches.pop(study_id, None)
        answer: Proposal | Exception
        try:
            search = search or _search_of(spec)
            candidates = search.propose(changed, first_number, count)
            answer, self.searches[study_id] = Proposal(candidates, len(candidates) < count, search.parents), search
        except Exception as error:
            answer = error
        seconds = self.rng.uniform(0.0, 5.0) if self.slow and self.rng.random() < self.slow else 0.0
        self.pending[study_id] = (self.clock.now + seconds, self.clock.now, first_number, answer)

    def requests(self) -> Mapping[int, ProposalRequest]:
        return {
            study_id: ProposalRequest(first_number, self.clock.now - begun, answer if ready <= self.clock.now else None)
            for study_id, (ready, begun, first_number, answer) in self.pending.items()
        }

    def remembers(self, study_id: int) -> bool:
        return study_id in self.searches

    def forget(self, study_id: int) -> None:
        self.pending.pop(study_id, None)

    def forget_ended(self, live_studies: Container[int]) -> None:
        for by_study in (self.pending, self.searches):
            for study_id in [study_id for study_id in by_study if study_id not in live_studies]:
                by_study.pop(study_id)


def _search_of(spec: StudySpec) -> Search | OneShotSearch:
    one_shot = spec.search.one_shot
    return Search(spec) if one_shot is None else OneShotSearch(spec, one_shot, Search(spec))
