"""Starts ranks whose passes sleep (``sleeping_ranks``), and asks them how long a pipeline takes.

They stay alive from one question to the next, because importing torch takes seconds. This module does not import it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from estimators.pipelining.passes import PipelineSchedule
from placement.pipelining.simulator import StageCost


class Ranks:
    """Processes that answer questions together, until ``end``."""

    def __init__(self, num: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        file = str(Path(self._folder.name) / "store")
        self._host = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.planning.sleeping_ranks", str(num), file],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True,
        )  # fmt: skip

    def latency_seconds(self, seconds: float) -> float:
        """Median seconds of a message from rank 0 to rank 1; ``seconds`` is the time limit."""
        return float(self._ask({"pings": 400}, seconds)[0])

    def step_seconds(
        self, schedule: PipelineSchedule, stages: Sequence[StageCost], num_steps: int, seconds: float
    ) -> list[float]:
        """Seconds of each step, from when the last rank begins until the last rank ends; one more warms up.

        Raises ``TimeoutError`` after ``seconds``, and ``RuntimeError`` if a rank fails.
        """
        costs = [(stage.forward_seconds, stage.input_seconds, stage.weight_seconds) for stage in stages]
        question = {"orders": schedule.orders, "num": schedule.num_micro_batches, "costs": costs, "steps": num_steps}
        by_rank = self._ask(question, seconds)
        steps = list(zip(*by_rank, strict=True))[1:]
        return [max(end for _, end in step) - max(start for start, _ in step) for step in steps]

    def _ask(self, question: Mapping[str, Any], seconds: float) -> list[Any]:
        host = self._host
        assert host.stdin is not None and host.stdout is not None and host.stderr is not None
        late = threading.Timer(seconds, self._kill)
        late.start()
        try:
            host.stdin.write(json.dumps(question) + "\n")
            host.stdin.flush()
            if line := host.stdout.readline():
                return list(json.loads(line))
            said = host.stderr.read().strip().splitlines() or ["nothing on stderr"]
        except OSError as gone:
            said = [str(gone)]
        finally:
            late.cancel()
        self.end()
        if late.finished.is_set() and host.returncode == -signal.SIGKILL:
            raise TimeoutError(f"took more than {seconds:g} s: allow more time with --seconds")
        raise RuntimeError(f"a rank failed: {said[-1]}")

    def _kill(self) -> None:
        if self._host.poll() is None:
            os.killpg(self._host.pid, signal.SIGKILL)

    def end(self) -> None:
        """End all ranks."""
        self._kill()
        self._host.communicate()
        self._folder.cleanup()
