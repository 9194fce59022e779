"""The cases are enough, the last ones are drawn, and every workload evaluates each sample."""

from __future__ import annotations

import torch

from benchmarks.covering.evaluated import MODELS
from benchmarks.covering.parts import evaluations_part


def test_there_are_enough_cases_and_the_seed_draws_the_last_ones() -> None:
    first, second = evaluations_part.cases(False, 0), evaluations_part.cases(False, 1)
    assert len(first) == len({str(case) for case in first}) >= 8 + evaluations_part.NUM_DRAWN
    num = len(first) - evaluations_part.NUM_DRAWN
    assert first[:num] == second[:num] and first[num:] != second[num:]
    assert {case.params["model"] for case in first} == set(MODELS)
    assert any(case.plan.dp_shard == 2 for case in first[:num])


def test_every_workload_evaluates_each_sample() -> None:
    for name, kind in MODELS.items():
        workload = kind({"model": name, "width": 8, "depth": 2})
        with torch.no_grad():
            metrics = workload.evaluate(workload.build_model().eval(), workload.eval_batch(torch.arange(3)))
        assert all(values.shape == (3,) and values.isfinite().all() for values in metrics.values()), name
