"""The words of a plan say what is divided, recomputed and limiting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from estimators.model import Plan
from placement.exact.best_plans import ExactSearch
from placement.exact.plan_words import details, in_full, reasons, ways_in_words
from placement.exact.uneven_plans import best_uneven
from placement.option import Option
from placement.planning.question import Question
from tests.placement.exact.test_best_plans import UNLIKE, cluster, piped, searched
from tests.placement.exact.test_candidate_ways import gpt


def with_stage(option: Option, plan: Plan, **changes: Any) -> Option:
    """The option with another plan, and changes of its first stage."""
    stages = (replace(option.refinement.stages[0], **changes),)
    return replace(option, plan=plan, refinement=replace(option.refinement, stages=stages))


def test_recompute_of_some_blocks_says_of_how_many() -> None:
    option = searched(30_000, 1).best()[0]
    recomputed = (0, 1, 2, 3, 4)
    assert (
        in_full(with_stage(option, Plan(1, recompute=True), recomputed=recomputed))
        == "1 rank, recompute of 5 of 12 blocks"
    )
    selective = with_stage(option, Plan(1, recompute=True, selective=True), recomputed=recomputed)
    assert in_full(selective) == "1 rank, selective: 5 of 12 blocks"
    every = with_stage(option, Plan(1, recompute=True), recomputed=tuple(range(12)))
    assert ways_in_words(every) == "1 rank, recompute" and not list(details(every, with_devices=False))
    assert in_full(option) == "1 rank"
    costs = {"saved_bytes": 3 << 29, "pass_seconds": 1.2, "recompute_seconds": 0.2}
    text = list(reasons(with_stage(option, Plan(1, recompute=True), recomputed=recomputed, **costs)))
    assert "recompute of 5 of 12 blocks saves 1.5 GiB on a rank and makes passes 20 % slower" in text


def test_reasons_say_what_is_divided_and_what_bounds_the_step() -> None:
    text = "\n".join(reasons(piped(30_000, 4, 1e7)))
    assert "stages have" in text and "nothing is recomputed: the fullest rank reserves" in text
    assert "bounds the step:" in text
    assert "is the slowest" in text
    assert "bubbles" in text
    option = searched(30_000, 1).best()[0]
    assert next(reasons(option)) == "one rank has everything"
    endless = with_stage(option, option.plan, offered_mib=2**40)
    assert any(
        line.endswith(f"the fullest rank reserves {option.prediction.reserved_mib} MiB") for line in reasons(endless)
    )
    assert list(reasons(replace(option, plan=Plan(1, dp_shard=2, tp=4))))[:2] == [
        "2 ranks divide the batch, and each holds a shard of the model's states",
        "4 ranks divide the layers of each block",
    ]


def test_unlike_devices_are_named_with_their_samples() -> None:
    question = Question(gpt(), 64, cluster(fast=(2, 30_000), slow=(2, 15_000)))
    option = best_uneven(question, UNLIKE)
    assert option is not None and option.refinement.shares is not None
    per_kind = " + ".join(str(sum(shares)) for shares in option.refinement.shares.samples.values())
    assert next(details(option, with_devices=True)) == f"{per_kind} samples"
    assert in_full(option).endswith("on 2 fast + 2 slow")
    assert any("even shares would" in line for line in reasons(option))
    both = ExactSearch(question, UNLIKE).best()[-1]
    assert any("blocks on fast, slow" in line or "blocks on slow, fast" in line for line in reasons(both))
