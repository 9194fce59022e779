"""A budget above the measured peak is enough, and one below it fails without ending the process."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from estimators.model import MIB, Plan
from scamp_service.settings import ROOT
from workloads.training.memory.budget import ALLOWANCE_BYTES, EnforcedBudget, OutOfMemory, classify
from workloads.training.memory.process_memory import HeldMemory, data_bytes

MODEL = {"depth": 3, "width": 96}
FAULT = "vit_digits_with_fault"


@pytest.fixture(scope="module")
def peak(ranks: Any) -> int:
    (answer,) = ranks.train(Plan(64), params=MODEL)
    assert answer["peak"] > 20 * MIB
    return int(answer["peak"])


def test_a_budget_a_little_over_the_measured_peak_is_enough(ranks: Any, peak: int) -> None:
    assert ranks.train(Plan(64), params=MODEL, budget_bytes=peak + 3 * MIB)[0]["error"] == ""


@pytest.mark.full
def test_a_budget_under_the_peak_fails_and_the_process_trains_on(ranks: Any, peak: int) -> None:
    before = ranks.curve(Plan(64))
    (answer,) = ranks.train(Plan(64), params=MODEL, budget_bytes=peak - 3 * MIB)
    assert answer["error"] == "OutOfMemory", answer
    assert peak - 6 * MIB < answer["measured_bytes"]
    assert ranks.curve(Plan(64)) == before


def test_memory_that_no_trace_saw_is_an_allocation_error_of_torch_under_the_limit(ranks: Any) -> None:
    params = {"depth": 2, "width": 32, "spike_mib": 64, "spike_step": 3}
    assert ranks.train(Plan(64), workload=FAULT, params=params, steps=3)[0]["error"] == ""
    (answer,) = ranks.train(Plan(64), workload=FAULT, params=params, steps=5, budget_bytes=32 * MIB)
    assert answer["error"] == "OutOfMemory"
    assert "MiB during a training step; last request 64.0 MiB" in answer["message"]
    assert 63 * MIB < answer["measured_bytes"] < 96 * MIB
    assert [step for step, _ in answer["reports"]] == [2], "it must run until the spike"


def test_a_spike_in_the_measured_step_counts_too(ranks: Any) -> None:
    params = {"depth": 2, "width": 32, "spike_mib": 64, "spike_step": 2}
    assert ranks.train(Plan(64), workload=FAULT, params=params, budget_bytes=32 * MIB)[0]["error"] == "OutOfMemory"


@pytest.mark.parametrize("step", [0, 1])
def test_a_spike_that_the_allowance_of_a_first_step_could_hide_counts_too(ranks: Any, peak: int, step: int) -> None:
    # Up to 32 MiB, glibc may take memory that it has kept since an earlier test.
    params, limit = {**MODEL, "spike_mib": 40, "spike_step": step}, peak + 8 * MIB
    (answer,) = ranks.train(Plan(64), workload=FAULT, params=params, budget_bytes=limit)
    assert (answer["error"], answer["reports"]) == ("OutOfMemory", [])
    assert peak < answer["measured_bytes"] < peak + 42 * MIB


@pytest.mark.full
def test_one_rank_out_of_memory_ends_its_sibling_too_and_both_train_on(ranks: Any) -> None:
    params = {"depth": 2, "width": 32, "spike_mib": 256, "spike_step": 3}
    answers = ranks.train(Plan(32, dp_shard=2), workload=FAULT, params=params, steps=5, budget_bytes=32 * MIB)
    assert {answer["error"] for answer in answers} <= {"OutOfMemory", "PeerLost"}
    assert any(answer["error"] == "OutOfMemory" for answer in answers)
    assert len(ranks.curve(Plan(32, dp_shard=2))) == 2


@pytest.mark.full
def test_sharding_and_recompute_lower_the_measured_peak(ranks: Any, peak: int) -> None:
    assert ranks.train(Plan(64, recompute=True), params=MODEL)[0]["peak"] < 0.7 * peak
    assert ranks.train(Plan(32, dp_shard=2), params=MODEL)[0]["peak"] < 0.7 * peak


def at(used_bytes: int, budget_bytes: int | None) -> EnforcedBudget:
    return EnforcedBudget(torch.device("cpu"), HeldMemory(data_bytes() - used_bytes), budget_bytes)


def test_a_failure_far_from_the_limit_is_not_an_overrun() -> None:
    for error in (MemoryError(), RuntimeError("std::bad_alloc"), RuntimeError("can't start new thread")):
        assert classify(error, at(10 * MIB, 100 * MIB)) is None
        assert isinstance(classify(error, at(97 * MIB, 100 * MIB)), OutOfMemory)
        assert classify(error, at(97 * MIB, None)) is None
    assert classify(ValueError("wrong shape"), at(97 * MIB, 100 * MIB)) is None


def test_an_error_whose_causes_form_a_circle_is_looked_at_once() -> None:
    first, second = ValueError("first"), RuntimeError("second")
    first.__cause__, second.__context__ = second, first
    assert classify(first, at(97 * MIB, 100 * MIB)) is None
    second.__cause__ = MemoryError()
    assert isinstance(classify(first, at(97 * MIB, 100 * MIB)), OutOfMemory)


def test_an_array_of_numpy_that_cannot_be_made_is_an_overrun_of_its_size() -> None:
    with pytest.raises(MemoryError) as raised:
        np.ones(2**50)
    overrun = classify(raised.value, at(10 * MIB, 100 * MIB))
    assert overrun is not None and overrun.requested_bytes == 2**53
    assert overrun.measured_bytes == pytest.approx(2**53 + 10 * MIB, abs=MIB)


def test_a_library_that_cannot_be_loaded_under_the_limit_is_an_overrun() -> None:
    unmapped = "libscipy_openblas.so: failed to map segment from shared object"
    overrun = classify(ImportError(unmapped), at(60 * MIB, 100 * MIB))
    assert overrun is not None and overrun.measured_bytes == 100 * MIB, "it asked for more than was left"
    assert classify(ImportError(f"{unmapped}: Operation not permitted"), at(60 * MIB, 100 * MIB)) is None
    assert classify(ImportError("cannot import name"), at(97 * MIB, 100 * MIB)) is None
    half = SystemError("initialization of _flapack raised unreported exception")
    assert classify(half, at(97 * MIB, 100 * MIB)) is not None and classify(half, at(60 * MIB, 100 * MIB)) is None


EVALUATES = """
import torch
from torch import nn
from workloads.protocol import Workload

