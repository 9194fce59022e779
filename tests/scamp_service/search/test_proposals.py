"""Proposals: determined by spec, number and history; better than chance; away from what cannot run."""

from __future__ import annotations

import itertools
import math
import random
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState as OptunaState

from scamp_service.lifecycle import TrialState
from scamp_service.search import proposals
from scamp_service.search.proposals import Params, Search, _optuna_result
from scamp_service.study.parse import parse_study
from scamp_service.study.spec import StudySpec

S = TrialState
SPACE = {
    "lr": {"low": 1e-5, "high": 1.0, "log": True},
    "depth": {"low": 1, "high": 12},
    "width": {"low": 32, "high": 100, "step": 32},
    "dropout": {"low": 0.0, "high": 0.35, "step": 0.1},
    "act": {"choice": ["relu", "gelu", 0.5, False]},
}


@dataclass(frozen=True)
class Trial:
    number: int
    params: Params
    state: TrialState = S.RUNNING
    step: int = 0
    value: float | None = None


def study(space: dict[str, Any] = SPACE, sampler: str = "tpe", **more: Any) -> StudySpec:
    head = {"name": "s", "workload": "w", "objective": {"metric": "m", "direction": "minimize"}, "space": space}
    more = {"budget": {"trials": 5000}, "search": {"sampler": sampler, "seed": 3}, **more}
    return parse_study({**head, **more})


def distance(params: Params) -> float:
    """Least at lr = 1e-2, depth = 4."""
    lr, depth = params["lr"], params["depth"]
    assert isinstance(lr, float) and isinstance(depth, int)
    return (math.log10(lr) + 2) ** 2 + (depth - 4) ** 2 / 9


def live(search: Search, end: Callable[[Trial], Trial], num_trials: int, at_once: int = 4) -> list[Trial]:
    """A study that runs ``at_once`` trials at a time, the oldest ending first."""
    trials: list[Trial] = []
    while len(trials) < num_trials:
        proposed = search.propose(trials, len(trials), 1)
        trials += [Trial(len(trials), params) for params in proposed]
        if len(trials) >= at_once:
            trials[-at_once] = end(trials[-at_once])
    return trials


def completed(trial: Trial) -> Trial:
    return replace(trial, state=S.COMPLETED, value=distance(trial.params), step=100)


def mixed(trial: Trial) -> Trial:
    """Every way a trial can end, each with the values that it then has."""
    value = distance(trial.params)
    ends = [
        replace(trial, state=S.COMPLETED, value=value, step=100),
        replace(trial, state=S.PRUNED, value=value, step=10),
        replace(trial, state=S.PRUNED, value=math.nan, step=10),
        replace(trial, state=S.PRUNED, value=None),
        replace(trial, state=S.INFEASIBLE),
        replace(trial, state=S.FAILED),
        replace(trial, state=S.CANCELLED, value=value, step=10),
        replace(trial, state=S.COMPLETED, value=math.inf, step=100),
        replace(trial, state=S.COMPLETED, value=value, step=100),
    ]
    return ends[trial.number % len(ends)]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_every_proposal_lies_in_the_space_with_the_types_of_the_space(sampler: str) -> None:
    spec = study(sampler=sampler, fixed={"batch": 32})
    for trial in live(Search(spec), mixed, 60):
        assert set(trial.params) == {*SPACE, "batch"}
        for name, value in trial.params.items():
            assert name == "batch" or spec.space[name].why_not(value) == ""
        assert {n: type(v) for n, v in trial.params.items() if n != "act"} == {
            "lr": float,
            "depth": int,
            "width": int,
            "dropout": float,
            "batch": int,
        }
    assert {t.params["dropout"] for t in live(Search(spec), completed, 40)} <= {0.0, 0.1, 0.2, 0.3}


def test_the_seed_and_the_number_alone_decide_a_random_proposal() -> None:
    spec = study(sampler="random")
    together = Search(spec).propose([], 0, 6)
    assert [Search(spec).propose([], number, 1)[0] for number in range(6)] == together
    assert len({str(params) for params in together}) == 6
    other = spec.model_copy(update={"search": spec.search.model_copy(update={"seed": 4})})
    assert Search(other).propose([], 0, 6) != together


