"""Options that are read back are shown as they were written, whatever was known of them."""

from __future__ import annotations

import json
from itertools import product

import pytest

from estimators.model import MIB, Plan, Prediction
from placement.option import Evidence, Option
from scamp_service.store.options import option_json, option_of

PLANS = [Plan(8, 4), Plan(4, 2, dp_shard=2, recompute=True, evaluation_batch=2), Plan(1, 4, pp=4)]
PREDICTIONS = [
    Prediction(90 * MIB),
    Prediction(200 * MIB, margin_bytes=1),
    Prediction(150 * MIB, extra_bytes=7, evaluation_bytes=160 * MIB),
]


@pytest.mark.parametrize("evidence", Evidence)
def test_an_option_that_was_read_back_has_the_same_json(evidence: Evidence) -> None:
    for plan, prediction, seconds in product(PLANS, PREDICTIONS, [None, 0.1]):
        if evidence is Evidence.STATES and prediction.reserved_mib <= 100:
            continue  # an option of states alone is always a refusal
        written = option_json(Option(plan, prediction, 100, evidence, seconds, 0.25, 1.5), PLANS[0])
        read = option_of(json.loads(json.dumps(written)))
        assert option_json(read, PLANS[0]) == written
        assert read.evidence is evidence
        assert read.plan == plan
        assert read.prediction == prediction