class Mine(Workload):
    num_train = num_eval = 8
    def build_model(self): return nn.Linear(1, 1)
    def train_batch(self, indices): return indices.float()[:, None]
    eval_batch = train_batch
    def loss(self, model, batch): return model(batch).square().mean()
    def evaluate(self, model, batch):
        import heavy
        torch.zeros(self.params["mib"] << 18)
        return {"loss": model(batch).square()[:, 0]}
"""
HEAVY = f"kept = bytearray({ALLOWANCE_BYTES + 24 * MIB})"


def test_what_evaluate_imports_is_no_memory_of_the_candidate_and_an_overrun_names_the_evaluation(
    ranks: Any, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(EVALUATES)
    (tmp_path / "heavy.py").write_text(HEAVY)
    options = {"workload": "mine.py:Mine", "code_dir": str(tmp_path), "metric": "loss", "budget_bytes": 16 * MIB}
    assert ranks.train(Plan(8), params={"mib": 4}, **options)[0]["message"] == ""
    (answer,) = ranks.train(Plan(8), params={"mib": 24}, **options)
    assert answer["error"] == "OutOfMemory" and "its budget is 16.0 MiB during an evaluation" in answer["message"]


FILL = """
import torch
from workloads.training.memory.budget import OutOfMemory, enforce
from workloads.training.memory.process_memory import measure_held

last = None
try:
    with enforce(torch.device("cpu"), measure_held(), 32 << 20):
        while True:
            last = (last, bytes(400))
except OutOfMemory as error:
    print("out of memory:", error)
