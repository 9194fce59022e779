"""A plan that is named on the command line is priced stage by stage, or refused with a reason."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from estimators.model import Plan
from scamp_service.cli.named_plan import plan_of
from scamp_service.errors import InvalidInput
from scamp_service.sizing.estimate import Estimator
from scamp_service.sizing.tracing.options import Tracing
from tests.conftest import Scamp
from tests.plans import plans

pytestmark = pytest.mark.usefixtures("warm_traces")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def estimator(folder: Path) -> Iterator[Estimator]:
    with Estimator("vit_digits", None, Tracing(folder / "profiles")) as estimator:
        yield estimator


@pytest.mark.full
def test_each_stage_is_priced_and_together_they_have_all_parameters(
    estimator: Estimator, folder: Path, scamp: Scamp
) -> None:
    text = "micro_batch=4, num_micro_batches=3, pp=2, recompute=true"
    stages = estimator.predict({"depth": 4}, plan_of(text))
    for stage in stages:
        assert sum(stage.parts.values()) == stage.peak_bytes
    (full,) = estimator.predict({"depth": 4}, Plan(4))
    parameters = [stage.parts["parameters"] for stage in stages]
    assert len(parameters) == 2 and sum(parameters) == full.parts["parameters"]
    done = scamp(folder, "estimate", "vit_digits", "--param", "depth=4", "--json", "--plan", text)
    (priced,) = json.loads(done.stdout)
    assert priced["plan"] == Plan(4, 3, recompute=True, pp=2).to_json()
    assert [stage["parts"] for stage in priced["stages"]] == [dict(stage.parts) for stage in stages]


def test_a_plan_that_divides_nothing_evenly_is_refused(estimator: Estimator) -> None:
    with pytest.raises(InvalidInput, match="4 heads cannot be divided evenly over 3"):
        estimator.predict({"depth": 4}, Plan(4, tp=3))


@pytest.mark.full
def test_a_price_on_a_gpu_says_that_nobody_has_verified_it(folder: Path, scamp: Scamp) -> None:
    command = ("estimate", "vit_digits", "--plan", "micro_batch=4,tp=2", "--device", "H100")
    done = scamp(folder, *command)
    assert "unverified: ScaMP has not compared these peaks with measurements on a H100" in done.stdout
    (priced,) = json.loads(scamp(folder, *command, "--json").stdout)
    assert priced["device"] == {"name": "H100", "verified": False}


@given(plans())
def test_every_field_can_be_named(plan: Plan) -> None:
    def text(value: Any) -> str:
        return "-".join(map(str, value)) if isinstance(value, list) else str(value)

    assert plan_of(", ".join(f"{name}={text(value)}" for name, value in plan.to_json().items())) == plan
    assert plan_of(json.dumps(plan.to_json())) == plan, "as scamp plan --json prints it"


def test_fields_that_are_not_named_have_their_defaults() -> None:
    text = "micro_batch=4,dp_shard=2,dp_replicate=2,reshard=false,recompute=true,selective=true"
    plan = Plan(4, dp_shard=2, dp_replicate=2, reshard=False, recompute=True, selective=True)
    assert plan_of(text) == plan


@pytest.mark.full
def test_replicas_cost_a_rank_what_its_shards_cost(estimator: Estimator) -> None:
    (shards,) = estimator.predict({}, Plan(4, dp_shard=2))
    (replicas,) = estimator.predict({}, Plan(4, dp_shard=2, dp_replicate=2))
    for category in ("parameters", "optimizer", "batch"):
        assert replicas.parts[category] == shards.parts[category]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("tp=2", "missing 1 required positional argument: 'micro_batch'"),
        ("micro_batch=4,tpp=2", "a plan has no field 'tpp'"),
        ("micro_batch=many", "invalid literal"),
        ("micro_batch=4,layouts=2", "a plan has no field 'layouts'"),
        ("micro_batch=4,pp=2", "1F1B needs at least 2 micro-batches"),
        ("micro_batch", "write for example micro_batch=8,tp=2; the fields are "),
    ],
)
def test_a_plan_that_is_none_is_refused_with_what_to_write(text: str, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        plan_of(text)
