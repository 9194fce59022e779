"""Population based training against random search at equal training, on networks that are really trained.

The table of curves cannot serve here, as the parameters change during training. Multilayer perceptrons on
scikit-learn's digits are trained by SGD on one thread; searched are the learning rate, the momentum and dropout. Both
searches train as many networks for as many steps, which all cost the same. Members are compared, copied and changed by
the code of the service. The error is 1 less the best accuracy that any network has reported.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.searching.curve_table import BATCH, NUM_TRAIN, layers_of
from benchmarks.searching.proxy_ranks import digits
from benchmarks.searching.regret import trial_of
from scamp_service.control.stopping import rule_of
from scamp_service.control.stopping.rule import Exploit
from scamp_service.control.stopping.rung import Rung
from scamp_service.lifecycle import TrialState
from scamp_service.model import Trial
from scamp_service.search.perturb import perturbation_of
from scamp_service.search.proposals import Search
from scamp_service.study.parse import parse_study
from scamp_service.study.spec import StudySpec

FIRST_SEED = 100
"""Seeds below it were looked at while this was written."""
MEMBERS, STEPS, INTERVAL = 8, 480, 30
SPACE: Mapping[str, Any] = {
    "lr": {"low": 1e-4, "high": 1.0, "log": True},
    "momentum": {"low": 0.0, "high": 0.99},
    "dropout": {"low": 0.0, "high": 0.6},
}
SHAPE = {"width": 32, "depth": 2}


@dataclass(slots=True)
class Member:
    """A trial with its network."""

    trial: Trial
    model: nn.Module
    optimizer: torch.optim.SGD
    source: torch.Generator

    def train(self, num_steps: int) -> float:
        """Accuracy after ``num_steps`` more steps."""
        images, labels = digits()
        for _ in range(num_steps):
            chosen = torch.randint(NUM_TRAIN, (BATCH,), generator=self.source)
            loss = nn.functional.cross_entropy(self.model(images[chosen]), labels[chosen])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.model.eval()
        with torch.no_grad():
            right = self.model(images[NUM_TRAIN:]).argmax(-1) == labels[NUM_TRAIN:]
        self.model.train()
        accuracy = right.float().mean().item()
        self.trial = replace(self.trial, step=self.trial.step + num_steps, value=accuracy)
        return accuracy

    def set(self, params: Mapping[str, Any]) -> None:
        """Train with these parameters from now on."""
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = params["dropout"]
        for group in self.optimizer.param_groups:
            group.update(lr=params["lr"], momentum=params["momentum"])


def spec_of(stopping: Mapping[str, Any], seed: int) -> StudySpec:
    """A study of ``MEMBERS`` random candidates."""
    return parse_study(
        {
            "name": "population",
            "workload": "digits.py:Digits",
            "objective": {"metric": "accuracy"},
            "space": SPACE,
            "search": {"sampler": "random", "seed": seed},
            "stopping": stopping,
            "budget": {"trials": MEMBERS, "steps": STEPS, "report_every": INTERVAL},
        }
    )


def error_of(stopping: Mapping[str, Any], seed: int) -> float:
    """Error of one search."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    spec = spec_of(stopping, seed)
    rule, mutate = rule_of(spec), perturbation_of(spec)
    candidates = enumerate(Search(spec).propose([], 0, MEMBERS))
    members = [_made(trial_of(number, params), seed) for number, params in candidates]
    best, num_trials = 0.0, MEMBERS
    for step in range(INTERVAL, STEPS + 1, INTERVAL):
        rung = Rung(spec.every_objective)
        for member in members:
            value = member.train(INTERVAL)
            rung.report(member.trial.number, (value,))
            best = max(best, value)
        if step not in rule.rungs:
            continue
        for index, (member, donor) in enumerate(zip(members, _donors(rule, rung, members), strict=True)):
            if donor is not None and mutate is not None:
                params = mutate(dict(donor.trial.params), member.trial.number)
                members[index] = _copy(donor, num_trials, params, member.source)
                num_trials += 1
    return 1.0 - best


def _made(trial: Trial, seed: int) -> Member:
    model = nn.Sequential(*layers_of({**SHAPE, **trial.params}))
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.params["lr"], momentum=trial.params["momentum"])
    return Member(trial, model, optimizer, torch.Generator().manual_seed(1000 * seed + trial.number))


def _donors(rule: Any, rung: Rung, members: list[Member]) -> list[Member | None]:
    """Return for each member the one that is copied into its place; None where it continues."""

    def donor(member: Member) -> Member | None:
        paused = replace(member.trial, state=TrialState.PAUSED)
        verdict = rule.judge(paused, member.trial.step, {member.trial.step: rung}, is_last=True)
        if not isinstance(verdict, Exploit):
            return None
        return next(member for number in verdict.donors for member in members if member.trial.number == number)

    return [donor(member) for member in members]


def _copy(donor: Member, number: int, params: Mapping[str, Any], source: torch.Generator) -> Member:
    model = copy.deepcopy(donor.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=params["lr"], momentum=params["momentum"])
    optimizer.load_state_dict(copy.deepcopy(donor.optimizer.state_dict()))
    child = Member(replace(donor.trial, id=number, number=number, params=params), model, optimizer, source)
    child.set(params)
    return child


SEARCHES: Mapping[str, Mapping[str, Any]] = {
    "random, no stopping": {"rule": "none"},
    "population based training": {"rule": "pbt", "mutate": list(SPACE), "interval": INTERVAL},
}


def population(num_seeds: int) -> Mapping[str, Any]:
    """The mean error of population based training over that of random search, with its 95 % interval."""
    print(f"\n{f'{MEMBERS} networks, {STEPS} steps each':36}{'error':>24}")
    seeds = range(FIRST_SEED, FIRST_SEED + num_seeds)
    errors = {name: [error_of(stopping, seed) for seed in seeds] for name, stopping in SEARCHES.items()}
    for name, error in errors.items():
        print(f"{name:36}{f'{fmean(error):.4f} ± {stdev(error):.4f}':>24}")
    random, ours = (np.array(values) for values in errors.values())
    drawn = list(_ratios(ours, random))
    low, high = np.quantile(drawn, [0.025, 0.975])
    return {
        "pbt_vs_random": round(float(ours.mean() / random.mean()), 3),
        "pbt_vs_random_spread": [round(float(low), 3), round(float(high), 3)],
        "pbt_seeds": num_seeds,
    }


def _ratios(errors: np.ndarray[Any, Any], random: np.ndarray[Any, Any]) -> Iterator[float]:
    """Ratios of the means of seeds that are drawn again and again, the same for both."""
    source = np.random.default_rng(0)
    for _ in range(2000):
        places = source.integers(len(errors), size=len(errors))
        yield float(errors[places].mean() / random[places].mean())