"""


@pytest.mark.full
def test_small_objects_that_leave_nothing_free_are_an_overrun_too() -> None:
    done = subprocess.run([sys.executable, "-c", FILL], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.startswith("out of memory: "), done.stderr


HOG = """
import torch
from workloads.refusals import explain
from workloads.training.memory.budget import enforce
from workloads.training.memory.process_memory import measure_held

try:
    with enforce(torch.device("cpu"), measure_held(), 32 << 20):
        kept = bytearray(4 << 20)
        bytearray(1 << 30)
except MemoryError as error:
    print(explain(error, None, in_training=True))
"""


@pytest.mark.full
def test_a_request_of_python_that_is_far_over_the_budget_names_it_and_what_to_do() -> None:
    done = subprocess.run([sys.executable, "-c", HOG], cwd=ROOT, capture_output=True, text=True)
    problem, advice = done.stdout.splitlines()
    held = r"asks for more memory than this rank may use: its budget is 32\.0 MiB, and it held [45]\.\d MiB of that"
    assert re.fullmatch(held, problem), done.stderr
    assert advice.startswith("→ allocate less at once; keep large data sets on disk")


def test_a_memory_error_that_has_words_or_another_limit_keeps_what_it_says() -> None:
    for error, budget_bytes in ((MemoryError("of a library"), MIB), (MemoryError(), None), (OSError(), MIB)):
        before = error.args
        at(0, budget_bytes).name_limit(error)
        assert error.args == before


CAPPED = """
import resource
import torch
from workloads.training.memory.budget import enforce
from workloads.training.faults import host_fault
from workloads.training.memory.process_memory import measure_held

for room_mib in (64, 16):
    resource.setrlimit(resource.RLIMIT_DATA, (measure_held().data_bytes + (room_mib << 20),) * 2)
    try:
        with enforce(torch.device("cpu"), measure_held(), 32 << 20) as budget, budget.lifted(), budget.settling():
            print("trained")
    except Exception as error:
        print(host_fault(error))
"""


@pytest.mark.full
def test_a_hard_limit_of_the_host_is_obeyed_and_named_where_it_is_too_low() -> None:
    done = subprocess.run([sys.executable, "-c", CAPPED], cwd=ROOT, capture_output=True, text=True)
    first, second = done.stdout.splitlines()
    assert first == "trained", done.stderr
    assert "with its budget of 32.0 MiB, but the hard limit of its data segment (RLIMIT_DATA) is" in second


SHAPES = """
from torch import nn
from workloads.training.memory.budget import OutOfMemory, enforce
from workloads.training.memory.process_memory import configure_malloc, measure_held

configure_malloc()
torch.set_num_threads(1)
layer, hoard = nn.Conv1d(64, 64, 5), []

def step(length):
    layer(torch.ones(4, 64, length)).sum().backward()

step(8)
with enforce(torch.device("cpu"), measure_held(), 5 << 20) as budget:
    for length in [*range(10, 30), *range(10, 30)]:
        with budget.settling():
            step(length)
    print("kept", budget.kept_bytes + budget.code_bytes > 5 << 20)
    try:
        while True:
            with budget.settling():
                step(10)
                hoard.append(torch.ones(1 << 18))
    except (OutOfMemory, RuntimeError):  # of `settling`, or of torch itself at the limit
        print("no tensors", len(hoard))
"""


@pytest.mark.full
def test_libraries_may_keep_more_for_each_new_shape_and_tensors_may_not() -> None:
    done = subprocess.run([sys.executable, "-c", f"import torch\n{SHAPES}"], cwd=ROOT, capture_output=True, text=True)
    kept, refused = done.stdout.splitlines()
    assert kept == "kept True", done.stderr
    assert refused.startswith("no tensors ") and int(refused.split()[-1]) <= 6


QUIET = (
    SHAPES.partition("step(8)")[0]
    + """