def test_a_controller_that_begins_anew_proposes_what_the_old_one_would_have() -> None:
    spec = study(start_with=[{"depth": 3}])
    search, trials = Search(spec), live(Search(spec), mixed, 45)
    for number in (12, 20, 21, 33, 45):
        earlier = [past if past.number < number - 3 else replace(past, state=S.QUEUED) for past in trials[:number]]
        assert search.propose(earlier, number, 3) == Search(spec).propose(list(reversed(earlier)), number, 3)


def test_asking_for_several_is_asking_one_after_another() -> None:
    spec = study()
    trials = live(Search(spec), completed, 20)
    several = Search(spec).propose(trials, 20, 3)
    one, grown = Search(spec), list(trials)
    for number in (20, 21, 22):
        grown.append(Trial(number, one.propose(grown, number, 1)[0]))
    assert [trial.params for trial in grown[20:]] == several
    assert len({str(params) for params in several}) == 3


def test_tpe_stays_away_from_where_trials_still_run() -> None:
    spec = study({"x": {"low": 0.0, "high": 1.0}})
    trials = live(Search(spec), lambda t: replace(t, state=S.COMPLETED, value=abs(float(t.params["x"]) - 0.5)), 30)
    crowd = [Trial(number, {"x": 0.5}) for number in range(30, 50)]

    def distance_from_crowd(history: list[Trial]) -> float:
        return sum(abs(float(params["x"]) - 0.5) for params in Search(spec).propose(history, 50, 10))

    gone = [replace(trial, state=S.CANCELLED) for trial in crowd]
    assert distance_from_crowd([*trials, *crowd]) > 1.1 * distance_from_crowd([*trials, *gone])


def test_tpe_learns_from_what_was_pruned() -> None:
    def distance_from_best(trial: Trial) -> float:
        return abs(float(trial.params["x"]) - 0.7)

    def pruned(trial: Trial) -> Trial:
        return replace(trial, state=S.PRUNED, step=10, value=distance_from_best(trial))

    late: list[Trial] = []
    for seed in range(3):
        spec = study({"x": {"low": 0.0, "high": 1.0}}, search={"seed": seed})
        late += live(Search(spec), pruned, 40)[25:]
    assert sum(map(distance_from_best, late)) / len(late) < 0.18, "chance would be 0.29"


def test_the_first_candidates_of_tpe_are_spread_at_random() -> None:
    proposed = Search(study()).propose([], 0, 10)
    assert len({params["lr"] for params in proposed}) == 10


def test_a_proposal_that_was_never_stored_is_made_again() -> None:
    trials = live(Search(study()), completed, 20)
    search = Search(study())
    lost = search.propose(trials, 20, 2)
    assert search.propose(trials, 20, 2) == lost
    assert search.propose([*trials, Trial(20, lost[0])], 20, 2) == lost, "what is asked for is no history"


def test_a_history_that_took_another_course_is_believed() -> None:
    trials = live(Search(study()), completed, 20)
    search = Search(study())
    proposed = search.propose(trials, 20, 1)[0]
    other = [*trials, Trial(20, {**proposed, "depth": 1 if proposed["depth"] != 1 else 2})]
    assert search.propose(other, 21, 1) == Search(study()).propose(other, 21, 1)


def test_first_candidates_come_first_with_the_rest_filled_in() -> None:
    starts = [{"lr": 1, "depth": 2}, {"act": "gelu", "batch": 8}]
    for sampler in ("tpe", "random"):
        proposed = Search(study(sampler=sampler, fixed={"batch": 32}, start_with=starts)).propose([], 0, 4)
        assert (proposed[0]["lr"], proposed[0]["depth"], proposed[0]["batch"]) == (1.0, 2, 32)
        assert isinstance(proposed[0]["lr"], float), "typed as the sampler's own"
        assert (proposed[1]["act"], proposed[1]["batch"], proposed[2]["batch"]) == ("gelu", 8, 32)
        assert all(set(params) == {*SPACE, "batch"} for params in proposed)


def test_tpe_finds_better_candidates_than_chance() -> None:
    space = {name: SPACE[name] for name in ("lr", "depth")}
    tpe, chance = (live(Search(study(space, sampler)), completed, 60) for sampler in ("tpe", "random"))
    late_tpe, late_chance = (sum(distance(t.params) for t in trials[30:]) / 30 for trials in (tpe, chance))
    assert late_tpe < 0.5 * late_chance


