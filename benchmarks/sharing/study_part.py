"""A study of adapters on one device: packed, one after another, and in processes side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.living.service import Ran, serving
from benchmarks.sharing.drawn import FOLDER, WORKLOAD

TITLE = "A study of adapters"
HEADER = ("seconds", "processor s", "/ one by one", "/ side by side", "refills", "idle slots", "how")
DEVICE_MIB, MEMBERS = 512, 8
ABOUT = f"""\
The same adapters of one model, in a user's file, in a service with one virtual device of {DEVICE_MIB} MiB: packed, one
trial at a time, and up to four at a time in processes of their own. Seconds are those from the submission to the end,
in a service that has started; *processor* are those of ranks. With *ASHA* most trials are stopped early. A pack has
{MEMBERS} slots: *refills* are trials that took the slot of one that had ended, and *idle slots* the share of slot
seconds without a trial, from the first moment in which all were taken until the last trial had one."""


@dataclass(frozen=True)
class Case:
    """Some adapters, in all three ways."""

    num_trials: int
    steps: int
    batch: int
    asha: bool = False

    def __str__(self) -> str:
        return f"{self.num_trials} trials of {self.steps} steps, batch {self.batch}{', ASHA' if self.asha else ''}"

    def spec(self, **changes: Any) -> dict[str, Any]:
        budget = {"trials": self.num_trials, "steps": self.steps, "report_every": self.steps // 4}
        return {
            "name": "adapters",
            "workload": WORKLOAD,
            "objective": {"metric": "loss", "direction": "minimize"},
            "space": {
                "rank": {"choice": [1, 2, 4, 8]},
                "lr": {"low": 1e-3, "high": 3e-2, "log": True},
                "decay": {"low": 0.0, "high": 0.1},
            },
            "fixed": {"batch": self.batch},
            "search": {"sampler": "random", "seed": 1},
            "stopping": {"rule": "asha", "min_steps": self.steps // 4} if self.asha else {"rule": "none"},
            **changes,
            "budget": {**budget, **changes.get("budget", {})},
        }


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds of the study, and processor seconds of its ranks: packed, one by one, and side by side."""

    seconds: Sequence[float]
    rank_seconds: Sequence[float]
    refills: int
    idle_share: float
    asha: bool

    def row(self) -> list[str]:
        packed, single, beside = self.seconds
        return [
            f"{packed:.1f}", f"{self.rank_seconds[0]:.1f}", f"{packed / single:.2f}", f"{packed / beside:.2f}",
            str(self.refills), f"{self.idle_share:.1%}",
        ]  # fmt: skip


def cases(quick: bool, seed: int) -> Sequence[Case]:
    return [Case(3, 8, 2)] if quick else [Case(32, 60, 2), Case(32, 60, 2, asha=True)]


def figures(results: Sequence[Result]) -> Mapping[str, Any]:
    keys: dict[str, Any] = {}
    for result in results:
        prefix = "pack_asha" if result.asha else "pack"
        packed, single, beside = result.seconds
        keys |= {f"{prefix}_seconds_ratio": packed / single, f"{prefix}_vs_shared_ratio": packed / beside}
        keys[f"{prefix}_processor_ratio"] = result.rank_seconds[0] / result.rank_seconds[1]
    if results:
        keys["refills"] = min(result.refills for result in results)
        keys["idle_slot_pct"] = 100 * max(result.idle_share for result in results)
    return keys


def measure(case: Case, seconds: float) -> Result:
    ways = [case.spec(pack=MEMBERS), case.spec(budget={"max_concurrent": 1}), case.spec()]
    runs = [_run(spec, seconds) for spec in ways]
    spans = [(a.pack, a.created_at, a.ended_at or math.inf) for a in runs[0].attempts if a.pack]
    refills, idle_share = slots(spans)
    return Result(
        [run.seconds for run in runs], [run.processor["ranks"] for run in runs], refills, idle_share, case.asha
    )


def slots(spans: Sequence[tuple[str, float, float]]) -> tuple[int, float]:
    """How many trials followed one that had ended in their pack, and the share of slots that were idle while trials
    waited for one; of each trial its pack, its begin and its end."""
    refills = sum(any(other == pack and end <= begin for other, _, end in spans) for pack, begin, _ in spans)

    def num_taken(time: float) -> int:
        return sum(begin <= time < end for _, begin, end in spans)

    begins = sorted(begin for _, begin, _ in spans)
    full = next((begin for begin in begins if num_taken(begin) >= MEMBERS), None)
    if full is None or full == begins[-1]:
        return refills, 0.0
    times = sorted({full, begins[-1], *(t for span in spans for t in span[1:] if full < t < begins[-1])})
    taken = sum(num_taken(begin) * (end - begin) for begin, end in pairwise(times))
    return refills, 1 - taken / (MEMBERS * (begins[-1] - full))


def _run(spec: dict[str, Any], seconds: float) -> Ran:
    with serving(virtual_devices=1, device_mib=DEVICE_MIB) as served:
        return served.run(spec, seconds, FOLDER)
