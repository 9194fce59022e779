"""The one message that says what is wrong with a study."""

from __future__ import annotations

from typing import Any

import pytest

from tests.studies import refusal, study

SGD: dict[str, Any] = {"choice": ["sgd", "adam"]}
LAYERS: dict[str, Any] = {
    "layers": {
        "repeat": {"low": 2, "high": 3},
        "each": {"op": {"choice": ["x", "y"]}, "k": {"choice": [1, 2], "when": {"op": "y"}}},
    }
}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"space": {}}, "the search space is empty"),
    ({"space": {"lr": {"low": 0, "high": 1, "log": True}}}, "space.lr: a log range needs low > 0, got 0"),
    ({"space": {"lr": {"low": -1.0, "high": 1.0, "log": True}}}, "a log range needs low > 0"),
    ({"space": {"lr": {"low": float("nan"), "high": 1}}}, "space.lr.low: must be finite (got nan)"),
    ({"space": {"lr": {"low": 0, "high": "1e999"}}}, "space.lr.high: must be finite"),
    ({"space": {"lr": {"low": -1.7e308, "high": 1.7e308}}}, "space.lr: the range is too wide"),
    ({"space": {"lr": {"low": 0, "high": 10**30}}}, "space.lr.high: must lie within ±2^53"),
    ({"space": {"lr": {"low": True, "high": 3}}}, "space.lr.low: must be a number (got True)"),
    ({"space": {"lr": {"low": "a", "high": 3}}}, "space.lr.low: must be a number (got 'a')"),
    ({"space": {"lr": {"low": 1}}}, "space.lr.high is missing"),
    ({"space": {"lr": {"low": 2, "high": 1}}}, "low (2) must not exceed high (1)"),
    ({"space": {"lr": {"low": 1, "high": 2, "step": 0}}}, "step must be positive"),
    ({"space": {"lr": {"low": 1, "high": 2, "step": 0.5}}}, "the step of an integer range must be an integer"),
    ({"space": {"lr": {"low": 1, "high": 2, "step": 1, "log": True}}}, "a log range cannot have a step"),
    ({"space": {"lr": {"low": 0.0, "high": 1e9, "step": 1e-9}}}, "take a larger step"),
    ({"space": {"lr": {"low": 1, "hihg": 2}}}, "space.lr.hihg: unknown key; did you mean high?"),
    ({"space": {"lr": {"low": 1, "high": 2, "log": "yes"}}}, "space.lr.log: must be a valid boolean (got 'yes')"),
    (
        {"space": {"lr": 3}},
        "space.lr: must be {choice: [value, …]}, {ordinal: [value, …]}, {low: number, high: number} or {repeat",
    ),
    ({"space": {"lr": {"choice": []}}}, "space.lr.choice: "),
    ({"space": {"lr": {"choice": [1, 2, 1.0]}}}, "lists 1 and 1.0, which are equal"),
    ({"space": {"lr": {"choice": [0, False]}}}, "lists 0 and False, which are equal"),
    ({"space": {"lr": {"choice": [{"a": 1}]}}}, "space.lr.choice.0: must be null, true, false, a list, a number or"),
    ({"space": {"lr": {"choice": ["[1]", [1]]}}}, "space.lr.choice: lists '[1]' and [1], which are equal; keep one"),
    ({"space": {"lr": {"choice": list(range(1001))}}}, "space.lr.choice: "),
    ({"space": {"lr": {"choice": ["x" * 1001]}}}, "must be at most 1000 characters long"),
    ({"space": {f"p{n}": {"choice": [1]} for n in range(101)}}, "space: "),
    ({"space": {"learning rate": {"choice": [1]}}}, "parameter names are identifiers"),
    ({"space": {"": {"choice": [1]}}}, "parameter names are identifiers"),
    (
        {"space": LAYERS | {"a": {"choice": [1], "when": {"opp": "x"}}}},
        "space.a.when: there is no parameter 'opp' here",
    ),
    ({"space": {"o": SGD, "m": {"low": 0, "high": 1, "when": {"o": "sdg"}}}}, "space.m.when.o: 'sdg' is not one of"),
    ({"space": {"o": SGD, "m": {"low": 0, "high": 1, "when": {"o": []}}}}, "space.m.when.o: lists no value"),
    ({"space": {n: {"choice": [1], "when": {"ab"["ba".index(n)]: 1}} for n in "ab"}}, "space: a depends on itself"),
    ({"space": {"n": {"repeat": 3}}}, "space.n.each is missing"),
    ({"space": {"n": {"repeat": 3, "each": {}}}}, "space.n.each: "),
    ({"space": {"n": {"repeat": {"low": 0.5, "high": 1}, "each": {"a": SGD}}}}, "an integer from 0 to 1000; got 0.5"),
    ({"space": {"n": {"repeat": 1001, "each": {"a": SGD}}}}, "an integer from 0 to 1000; got 1001"),
    ({"space": {"n": {"repeat": "3", "each": {"a": SGD}}}}, "space.n.repeat: must be an integer, {choice: [integer"),
    ({"space": {"n": {"repeat": {"low": 1, "hihg": 2}, "each": {"a": SGD}}}}, "space.n.repeat.hihg: unknown key; did"),
    (
        {"space": {"n": {"repeat": 3, "each": {"a": {"choise": [1]}}}}},
        "space.n.each.a.choise: unknown key; did you mean",
    ),
    ({"space": {"n": {"chioce": [1]}}}, "space.n.choice is missing; space.n.chioce: unknown key; did you mean choice?"),
    (
        {"space": {"n": {"repeet": 3, "each": {"a": SGD}}}},
        "space.n.repeat is missing; space.n.repeet: unknown key; did",
    ),
    ({"space": {"n": {"lo": 1, "high": 3}}}, "space.n.low is missing; space.n.lo: unknown key; did you mean low?"),
    (
        {"space": {"n": {"values": [1, 2]}}},
        "space.n: must be {choice: [value, …]}, {ordinal: [value, …]}, {low: number",
    ),
    ({"space": {"n": {}}}, "space.n: must be {choice: [value, …]}, {ordinal: [value, …]}, {low: number"),
    ({"space": {"n": {f"k{number}": 1 for number in range(60_000)}}}, "space.n: must be {choice: [value, …]}"),
    (
        {"space": {"n": {"repeat": 3, "each": {"a": {"choice": [1], "low": 1}}}}},
        "space.n.each.a.low: unknown key; allow",
    ),
    ({"space": {"n": {"repeat": 501, "each": {"a": SGD}}}}, "space has more than 500 parameters"),
    ({"space": LAYERS, "start_with": [{"layers": 2}]}, "start_with[0].layers: must be a list with a mapping of op, k"),
    (
        {"space": LAYERS, "start_with": [{"layers": [{}]}]},
        "start_with[0].layers: the number of blocks: 1 is not between",
    ),
    (
        {"space": LAYERS, "start_with": [{"layers": [{}, {"o": 1}]}]},
        "start_with[0].layers[1] has 'o'; a block has op, k",
    ),
    (
        {"space": LAYERS, "start_with": [{"layers": [{"k": 2}, {}]}]},
        "layers.0.k exists only with some values of layers.0",
    ),
    ({"space": LAYERS, "start_with": [{"layers": [{"k": 2, "op": "x"}, {}]}]}, "which this candidate has as 'x'"),
    ({"constraints": ["lr +"]}, "constraints[0] 'lr +' is not an expression: column 5: Syntax error"),
    ({"constraints": ["rl > 0.2"]}, "constraints name 'rl', which neither space nor fixed defines; did you mean lr?"),
    ({"constraints": ["lr * 2 > 0.2"]}, "the constraint 'lr * 2 > 0.2' has no value: it mixes types"),
    ({"constraints": ["lr"]}, "the constraint 'lr' gives 0.1, not true or false"),
    ({"constraints": ["lr > 0.5"], "start_with": [{"lr": 0.2}]}, "start_with[0] does not satisfy the constraint 'lr >"),
    (
        {"constraints": ["[1].all(a, [1].all(b, [1].all(c, a > b + c)))"]},
        "has more than 2 of all, exists, map and filter",
    ),
    ({"constraints": ["lr > 0.1 || " * 50 + "true"]}, "constraints.0: must have at most 500 characters"),
    ({"space": {1: {"choice": [1]}}}, "space.1: must be a valid string"),
    ({"space": [1]}, "space: must be a valid dictionary"),
    ({"fixed": {"a-b": 1}}, "parameter names are identifiers"),
    ({"fixed": {"x": [[[[[1]]]]]}}, "fixed.x: lists must have at most 100 entries and 4 levels"),
    ({"fixed": {"x": float("inf")}}, "fixed.x: must be finite (got inf)"),
    ({"fixed": {"x": "a\ud800"}}, "fixed.x: must be text without NUL characters and lone surrogates"),
    ({"fixed": {"x": "a\x00"}}, "fixed.x: must be text without NUL characters and lone surrogates"),
    ({"\ud800": 1}, "must be a valid string"),
    ({"fixed": {"lr": 0.5}}, "lr: in both space and fixed"),
    ({"start_with": [{"lr": 2.0}]}, "start_with[0].lr: 2.0 is not between 0.1 and 1.0"),
    ({"start_with": [{"lr": "big"}]}, "start_with[0].lr: 'big' is not a number"),
    ({"start_with": [{"lr": True}]}, "start_with[0].lr: True is not a number"),
    ({"start_with": [{"depth": 2}]}, "start_with[0] has depth, which neither space nor fixed defines"),
    ({"start_with": [{}] * 21}, "start_with has 21 candidates, but the budget allows 20 trials"),
    ({"start_with": {"lr": 1}}, "start_with: must be a valid list"),
    ({"space": {"n": {"low": 1, "high": 9, "step": 2}}, "start_with": [{"n": 4}]}, "4 is not 1 plus a multiple of 2"),
    ({"space": {"n": {"low": 1, "high": 9}}, "start_with": [{"n": 4.0}]}, "4.0 is not an integer"),
    ({"space": {"n": {"choice": [1, "a"]}}, "start_with": [{"n": 2}]}, "2 is not one of 1, 'a'"),
    ({"space": {"n": {"choice": [1]}}, "start_with": [{"n": True}]}, "True is not one of 1"),
    ({"space": {"batch": {"low": 0, "high": 8}}}, "batch is the number of samples per optimizer step"),
    ({"space": {"batch": {"low": 1.0, "high": 8.0}}}, "an integer of at least 1, or largest; got 1.0"),
    ({"space": {"batch": {"choice": [8, "16"]}}}, "an integer of at least 1, or largest; got '16'"),
    ({"fixed": {"batch": True}}, "an integer of at least 1, or largest; got True"),
    ({"fixed": {"batch": 8, "largest_batch": 16}}, "need batch: largest, or scale_lr: adascale"),
    ({"fixed": {"batch": 8, "smallest_batch": 4}}, "need batch: largest, or scale_lr: adascale"),
    ({"fixed": {"batch": "largest", "scale_lr": "adascale"}}, "needs base_batch beside scale_lr: adascale"),
    ({"fixed": {"batch": 8, "smallest_batch": 4, "scale_lr": "adascale"}}, "needs base_batch beside"),
    ({"fixed": {"batch": "largest"}, "plan": {"micro_batch": 8}}, "both say how large the batch is: keep one"),
    ({"fixed": {"batch": "largest", "largest_batch": 8, "smallest_batch": 9}}, "is smaller than smallest_batch (9)"),
    (
        {"fixed": {"batch": 8, "smallest_batch": 16, "base_batch": 8, "scale_lr": "adascale"}},
        "smallest_batch (16) is larger than every batch of the study: no batch would shrink",
    ),
    (
        {"space": {"clip_norm": {"choice": [None, -1]}}},
        "clip_norm is the largest norm of the gradients",
    ),
    ({"fixed": {"precision": "fp8"}}, "precision is one of fp32, bf16, fp16, bf16-params; got 'fp8'"),
    ({"fixed": {"swa_start": 100}}, "swa_start (100) must be less than budget.steps"),
    ({"fixed": {"ema_warmup": "ratio"}}, "ema_warmup needs ema_decay"),
    ({"fixed": {"average_buffers": True}}, "average_buffers needs ema_decay or swa_start"),
    ({"fixed": {"swa_start": 1, "ema_decay": 0.9}}, "two ways to average the weights: keep one"),
    ({"fixed": {"reduce": "adasum", "scale_lr": "adascale"}}, "two ways to train with a larger batch: keep one"),
    ({"search": {"sampler": "grid"}}, "continuous or log: lr"),
    (
        {"search": {"sampler": "bayes"}},
        "search.sampler: must be one of tpe, random, grid, qmc, gp, cmaes, nsga2, nsga3",
    ),
    (
        {"search": {"history": [{"study": "a", "wieght": 1}]}},
        "search.history.0.wieght: unknown key; did you",
    ),
    (
        {"search": {"history": [3, "a"]}},
        "search.history.0: must be a mapping of study, weight (got 3); search.history.1",
    ),
    ({"search": {"filter": "flops"}}, "search.filter: must be a mapping of proxy, of (got 'flops')"),
    ({"search": {"filter": {"proxi": "flops"}}}, "search.filter.proxi: unknown key; did you mean proxy?"),
    ({"search": {"one_shot": True}}, "search.one_shot: must be a mapping of candidates, best, steps (got True)"),
    ({"budget": {"terminator": {"regrt": 1}}}, "budget.terminator.regrt: unknown key; did you mean regret?"),
    (
        {"search": {"history": [{"study": "a", "weight": 2}]}},
        "search.history.0.weight: must be less than or",
    ),
    ({"space": {"n": {**SGD, "prior": "sdg"}}}, "space.n: the prior 'sdg' is not one of 'sgd', 'adam'"),
    ({"space": {"n": {"low": 1, "high": 9, "prior": 10}}}, "space.n: the prior 10 is not between 1 and 9"),
    ({"space": {"n": {"low": 1, "high": 9, "prior": "x"}}}, "space.n.prior.mean: must be a number"),
    ({"space": {"n": {"low": 1, "high": 9, "prior": {"mean": 2, "sgma": 1}}}}, "space.n.prior.sgma: unknown key; did"),
    ({"space": {"n": {"low": 1, "high": 9, "prior": {"mean": 2, "sigma": 0}}}}, "space.n.prior.sigma: must be greater"),
    (
        {"space": {"n": {"low": 1, "high": 9, "log": True, "prior": {"mean": 2, "sigma": 0.5}}}},
        "the sigma of a log range is a factor greater than 1, got 0.5",
    ),
    (
        {"space": {"n": {**SGD, "prior": "sgd"}}, "search": {"sampler": "grid"}},
        "grid search tries every point, and",
    ),
    ({"search": {"sampler": 3}}, "search.sampler: must be one of tpe"),
    ({"search": {"sampler": {"name": "tpe", "grop": True}}}, "search.sampler.grop: unknown key; did you mean group?"),
    ({"search": {"sampler": {"name": "tpe", "group": True, "multivariate": False}}}, "group needs multivariate"),
    ({"search": {"sampler": {"name": "random", "n": 1}}}, "search.sampler.n: unknown key; allowed keys: name"),
    ({"search": {"sampler": {"name": "nsga2", "population_size": 1}}}, "search.sampler.population_size: must be gr"),
    ({"search": {"sampler": {"name": "nsga3", "crossover": "spx", "population_size": 2}}}, "spx needs a population"),
    ({"search": {"sampler": {"name": "cmaes", "lr_adapt": True, "use_separable_cma": True}}}, "exclude each other"),
    (
        {"space": {"n": SGD}, "search": {"sampler": "grid", "filter": {"proxy": "flops"}}},
        "grid search tries every point, and has no use for a filter",
    ),
    ({"search": {"sampler": "brute_force"}}, "brute_force search needs choices or stepped ranges; continuous or log"),
    (
        {"space": {"n": SGD}, "search": {"sampler": "brute_force"}, "constraints": ["n == 'sgd'"]},
        "brute_force knows no constraints; grid does",
    ),
    ({"search": {"seed": -1}}, "search.seed: "),
    ({"search": {"seed": True}}, "search.seed: must be an integer (got True)"),
    ({"search": "tpe"}, "search: must be a mapping of sampler, seed, history, filter, one_shot (got 'tpe')"),
    (
        {"search": {"sampler": "grid"}, "space": {n: {"low": 0, "high": 999} for n in "ab"}},
        "the grid has 1000000 points",
    ),
    ({"budget": {"trials": 0}}, "budget.trials: must be greater than or equal to 1 (got 0)"),
    ({"budget": {"trials": 10**6}}, "budget.trials: must be less than or equal to 100000"),
    ({"budget": {"trials": 10**21}}, "budget.trials: must lie within ±2^53 (got 1000000000000000000000)"),
    ({"budget": {"trials": True}}, "budget.trials: must be an integer (got True)"),
    ({"budget": {"trials": "3"}}, "budget.trials: must be an integer (got '3')"),
    ({"budget": {"steps": 1.5}}, "budget.steps: must be an integer (got 1.5)"),
    ({"budget": {"steps": 10, "report_every": 11}}, "otherwise nothing is reported"),
    ({"budget": {"steps": 10**9, "report_every": 1}}, "set report_every to 10000 or more"),
    ({"budget": {"steps": 100, "epochs": 3}}, "keep one of them"),
    ({"budget": {"epochs": 0}}, "greater than or equal to 1"),
    ({"budget": {"epochs": 3}, "stopping": {"rule": "asha", "min_steps": 3}}, "must be less than budget.epochs"),
    ({"budget": {"max_concurrent": 0}}, "budget.max_concurrent: "),
    ({"budget": {"hours": 3}}, "budget.hours: unknown key; allowed keys: trials, "),
    (
        {"stopping": {"rule": "medain"}},
        "stopping.rule: must be one of asha, hyperband, percentile, median, patience, threshold, pbt, none (got",
    ),
    (
        {"stopping": [{"rule": "pbt", "mutate": ["lr"]}, {"rule": "pbt", "mutate": ["lr"], "interval": 50}]},
        "stopping: 2 rules pbt; a trial can be in one population only, so keep one",
    ),
    ({"stopping": {"reduction_factor": 1}}, "stopping.reduction_factor: "),
    ({"repeats": 0}, "repeats: must be greater than or equal to 1"),
    ({"repeats": 2, "stopping": {"rule": "pbt", "mutate": ["lr"]}}, "repeats: pbt copies trials and changes"),
    ({"repeats": 2, "stopping": {"rule": "patience"}}, "repeats: patience completes trials at different steps"),
    ({"stopping": [{"rule": "percentile", "percentile": 0}]}, "stopping.0.percentile: must be greater than 0 (got 0)"),
    ({"stopping": {"rule": "threshold", "lover": 1}}, "stopping.lover: unknown key; did you mean lower?"),
    ({"stopping": {"rule": "patience"}, "budget": {"steps": 5000, "report_every": 1}}, "report_every to 5 or more"),
    ({"stopping": {"min_steps": 100}}, "stopping.min_steps (100) must be less than budget.steps (100)"),
    ({"objective": {"metric": ""}}, "objective.metric: "),
    ({"objective": {"metric": "a", "direction": "up"}}, "objective.direction: must be 'maximize' or 'minimize'"),
    ({"objective": None}, "objective: must be a mapping of metric, direction, at (got None)"),
    ({"name": ""}, "name: "),
    ({"name": "   "}, "name: must be printable text on one line"),
    ({"name": "a\nb"}, "name: must be printable text on one line"),
    ({"name": "x" * 101}, "name: "),
    ({"name": 3}, "name: must be a valid string (got 3)"),
    ({"stopping": []}, "stopping: must have at least 1 item (got [])"),
    ({"space": {"a\n\x1b[31m": {"choice": [1]}}}, r"space.a\n\x1b[31m: parameter names are identifiers"),
    ({"workload": "../evil.py:X"}, "neither a built-in workload nor FILE.py:Class"),
    ({"workload": "/abs.py:X"}, "neither a built-in workload"),
    ({"workload": "os; rm"}, "neither a built-in workload"),
    ({"workload": "model.py"}, "neither a built-in workload"),
    ({"spaec": {}}, "spaec: unknown key; did you mean space?"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=[ascii(message[:40]) for _, message in WRONG])