def test_tpe_maximizes_when_told_to() -> None:
    spec = study({"x": {"low": 0.0, "high": 1.0}}, objective={"metric": "m", "direction": "maximize"})
    trials = live(Search(spec), lambda t: replace(t, state=S.COMPLETED, value=float(t.params["x"])), 40)
    assert sum(float(t.params["x"]) for t in trials[25:]) / 15 > 0.8


@pytest.mark.parametrize(
    "end", [{"state": S.INFEASIBLE}, {"state": S.COMPLETED, "value": math.nan}, {"state": S.PRUNED, "value": math.nan}]
)
def test_tpe_steers_away_from_what_cannot_run(end: dict[str, Any]) -> None:
    """The objective pulls towards deep models, which do not fit: they are tried less and less."""
    spec = study({"depth": {"low": 1, "high": 100}}, objective={"metric": "m", "direction": "maximize"})

    def too_deep(trial: Trial) -> Trial:
        depth = trial.params["depth"]
        assert isinstance(depth, int)
        return replace(trial, **end) if depth > 50 else replace(trial, state=S.COMPLETED, value=float(depth))

    trials = live(Search(spec), too_deep, 60)
    num_too_deep = sum(int(t.params["depth"]) > 50 for t in trials[30:])
    assert num_too_deep <= 20, "told nothing, it proposes 29 or 30 of these 30 too deep"
    assert max(int(t.params["depth"]) for t in trials[30:] if t.state is S.COMPLETED) >= 45


def test_a_trial_that_diverged_after_good_values_ranks_behind_all_that_worked() -> None:
    """As the controller stores it: pruned at the step of its last value, which is replaced by NaN."""
    pruned = _optuna_result(Trial(0, {}, S.PRUNED, step=20, value=0.1))
    diverged = _optuna_result(Trial(0, {}, S.PRUNED, step=20, value=math.nan))
    assert pruned == (OptunaState.PRUNED, None, {20: 0.1}) and diverged == (OptunaState.PRUNED, None, {})


def test_a_trial_that_was_planned_again_after_it_fitted_nowhere_counts_with_its_result() -> None:
    def odd(change: dict[str, Any]) -> list[Trial]:
        return [replace(t, **change) if t.number % 2 else t for t in trials]

    trials, follower = live(Search(study()), completed, 20), Search(study())
    trials.append(Trial(20, follower.propose(odd({"state": S.INFEASIBLE, "value": None}), 20, 1)[0]))
    again = odd({"state": S.WAITING, "value": None})
    trials.append(Trial(21, follower.propose(again, 21, 1)[0]))
    assert follower.propose(trials, 22, 2) == Search(study()).propose(trials, 22, 2)


def test_failures_and_cancellations_say_nothing_of_the_parameters() -> None:
    trials = live(Search(study()), completed, 20)
    failed = [replace(t, state=S.FAILED, value=None) if t.number % 2 else t for t in trials]
    cancelled = [replace(t, state=S.CANCELLED, value=9e9, step=5) if t.number % 2 else t for t in trials]
    assert Search(study()).propose(failed, 20, 2) == Search(study()).propose(cancelled, 20, 2)


GRID = {"a": {"choice": ["x", "y"]}, "b": {"low": 1, "high": 6, "step": 2}, "c": {"low": 0.0, "high": 0.3, "step": 0.1}}


def test_a_grid_visits_every_point_once_and_ends() -> None:
    search = Search(study(GRID, "grid", fixed={"batch": 8}))
    first, second = search.propose([], 0, 20), search.propose([], 20, 20)
    assert (len(first), len(second), search.propose([], 24, 5)) == (20, 4, [])
    points = {(p["a"], p["b"], p["c"]) for p in first + second}
    assert points == {(a, b, c) for a in "xy" for b in (1, 3, 5) for c in (0.0, 0.1, 0.2, 0.3)}
    assert all(p["batch"] == 8 for p in first)
    assert Search(study(GRID, "grid", fixed={"batch": 8})).propose([], 20, 20) == second
    assert len({p["a"] for p in first[:6]}) == 2, "shuffled: a short budget sees all axes"


def test_a_grid_does_not_repeat_what_was_tried_first() -> None:
    search = Search(study(GRID, "grid", start_with=[{"a": "x", "b": 3, "c": 0.2}, {"a": "y"}]))
    proposed = search.propose([], 0, 100)
    assert len(proposed) == 24
    assert len({str(p) for p in proposed}) == 24
    assert proposed[0] == {"a": "x", "b": 3, "c": 0.2}
    assert search.propose([], 1, 100) == proposed[1:]


