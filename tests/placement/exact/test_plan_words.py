from __future__ import annotations

from dataclasses import replace

from estimators.axes import Spread
from placement.exact.best_plans import PlanSearch
from placement.exact.plan_words import details, in_full, reasons, ways_in_words
from placement.exact.uneven_plans import best_uneven
from tests.placement.exact.test_best_plans import UNLIKE, cluster, pipeline, searched
from tests.placement.exact.test_candidate_ways import gpt


def test_recompute_of_some_blocks_says_of_how_many() -> None:
    one = searched(30_000, 1).best()[0]
    stage = replace(one.stages[0], recomputed=(0, 1, 2, 3, 4))
    some = replace(one, spread=Spread(recompute=True), stages=(stage,))
    assert in_full(some) == "1 rank, recompute of 5 of 12 blocks"
    assert in_full(replace(some, spread=Spread(recompute=True, selective=True))) == "1 rank, selective: 5 of 12 blocks"
    every = replace(some, stages=(replace(stage, recomputed=tuple(range(12))),))
    assert ways_in_words(every) == "1 rank, recompute" and not list(details(every, with_devices=False))
    assert in_full(one) == "1 rank"
    text = list(
        reasons(replace(some, stages=(replace(stage, saved_bytes=3 << 29, pass_seconds=1.2, recompute_seconds=0.2),)))
    )
    assert "recompute of 5 of 12 blocks saves 1.5 GiB on a rank and makes passes 20 % slower" in text


def test_reasons_say_what_is_divided_and_what_bounds_the_step() -> None:
    text = "\n".join(reasons(pipeline(30_000, 4, 1e7)))
    assert "stages have" in text and "nothing is recomputed: the fullest rank reserves" in text
    assert "bounds the step:" in text and "is the slowest" in text and "bubbles" in text
    whole = searched(30_000, 1).best()[0]
    assert next(reasons(whole)) == "one rank has everything"
    endless = replace(whole, stages=(replace(whole.stages[0], offered_mib=2**40),))
    assert any(
        line.endswith(f"the fullest rank reserves {whole.prediction.reserved_mib} MiB") for line in reasons(endless)
    )
    shards = replace(whole, spread=Spread(dp_shard=2, tp=4))
    assert list(reasons(shards))[:2] == [
        "2 ranks divide the batch, and each holds a shard of the model's states",
        "4 ranks divide the layers of each block",
    ]


def test_unlike_devices_are_named_with_their_samples() -> None:
    devices = cluster(fast=(2, 30_000), slow=(2, 15_000))
    one = best_uneven(gpt(), 64, devices, UNLIKE)
    assert one is not None
    per_kind = " + ".join(str(sum(shares)) for shares in one.samples.values())
    assert next(details(one, with_devices=True)) == f"{per_kind} samples"
    assert in_full(one).endswith("on 2 fast + 2 slow")
    assert any("even shares would" in line for line in reasons(one))
    both = PlanSearch(gpt(), 64, devices, UNLIKE).best()[-1]
    assert any("blocks on fast, slow" in line or "blocks on slow, fast" in line for line in reasons(both))
