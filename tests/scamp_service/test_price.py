from __future__ import annotations

import json
from pathlib import Path

import pytest

from estimators.model import Plan
from scamp_service.errors import InvalidInput
from scamp_service.price import plan_of
from tests.processes import scamp


def test_each_stage_is_priced_and_together_they_have_all_parameters(tmp_path: Path) -> None:
    command = ("estimate", "vit_digits", "--param", "depth=4", "--json", "--plan")
    done = scamp(tmp_path, *command, "micro_batch=4, num_micro_batches=3, pp=2, recompute=true")
    (priced,) = json.loads(done.stdout)
    assert priced["plan"] == Plan(4, 3, recompute=True, pp=2).to_json()
    for stage in priced["stages"]:
        assert sum(stage["parts"].values()) == stage["peak_bytes"]
    (whole,) = json.loads(scamp(tmp_path, *command, "micro_batch=4").stdout)
    parameters = [stage["parts"]["parameters"] for stage in priced["stages"]]
    assert len(parameters) == 2 and sum(parameters) == whole["stages"][0]["parts"]["parameters"]
    refused = scamp(tmp_path, *command, "micro_batch=4,tp=3")
    assert refused.returncode == 2 and "4 heads cannot be divided evenly over 3" in refused.stderr


def test_a_price_on_a_gpu_says_that_nobody_has_verified_it(tmp_path: Path) -> None:
    command = ("estimate", "vit_digits", "--plan", "micro_batch=4,tp=2", "--device", "H100")
    done = scamp(tmp_path, *command)
    assert "unverified: ScaMP has not measured any H100" in done.stdout
    (priced,) = json.loads(scamp(tmp_path, *command, "--json").stdout)
    assert priced["device"] == {"name": "H100", "verified": False}


def test_all_axes_of_a_plan_can_be_named() -> None:
    text = "micro_batch=4,dp_shard=2,dp_replicate=2,reshard=false,recompute=true,selective=true"
    wanted = Plan(4, dp_shard=2, dp_replicate=2, reshard=False, recompute=True, selective=True)
    assert plan_of(text) == wanted


def test_replicas_cost_a_rank_what_its_shards_cost(tmp_path: Path) -> None:
    command = ("estimate", "vit_digits", "--json", "--plan")
    shards, replicas = (
        json.loads(scamp(tmp_path, *command, f"micro_batch=4,dp_shard=2{more}").stdout)[0]
        for more in ("", ",dp_replicate=2")
    )
    assert replicas["plan"] == shards["plan"] | {"dp_replicate": 2}
    for category in ("parameters", "optimizer", "batch"):
        assert replicas["stages"][0]["parts"][category] == shards["stages"][0]["parts"][category]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("tp=2", "missing 1 required positional argument: 'micro_batch'"),
        ("micro_batch=4,tpp=2", "there is no 'tpp'"),
        ("micro_batch=many", "invalid literal"),
        ("micro_batch=4,pp=2", "1F1B needs at least 2 micro-batches"),
        ("micro_batch", "write micro_batch=8,tp=2 or others of"),
    ],
)
def test_a_plan_that_is_none_is_refused_with_what_to_write(text: str, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        plan_of(text)
