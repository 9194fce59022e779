"""Trains drawn programs as studies do, with an interruption, and compares each with one rank that nobody interrupts.

A program gets a plan that divides its batch, unless its trace says why it may not be divided. If the training finds
that its curve depends on the division, it begins anew under a plan that does not divide. It is interrupted at a drawn
step and resumes in a process of its own.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.curves.forks import CRASHED, HANGS, in_forks
from benchmarks.curves.programs import program
from benchmarks.curves.running import Idiom, train_until
from estimators.model import Layout, Plan
from workloads.sandbox.answers import answer

BATCH, STEPS = 16, 8
PLANS = (
    Plan(4, num_micro_batches=4),
    Plan(8, num_micro_batches=2),
    Plan(8, dp_shard=2),
    Plan(8, dp_replicate=2),
    Plan(4, num_micro_batches=2, dp_shard=2),
    Plan(8, num_micro_batches=2, recompute=True),
)
SECONDS = 120.0


def asked(idiom: Idiom) -> dict[str, Any]:
    """Why a study would not divide a batch of the program, as ``indivisible``, or not train it, as ``refused``."""
    request = {
        "ask": "trace",
        "workload": idiom.workload,
        "params": {},
        "code_dir": str(idiom.folder),
        "code_zip": None,
        "on_cuda": False,
        "equal_blocks": None,
        "layout": asdict(Layout()),
    }
    answered = answer(request)
    return {"refused": answered["error"]} if "error" in answered else {"indivisible": answered["indivisible"]}


def outcome_of(number: int, folder: Path) -> tuple[str, str, float]:
    """(kind, detail, largest difference) of a program: equal, wrong, refused, failed or hangs.

    The detail of an equal one says how it came to its plan.
    """
    draws = random.Random(f"plans {number}")
    plan, kill = draws.choice(PLANS), draws.randrange(1, STEPS)
    folder.mkdir()
    (folder / "drawn.py").write_text(program(number))
    idiom = Idiom(folder, "drawn.py:Program")
    (answered,) = in_forks([partial(asked, idiom)], SECONDS)
    if not isinstance(answered, dict):
        return "failed", str(answered), 0.0
    if "refused" in answered:
        return "refused", answered["refused"], 0.0
    how = f"{plan}, resumed at {kill}"
    if answered["indivisible"]:
        plan, how = Plan(BATCH), f"its trace: {answered['indivisible']}"
    (reference,) = in_forks([partial(train_until, idiom, Plan(BATCH), 0, folder / "whole", (STEPS,), False)], SECONDS)
    ranks = _trained(idiom, plan, folder / "divided", kill)
    alarm = next((rank["alarm"] for rank in ranks if "alarm" in rank), "")
    if alarm:
        how = f"alarm: {alarm}"
        ranks = _trained(idiom, Plan(BATCH), folder / "again", kill)
    shutil.rmtree(folder)
    return _compared(ranks, reference, how)


def _trained(idiom: Idiom, plan: Plan, folder: Path, kill: int) -> list[dict[str, Any]]:
    ranks = [partial(train_until, idiom, plan, rank, folder, (kill, STEPS), True) for rank in range(plan.world_size)]
    answers = in_forks(ranks, SECONDS)
    return [rank if isinstance(rank, dict) else {rank: rank} for rank in answers]


def _compared(ranks: Sequence[dict[str, Any]], reference: Any, how: str) -> tuple[str, str, float]:
    for kind, name in ((HANGS, "hangs"), ("refused", "refused"), ("error", "failed"), (CRASHED, "failed")):
        if details := [rank[kind] for rank in ranks if kind in rank]:
            return name, details[0], 0.0
    if not isinstance(reference, dict) or "values" not in reference:
        return "failed", f"one rank: {reference}", 0.0
    pairs = [
        (ours[name], other[name])
        for ours, other in zip(ranks[0]["values"], reference["values"], strict=True)
        for name in other
    ]
    difference = max(abs(ours - other) / max(1.0, abs(other)) for ours, other in pairs)
    return ("equal" if difference <= 1e-4 else "wrong"), how, difference
