"""Four warm ranks, each a process of its own: memory limits and process groups stay out of pytest's process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from estimators.model import Plan

ROOT = Path(__file__).parents[2]


class Ranks:
    def __init__(self, folder: Path) -> None:
        self.folder, self.jobs = folder, 0
        self.processes: list[subprocess.Popen[str]] = []

    def train(self, plan: Plan, steps: int = 4, **options: Any) -> list[dict[str, Any]]:
        """What each rank of the gang says of its end; ``params`` and the fields of ``Job`` are options."""
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
            "checkpoint_dir": str(self.folder / f"checkpoints-{self.jobs}"),
            "resume_step": -1,
            "metric": "loss",
            "store": str(self.folder / f"store-{self.jobs}"),
            "stop_after": None,
            "stopped_rank": 0,
            **options,
        }
        gang = [self._process(rank) for rank in range(plan.world_size)]
        for rank, process in enumerate(gang):
            assert process.stdin is not None
            process.stdin.write(json.dumps({**order, "rank": rank}) + "\n")
            process.stdin.flush()
        return [self._answer(process) for process in gang]

    def curve(self, plan: Plan, steps: int = 4, **options: Any) -> list[tuple[int, dict[str, float]]]:
        """The reports of a training that ends well."""
        answers = self.train(plan, steps, **options)
        assert [answer["traceback"] for answer in answers] == [""] * plan.world_size
        return [(step, values) for step, values in answers[0]["reports"]]

    def _process(self, rank: int) -> subprocess.Popen[str]:
        while len(self.processes) <= rank:
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, str(Path(__file__).with_name("one_rank.py"))],
                    cwd=ROOT,
                    env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        return self.processes[rank]

    @staticmethod
    def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"the rank died with {process.wait(10)}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    started = Ranks(tmp_path_factory.mktemp("ranks"))
    yield started
    started.close()
