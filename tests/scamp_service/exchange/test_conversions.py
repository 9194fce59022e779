"""Search spaces of Optuna and Ray Tune become those of a study file with the same values, or are refused."""

from __future__ import annotations

from typing import Any

import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from ray import tune

from scamp_service.errors import InvalidInput
from scamp_service.exchange.conversions import space_of_distributions, space_of_tune
from scamp_service.exchange.optuna_space import OptunaSpace

DISTRIBUTIONS: dict[str, BaseDistribution] = {
    "lr": FloatDistribution(1e-5, 0.1, log=True),
    "dropout": FloatDistribution(0.0, 0.5, step=0.25),
    "depth": IntDistribution(1, 12),
    "width": IntDistribution(32, 128, step=32),
    "batch": IntDistribution(1, 64, log=True),
    "optimizer": CategoricalDistribution(["sgd", None, True, 0.5]),
}


def test_distributions_of_optuna_become_a_space_and_back() -> None:
    space = space_of_distributions(DISTRIBUTIONS)
    assert space["lr"] == {"low": 1e-5, "high": 0.1, "log": True}
    assert space["width"] == {"low": 32, "high": 128, "step": 32}
    assert OptunaSpace({"space": space}).distributions == DISTRIBUTIONS


def test_a_search_space_of_tune_becomes_a_space_and_fixed_parameters() -> None:
    space, fixed = space_of_tune(
        {
            "lr": tune.loguniform(1e-4, 1e-1),
            "momentum": tune.uniform(0.1, 0.9),
            "dropout": tune.quniform(0.0, 0.4, 0.1),
            "depth": tune.randint(1, 12),
            "width": tune.qrandint(32, 128, 32),
            "hidden": tune.lograndint(8, 1024),
            "optimizer": tune.choice(["sgd", "adam"]),
            "seed": tune.grid_search([1, 2]),
            "epochs": 10,
            "net": {"kernel": tune.choice([[3, 3], [5, 5]]), "bias": True},
        }
    )
    assert space == {
        "lr": {"low": 1e-4, "high": 1e-1, "log": True},
        "momentum": {"low": 0.1, "high": 0.9},
        "dropout": {"low": 0.0, "high": 0.4, "step": 0.1},
        "depth": {"low": 1, "high": 11},
        "width": {"low": 32, "high": 128, "step": 32},
        "hidden": {"low": 8, "high": 1023, "log": True},
        "optimizer": {"choice": ["sgd", "adam"]},
        "seed": {"choice": [1, 2]},
        "net_kernel": {"choice": [[3, 3], [5, 5]]},
    }
    assert fixed == {"epochs": 10, "net_bias": True}
    assert set(OptunaSpace({"space": space}).distributions) == set(space), "a study may have it"


@pytest.mark.parametrize("domain", [tune.sample_from(lambda spec: 1), tune.randn(0.0, 1.0), tune.qloguniform(1, 8, 1)])
def test_what_has_no_counterpart_is_refused_by_name(domain: Any) -> None:
    with pytest.raises(InvalidInput, match="net_x"):
        space_of_tune({"net": {"x": domain}})
