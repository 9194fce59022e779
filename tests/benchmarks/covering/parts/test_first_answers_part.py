"""The figures of first answers count all descendants, and there are ten ordinary models."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.covering.parts import first_answers_part
from benchmarks.covering.parts.first_answers_part import Result, _cpu_seconds

BUSY = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()"


def test_processor_time_is_that_of_all_descendants() -> None:
    before = _cpu_seconds(os.getpid())
    child = subprocess.Popen([sys.executable, "-S", "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        while_alive = _cpu_seconds(os.getpid()) - before
        child.terminate()
    assert while_alive >= 0.15
    assert _cpu_seconds(os.getpid()) - before >= 0.15


def test_the_figures_are_the_median_and_the_worst_and_how_often_ctrl_c_ended_well() -> None:
    seconds = {3.0: True, 4.0: True, 8.0: False}
    values = first_answers_part.figures([Result(cpu, 9.0, "…", ends) for cpu, ends in seconds.items()])
    assert (values["first_answer_seconds"], values["first_answer_max_seconds"]) == (4.0, 8.0)
    assert round(values["interrupted_pct"]) == 67


def test_there_are_ordinary_models() -> None:
    assert len(first_answers_part.cases(False, 0)) == 7