step(8)
with enforce(torch.device("cpu"), measure_held(), 1 << 20) as budget:
    for length in [8, 8, 8, *range(10, 20)]:
        with budget.settling():
            budget.meet(length)
            step(length)
    kept = budget.kept_bytes
    try:
        with budget.settling():
            budget.meet(30)
            torch.ones(1 << 20)
    except OutOfMemory as error:
        print("overrun of", error.measured_bytes >> 20)
"""
)


@pytest.mark.full
def test_a_shape_after_many_known_ones_settles_the_limit_again_and_its_tensors_count() -> None:
    done = subprocess.run([sys.executable, "-c", f"import torch\n{QUIET}"], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout in ("overrun of 3\n", "overrun of 4\n"), done.stderr


THREADS = """
import threading
import torch
from workloads.training.memory.budget import OutOfMemory, enforce
from workloads.training.memory.process_memory import configure_malloc, measure_held

configure_malloc()
for stack_mib in (0, 8):
    threading.stack_size(stack_mib << 20)
    never, end = threading.Event(), threading.Event()
    try:
        with enforce(torch.device("cpu"), measure_held(), 20 << 20):
            while True:
                threading.Thread(target=end.wait).start()
    except OutOfMemory as error:
        print(error)
    end.set()
    for thread in threading.enumerate()[1:]:
        thread.join()
"""


@pytest.mark.full
def test_threads_whose_stacks_use_up_the_budget_are_named() -> None:
    done = subprocess.run([sys.executable, "-c", THREADS], cwd=ROOT, capture_output=True, text=True)
    small, large = done.stdout.splitlines()
    assert re.search(
        r"used up its budget of 20\.0 MiB during its start; 1\d threads that it has started hold 1 MiB or more each",
        small,
    )
    assert "; 2 threads that it has started hold 1 MiB or more each for their stacks: start fewer" in large


@pytest.mark.parametrize(
    ("measured_bytes", "words"),
    [
        (5 * MIB, "this rank used up its budget of 5.0 MiB"),
        (4 * MIB, "this rank used up its budget of 5.0 MiB"),
        (5 * MIB + 1, "this rank needed 5.000001 MiB, but its budget is 5.000000 MiB"),
        (5 * MIB + 40_000, "this rank needed 5.04 MiB, but its budget is 5.00 MiB"),
        (5 * MIB + 60_000, "this rank needed 5.1 MiB, but its budget is 5.0 MiB"),
        (9 * MIB, "this rank needed 9.0 MiB, but its budget is 5.0 MiB; 9 threads"),
    ],
)
def test_an_overrun_says_numbers_that_differ(measured_bytes: int, words: str) -> None:
    assert str(OutOfMemory(0, measured_bytes, 5 * MIB)) == words.partition("; 9")[0]
    few = OutOfMemory(0, measured_bytes, 5 * MIB, num_live_threads=9 if "threads" in words else 0)
    assert str(few).startswith(words) and str(pickle.loads(pickle.dumps(few))) == str(few)


def test_an_overrun_is_found_behind_the_error_that_hides_it() -> None:
    try:
        try:
            torch.empty(2**60, dtype=torch.uint8)
        except RuntimeError as error:
            raise ValueError("could not build the batch") from error
    except ValueError as error:
        overrun = classify(error, at(10 * MIB, 100 * MIB))
    assert overrun is not None
    assert overrun.requested_bytes == 2**60
    assert overrun.measured_bytes == pytest.approx(2**60 + 10 * MIB, abs=MIB)


def test_a_request_counts_in_full_when_the_baseline_has_shrunk_meanwhile() -> None:
    error = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes.")
    overrun = classify(error, at(-MIB, 100 * MIB))
    assert overrun is not None and overrun.measured_bytes == overrun.requested_bytes == 4096


@pytest.mark.full
def test_the_peak_of_a_sharded_step_does_not_depend_on_when_gloo_lets_go_of_its_tensors(ranks: Any) -> None:
    plan = Plan(4, num_micro_batches=8, dp_shard=2, recompute=True)
    peaks = {ranks.train(plan, steps=2, params={"depth": 4, "width": 64})[0]["peak"] for _ in range(3)}
    assert len(peaks) == 1