def test_what_is_wrong_is_said_with_its_place(changes: dict[str, Any], message: str) -> None:
    assert message in refusal(study(**changes))


def test_several_mistakes_are_told_at_once() -> None:
    message = refusal({"objective": {}, "space": {"x": 1}, "budget": {"trials": 0, "steps": 0}, "colour": "red"})
    assert message.startswith("the study is not valid: name is missing; workload is missing; ")
    assert message.endswith("; and 2 more")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fixed": {f"k{number}": [] for number in range(60_000)}}, "fixed: must have at most 100 entries, not 60000"),
        ({"start_with": [{f"k{number}": 1 for number in range(80_000)}]}, "at most 200 entries, not 80000"),
        ({"space": {"k": {"choice": [[]] * 60_000}}}, "space.k.choice: must have at most 1000 entries, not 60000"),
        ({f"k{number}": 1 for number in range(60_000)}, "; and 59995 more"),
        ({"start_with": [{f"k{number}": 1 for number in range(150)}]}, "k106 and 140 more, which neither"),
    ],
    ids=["fixed", "start", "choice", "unknown", "undefined"],
)
def test_a_study_with_thousands_of_mistakes_gets_a_short_answer(changes: dict[str, Any], words: str) -> None:
    message = refusal(study(**changes))
    assert words in message and len(message) < 1200