def test_a_large_grid_is_never_written_out_and_keeps_its_order() -> None:
    """A grid that was begun by an earlier version continues: its points were shuffled as a list."""
    side = {"low": 1, "high": 100}
    space = {"a": side, "b": side, "c": {"choice": list("abcdefghij")}}
    tried = [{"a": a, "b": 1, "c": "b"} for a in range(1, 101)]
    search = Search(study(space, "grid", start_with=tried))
    tracemalloc.start()
    proposed = search.propose([], 100, 3)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 5 * 2**20, "a dict for each of 100,000 points takes over 20 MiB"
    points = [{"a": a, "b": b, "c": c} for a, b, c in itertools.product(range(1, 101), range(1, 101), "abcdefghij")]
    random.Random(3).shuffle(points)
    assert proposed == [point for point in points[:200] if point not in tried][:3]
    assert search.propose([], 99_999, 5) == [point for point in points[-200:] if point not in tried][-1:]


def test_a_space_with_one_value_is_still_a_space() -> None:
    space = {"a": {"low": 2, "high": 2}, "b": {"low": 0.5, "high": 0.5}, "c": {"choice": ["only"]}}
    for sampler in ("tpe", "random", "grid"):
        trials = live(Search(study(space, sampler)), mixed, 1)
        assert trials[0].params == {"a": 2, "b": 0.5, "c": "only"}


def course(num_trials: int, seed: int) -> Iterator[Trial]:
    """Trials of a study as they are created and end, each as often as it changes, many at once and out of order."""
    random_params = Search(study(sampler="random")).propose([], 0, num_trials)
    source, live_trials = random.Random(seed), list[Trial]()
    for number, params in enumerate(random_params):
        live_trials.append(Trial(number, params, S.QUEUED))
        yield live_trials[-1]
        while len(live_trials) > source.randrange(12):
            yield mixed(live_trials.pop(source.randrange(len(live_trials))))


@pytest.mark.parametrize("most", [8, 40, 1024])
def test_a_search_that_followed_changes_proposes_what_one_that_reads_everything_does(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proposals, "MOST_SHOWN", most)
    following, news, trials = Search(study()), list[Trial](), dict[int, Trial]()
    for trial in course(90, seed=most):
        news.append(trial)
        trials[trial.number] = trial
        if len(news) == 13:
            begun = list(trials.values())
            proposed = following.propose(news, len(trials), 2)
            assert proposed == Search(study()).propose(list(reversed(begun)), len(trials), 2)
            news.clear()


def test_a_long_history_is_thinned_but_keeps_its_best_and_its_live_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposals, "MOST_SHOWN", 40)
    shown: list[list[int]] = []

    class Watched(optuna.samplers.TPESampler):
        def sample_relative(self, study: Any, *args: Any) -> dict[str, Any]:
            shown.append([trial.number - 1 for trial in study.get_trials(deepcopy=False)])
            return super().sample_relative(study, *args)

    monkeypatch.setattr(optuna.samplers, "TPESampler", Watched)
    few = Search(study(sampler="random")).propose([], 0, 1000)
    trials = [completed(Trial(number, params)) for number, params in enumerate(few)]
    trials[501] = replace(trials[501], state=S.RUNNING)
    Search(study()).propose(trials, 1000, 1)
    best = sorted((trial for trial in trials if trial.number != 501), key=lambda trial: trial.value or 0.0)
    assert {trial.number for trial in best[:25]} | {501} <= set(shown[0])
    assert set(shown[0]) >= set(range(0, 1000, 32)) and len(shown[0]) <= 40 + 25 + 1


def test_a_thinned_history_still_leads_to_better_candidates_than_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    space = {name: SPACE[name] for name in ("lr", "depth")}
    monkeypatch.setattr(proposals, "MOST_SHOWN", 64)
    thinned, chance = (live(Search(study(space, sampler)), completed, 160) for sampler in ("tpe", "random"))
    late, at_random = (sum(distance(t.params) for t in trials[80:]) / 80 for trials in (thinned, chance))
    assert late < 0.6 * at_random


def test_the_first_candidates_are_no_gap_in_what_a_search_has_followed() -> None:
    spec, trials = study(start_with=[{"depth": 3}]), live(Search(study()), completed, 20)
    following = Search(spec)
    following.propose(trials, 0, 1)
    assert following.propose([], 20, 1) == Search(spec).propose(trials, 20, 1)
