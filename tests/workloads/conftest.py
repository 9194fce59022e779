"""Four ranks, each a process of its own: memory limits and process groups stay out of pytest's process."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from estimators.model import Plan
from tests.services.warm import Warm
from tests.waiting import PATIENCE_SECONDS


class Rank:
    """A fork of the warm process that takes one job a line."""

    def __init__(self, warm: Warm) -> None:
        (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
        self._fork = warm.start("tests.workloads.one_rank", files=[theirs_in, theirs_out, 2])
        os.close(theirs_in)
        os.close(theirs_out)
        self._jobs, self._answers = os.fdopen(ours_out, "w"), os.fdopen(ours_in)

    def order(self, job: dict[str, Any]) -> None:
        self._jobs.write(json.dumps(job) + "\n")
        self._jobs.flush()

    def answer(self) -> dict[str, Any]:
        line = self._answers.readline()
        assert line, f"the rank died with {self._fork.wait(PATIENCE_SECONDS)}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._fork.close()
        self._jobs.close()
        self._answers.close()


class Ranks:
    def __init__(self, folder: Path, warm: Warm) -> None:
        self.folder, self.jobs = folder, 0
        self._warm, self._ranks = warm, list[Rank]()

    def train(self, plan: Plan, steps: int = 4, **options: Any) -> list[dict[str, Any]]:
        """The result of each rank of the gang; ``params`` and the fields of ``Job`` are options.

        A ``checkpoint_root`` may contain ``{rank}``.
        """
        self.jobs += 1
        order = {
            "workload": "vit_digits",
            "code_dir": None,
            "params": {"depth": 2, "width": 32},
            "plan": plan.to_json(),
            "seed": 0,
            "steps": steps,
            "report_every": 2,
            "budget_bytes": None,
            "checkpoint_root": str(self.folder / f"checkpoints-{self.jobs}"),
            "resume_step": 0,
            "donor_step": 0,
            "donor_params": {},
            "metric": "loss",
            "store": str(self.folder / f"store-{self.jobs}"),
            "stop_after": None,
            "stopped_rank": 0,
            "keeps": False,
            "guard": True,
            "attempt": 1,
            "is_mirrored": False,
            **options,
        }
        while len(self._ranks) < plan.world_size:
            self._ranks.append(Rank(self._warm))
        gang = self._ranks[: plan.world_size]
        for number, rank in enumerate(gang):
            folder = order["checkpoint_root"].replace("{rank}", str(number))
            rank.order({**order, "rank": number, "checkpoint_root": folder})
        return [rank.answer() for rank in gang]

    def curve(self, plan: Plan, steps: int = 4, **options: Any) -> list[tuple[int, dict[str, float]]]:
        """The reports of a training that ends well."""
        answers = self.train(plan, steps, **options)
        assert [answer["traceback"] for answer in answers] == [""] * plan.world_size
        return [(step, values) for step, values in answers[0]["reports"]]

    def close(self) -> None:
        for rank in self._ranks:
            rank.close()


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Iterator[Ranks]:
    started = Ranks(tmp_path_factory.mktemp("ranks"), warm)
    yield started
    started.close()
