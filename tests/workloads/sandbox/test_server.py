"""Answers of the sandbox are what a real step takes, or a refusal in words."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from estimators.memory import predict
from estimators.model import MIB, Layout, Plan
from estimators.profile import ModelProfile
from estimators.trace import Trace
from scamp_service.sizing.tracing import trace_process
from scamp_service.sizing.tracing.trace_process import TraceFailed, TraceProcess
from tests.waiting import until
from workloads.sandbox import server

pytestmark = pytest.mark.full

# The traced peak against torch's own record of a real step. On gloo, reducing makes copies that no trace sees.
TOLERANCE, GANG_TOLERANCE = 0.001, 0.03

USER = """
import os, signal, sys, time
import torch
from torch import nn
from torch.nn import functional
from workloads.protocol import Workload

class Net(nn.Module):
    def __init__(self, trick):
        super().__init__()
        self.trick = trick
        self.layer = nn.Linear(8, 8)
    def forward(self, x):
        x = self.layer(x)
        exec(self.trick)
        return x

class Trick(Workload):
    num_eval = 32
    def __init__(self, params):
        super().__init__(params)
        self.num_train = params.get("num_train", 32)
    def build_model(self): return Net(self.params.get("forward", ""))
    def train_batch(self, indices):
        exec(self.params.get("batch_trick", ""))
        return torch.zeros(len(indices), 8)
    def eval_batch(self, indices): return torch.zeros(len(indices), 8)
    def loss(self, model, batch): return functional.mse_loss(model(batch), batch)
    def evaluate(self, model, batch): return {}

class Choosy(Trick):
    def __init__(self, params):
        super().__init__(params)
        raise ValueError("depth must be even")
"""


@pytest.fixture(scope="module")
def traces(warm_traces: None) -> Iterator[TraceProcess]:
    process = TraceProcess()
    yield process
    process.end()


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("code")
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("user.py", USER)
    (folder / "code.zip").write_bytes(data.getvalue())
    return {"code_zip": str(folder / "code.zip"), "code_dir": str(folder / "unpacked")}


def ask(
    traces: TraceProcess,
    workload: str,
    params: dict[str, Any],
    layout: Layout,
    code: dict[str, str] | None = None,
    seconds: int = 60,
) -> dict[str, Any]:
    request = {
        "ask": "trace",
        "on_cuda": False,
        "workload": workload,
        "code_zip": None,
        "code_dir": None,
        **(code or {}),
        "params": params,
        "layout": asdict(layout),
        "equal_blocks": None,
    }
    return dict(traces.ask(request, seconds))


def reserved(traces: TraceProcess, workload: str, params: dict[str, Any], plan: Plan) -> tuple[int, int]:
    """Predicted peak and reserved bytes of the rank that needs most."""
    answers = {layout: ask(traces, workload, params, layout) for layout in plan.layouts}
    curves = {layout: TypeAdapter(Trace).validate_python(answer).curve for layout, answer in answers.items()}
    cost = predict(ModelProfile("", 1, 1, curves), plan)
    return cost.peak_bytes, cost.reserved_mib * MIB


@pytest.mark.sample
@pytest.mark.parametrize(
    ("workload", "params", "plan"),
    [
        ("vit_digits", {"depth": 4, "width": 64}, Plan(64)),
        pytest.param(*("vit_digits", {"depth": 4, "width": 128}, Plan(32, recompute=True)), marks=pytest.mark.soak),
        pytest.param(*("vit_digits", {"depth": 4, "width": 128}, Plan(8, num_micro_batches=4)), marks=pytest.mark.soak),
        ("stdlib_gpt", {"depth": 2, "width": 64, "dropout": 0.1}, Plan(16)),
        pytest.param(*("stdlib_gpt", {"depth": 2, "width": 128}, Plan(1, num_micro_batches=2)), marks=pytest.mark.soak),
        pytest.param(*("vit_digits", {"depth": 4, "width": 128}, Plan(32, dp_shard=2)), marks=pytest.mark.soak),
        ("stdlib_gpt", {"depth": 4, "width": 128}, Plan(4, num_micro_batches=2, dp_shard=2, recompute=True)),
        ("stdlib_gpt", {"depth": 4, "width": 128}, Plan(8, num_micro_batches=3, pp=2)),
        pytest.param(
            *("vit_digits", {"depth": 4, "width": 128}, Plan(16, num_micro_batches=4, pp=4, schedule="gpipe")),
            marks=pytest.mark.soak,
        ),
    ],
    ids=str,
)
def test_the_prediction_is_what_a_real_step_takes_and_its_budget_suffices(
    traces: TraceProcess, ranks: Any, workload: str, params: dict[str, Any], plan: Plan
) -> None:
    predicted, budget = reserved(traces, workload, {**params, "batch": plan.batch}, plan)
    ends = ranks.train(plan, workload=workload, params={**params, "batch": plan.batch}, budget_bytes=budget)
    assert [end["ended"] for end in ends] == ["done"] * plan.world_size, ends[0]["traceback"]
    tolerance = TOLERANCE if plan.world_size == 1 else GANG_TOLERANCE
    assert predicted == pytest.approx(ends[0]["peak"], rel=tolerance)


def test_the_prediction_is_needed_half_of_it_fails(traces: TraceProcess, ranks: Any) -> None:
    plan, params = Plan(64), {"depth": 4, "width": 64}
    predicted, _ = reserved(traces, "vit_digits", params, plan)
    (end,) = ranks.train(plan, params=params, budget_bytes=predicted // 2)
    assert end["error"] == "OutOfMemory"


def test_the_batch_is_the_candidates_or_the_workloads_default(traces: TraceProcess) -> None:
    assert ask(traces, "vit_digits", {"depth": 1, "width": 8, "batch": 24}, Layout())["batch"] == 24
    assert ask(traces, "vit_digits", {"depth": 1, "width": 8}, Layout())["batch"] == 64


@pytest.mark.parametrize(
    ("bounds", "batch"), [({}, 1024), ({"largest_batch": 96}, 96), ({"largest_batch": 5000}, 1437)]
)
def test_the_largest_batch_is_traced_up_to_its_bound_or_the_training_set(
    traces: TraceProcess, bounds: dict[str, int], batch: int
) -> None:
    params = {"depth": 1, "width": 8, "batch": "largest", **bounds}
    assert ask(traces, "vit_digits", params, Layout())["batch"] == batch


def test_a_training_set_smaller_than_the_smallest_batch_is_infeasible(traces: TraceProcess) -> None:
    with pytest.raises(TraceFailed, match="that may be chosen is 5000, but num_train is 1437") as failed:
        ask(traces, "vit_digits", {"depth": 1, "width": 8, "batch": "largest", "smallest_batch": 5000}, Layout())
    assert failed.value.infeasible


@pytest.mark.parametrize("batch", [0, -1, 2.5, "8", True, None])
def test_a_batch_that_is_no_positive_whole_number_is_infeasible(traces: TraceProcess, batch: Any) -> None:
    with pytest.raises(TraceFailed, match="an integer of at least 1, or largest; got") as failed:
        ask(traces, "vit_digits", {"batch": batch}, Layout())
    assert failed.value.infeasible


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"batch": 33}, r"\Abatch is 33, but num_train is 32: set batch to at most that\Z"),
        ({"num_train": 31}, r"\Abatch, by default_batch, is 32, but num_train is 31: set batch to at most that\Z"),
    ],
)
def test_a_batch_of_more_samples_than_there_are_is_infeasible(
    traces: TraceProcess, code: dict[str, str], params: dict[str, Any], message: str
) -> None:
    with pytest.raises(TraceFailed, match=message) as failed:
        ask(traces, "user.py:Trick", params, Layout(), code)
    assert failed.value.infeasible


def test_a_parameter_that_no_code_reads_is_infeasible(traces: TraceProcess, code: dict[str, str]) -> None:
    with pytest.raises(
        TraceFailed, match=r"never reads the parameter 'num_trian': did you mean 'num_train'\?"
    ) as failed:
        ask(traces, "user.py:Trick", {"num_trian": 16}, Layout(), code)
    assert failed.value.infeasible
    assert ask(traces, "user.py:Trick", {"num_train": 64, "clip_norm": 1.0}, Layout(), code)["batch"] == 32


def test_parameters_that_the_workload_refuses_are_infeasible_in_its_own_words(
    traces: TraceProcess, code: dict[str, str]
) -> None:
    with pytest.raises(TraceFailed, match=r"\Adepth must be even\Z") as failed:
        ask(traces, "user.py:Choosy", {}, Layout(), code)
    assert failed.value.infeasible


HERE = r"\Auser\.py, line \d+: exec\(.*\)\n"  # the line of the user's file that runs the trick

HOSTILE = {
    "moves to a GPU": (
        {"forward": "x = x.to('cuda:0')"},
        HERE + "asks for a device: it puts a tensor on cuda:0\n→ leave",
    ),
    "loops for ever": (
        {"forward": "while True: pass"},
        HERE + "took (more than 2 s of processor time|longer than 8 s).*\n→ .*--seconds 8",
    ),
    "loops in native code": ({"batch_trick": "'a' * 3 in 'b' * 2**34"}, "processor time|memory"),
    "sleeps for ever": (
        {"batch_trick": "time.sleep(1000)"},
        HERE + "took longer than 8 s, .*\n→ look for code that waits",
    ),
    "raises": ({"forward": "raise KeyError('lost')"}, HERE + r"KeyError: 'lost'\Z"),
    "reads a value": ({"forward": "x.argmax().item()"}, HERE + r"reads a value of a tensor.*\n→ .*\.item\(\)"),
    "branches on a value": ({"forward": "x if x.sum() > 0 else -x"}, HERE + "reads a value of a tensor"),
    "has a size that depends on values": ({"forward": "x.unique()"}, HERE + ".*size depends on values.*\n→ .*mask"),
    "prints megabytes": ({"forward": "print('x' * 2**20); raise KeyError('after')"}, HERE + "KeyError: 'after'"),
    "ends the process": ({"forward": "os._exit(3)"}, r"ended the process that traced it \(by os\._exit"),
    "exits": ({"forward": "sys.exit('bye')"}, HERE + r"ends Python \(bye\)"),
    "crashes": ({"forward": "os.kill(os.getpid(), signal.SIGSEGV)"}, HERE + ".*by signal SIGSEGV"),
    "reads stdin": ({"forward": "input()"}, HERE + "EOFError"),
    "closes all files": ({"forward": "os.closerange(0, 256)"}, "ended the process"),
    "closes all files and ends later": (
        {"forward": "os.closerange(0, 256); time.sleep(1.5); os._exit(3)"},
        "ended the process",
    ),
    "takes all memory": ({"batch_trick": "bytearray(2**40)"}, HERE + "takes too much memory"),
    "recurses": ({"forward": "self(x)"}, r"\Auser\.py, line \d+: .*\ncalls itself without end"),
}


@pytest.mark.sample
@pytest.mark.parametrize("trick", HOSTILE)
def test_a_hostile_model_gets_one_clear_error_and_spoils_nothing_else(
    traces: TraceProcess, code: dict[str, str], trick: str
) -> None:
    params, message = HOSTILE[trick]
    ask(traces, "user.py:Trick", {}, Layout(), code)
    child = traces.pid
    limit = 2 if "longer" in message or "processor time" in message else 60
    with pytest.raises(TraceFailed, match=message) as failed:
        ask(traces, "user.py:Trick", params, Layout(), code, limit)
    assert not failed.value.infeasible
    assert len(str(failed.value)) < 1000 and len(str(failed.value).splitlines()) <= 4
    assert ask(traces, "user.py:Trick", {}, Layout(), code)["num_params"] == 72
    assert traces.pid == child, "the warm process was replaced"


def test_a_model_whose_process_the_system_kills_is_traced_again(
    traces: TraceProcess, code: dict[str, str], tmp_path: Path
) -> None:
    """As the OOM killer does, which takes the fork and not the warm process."""
    mark = str(tmp_path / "killed")
    trick = f"if not os.path.exists({mark!r}): open({mark!r}, 'w').close(); os.kill(os.getpid(), signal.SIGKILL)"
    child = traces.pid
    assert ask(traces, "user.py:Trick", {"forward": trick}, Layout(), code)["num_params"] == 72
    assert os.path.exists(mark)
    assert traces.pid == child


def test_a_full_disk_is_not_the_fault_of_the_workload(
    traces: TraceProcess, code: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_process, "PAUSES_SECONDS", (0.0, 0.0))
    with pytest.raises(TraceFailed, match=r"No space left on device three times; free some space"):
        ask(traces, "user.py:Trick", {"batch_trick": "raise OSError(28, 'No space left on device')"}, Layout(), code)


def test_an_error_of_a_built_in_workload_shows_the_line_of_the_model(traces: TraceProcess) -> None:
    with pytest.raises(TraceFailed, match=r"\A\w+\.py, line \d+: self.up = .*\nsizes of tensors do not match: "):
        ask(traces, "vit_digits", {"mlp_ratio": -1}, Layout())


def test_what_a_model_prints_is_not_taken_for_an_answer(traces: TraceProcess, code: dict[str, str]) -> None:
    trick = "print('{\"id\": 1}'); os.write(1, b'{}\\n' * 100000); sys.__stdout__.flush()"
    assert ask(traces, "user.py:Trick", {"forward": trick}, Layout(), code)["num_params"] == 72


def test_processes_that_a_model_starts_end_with_its_trace(
    traces: TraceProcess, code: dict[str, str], tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    trick = f"p = os.fork()\nif p == 0: time.sleep(1000)\nopen({str(pids)!r}, 'a').write(f'{{p}} ')"
    assert ask(traces, "user.py:Trick", {"forward": trick}, Layout(), code)["num_params"] == 72
    forked = [int(pid) for pid in pids.read_text().split()]
    assert forked
    until(lambda: not any(_runs(pid) for pid in forked), "the end of the forks of the model")


def test_a_fork_of_the_model_that_runs_on_answers_nothing(traces: TraceProcess, code: dict[str, str]) -> None:
    params = {"batch_trick": "if not hasattr(os, 'forked'): os.forked = os.fork()"}
    assert ask(traces, "user.py:Trick", params, Layout(), code)["num_params"] == 72
    assert ask(traces, "vit_digits", {"depth": 1, "width": 8}, Layout())["num_params"] != 72


def test_an_orphan_ends_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody_reads(*_: object) -> None:
        raise BrokenPipeError

    def end(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(server, "die_with_parent", lambda: None)
    monkeypatch.setattr(server, "_serve", nobody_reads)
    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(SystemExit) as ended:  # sys.exit would let Python flush the broken pipe, and say that it cannot
        server.main()
    assert ended.value.code == 1


def test_a_killed_trace_process_is_replaced(traces: TraceProcess, code: dict[str, str]) -> None:
    ask(traces, "user.py:Trick", {}, Layout(), code)
    child = traces.pid
    assert child is not None
    os.kill(child, 9)

    def is_replaced() -> bool:
        assert ask(traces, "user.py:Trick", {}, Layout(), code)["num_params"] == 72
        return traces.pid not in (None, child)

    until(is_replaced, "another process")  # the fork behind a warm one may still answer once


def _runs(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


ORDER = """
import torch
from torch._subclasses import FakeTensorMode
from workloads.sandbox.server import warm_up_tracing

order, enter, backward = [], FakeTensorMode.__enter__, torch.Tensor.backward
FakeTensorMode.__enter__ = lambda self: order.append("fake") or enter(self)
torch.Tensor.backward = lambda self, *args, **keywords: order.append("backward") or backward(self, *args, **keywords)
warm_up_tracing()
print(order[0], "fake" in order)
"""


def test_gradients_are_computed_before_the_first_fake_tensor() -> None:
    """Otherwise a torch that is built for CUDA starts threads for devices that are not there, and no fork can trace."""
    done = subprocess.run([sys.executable, "-c", ORDER], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["backward", "True"]
