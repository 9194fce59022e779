"""Lines of code that only a GPU runs: found in the code, and executed here against a fake of torch's CUDA calls.

``docs/gpus.md`` lists them; ``python -m tests.workloads.test_cuda_lines`` writes the list.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from estimators.learning import AttemptPhase
from estimators.model import MIB, Plan
from scamp.workload import seeds
from tests.workloads.calibration import test_measure
from workloads.calibration import probes
from workloads.cleaning.leftovers import KEPT_BYTES, Leftovers
from workloads.training import gang, runtime, warm_up
from workloads.training.guard import resuming, sample_draws
from workloads.training.memory import budget
from workloads.training.memory.peak import measure_peak

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "gpus.md"
FOLDERS = ("workloads", "scamp")
CUDA = torch.device("cuda", 0)


# --- the lines ---


@dataclass(frozen=True)
class Statement:
    """A statement that runs on GPUs only, or does something else there, in a ``function`` as ``file:name``."""

    function: str
    file: Path
    lines: range


def statements() -> list[Statement]:
    """All of them, by file and line."""
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
    return [each for file in files for each in _in_block(ast.parse(file.read_text()).body, file, "", False)]


def _in_block(block: list[ast.stmt], file: Path, name: str, is_for_cuda: bool) -> Iterator[Statement]:
    for node in block:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from _in_block(node.body, file, f"{name}.{node.name}".strip("."), False)
            continue
        blocks = [getattr(node, part) for part in ("body", "orelse", "finalbody") if getattr(node, part, None)]
        blocks += [handler.body for handler in getattr(node, "handlers", [])]
        last = blocks[0][0].lineno - 1 if blocks else node.end_lineno or node.lineno
        header = [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]
        if name and (is_for_cuda or any(_asks_cuda(part) for child in header for part in ast.walk(child))):
            yield Statement(f"{file.relative_to(ROOT)}:{name}", file, range(node.lineno, last + 1))
        for number, inner in enumerate(blocks):
            begins = isinstance(node, ast.If) and number == 0 and _is_on_cuda(node.test)
            yield from _in_block(inner, file, name, is_for_cuda or begins)


def _asks_cuda(node: ast.AST) -> bool:
    """Whether this calls torch's CUDA, makes a device of it, or chooses by it."""
    match node:
        case ast.Attribute(value=ast.Attribute(value=ast.Name("torch"), attr="cuda"), attr=attr):
            return attr != "is_available"
        case ast.Call(func=ast.Attribute(value=ast.Name("torch"), attr="device"), args=[ast.Constant("cuda"), *_]):
            return True
        case ast.IfExp(test=test):
            return _is_on_cuda(test)
    return False


def _is_on_cuda(test: ast.expr) -> bool:
    words = ast.unparse(test)
    return re.search(r"== 'cuda'|(?<!not )torch\.cuda\.is_available\(\)", words) is not None


# --- the fake ---


class FakeCuda:
    """Torch's CUDA calls, on a GPU of 100 MiB. ``calls`` are their names and arguments, in order."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch
        self.calls: list[tuple[Any, ...]] = []
        self.allocated = 10 * MIB
        self.most_allocated = 0
        answers: dict[str, Callable[[], Any]] = {
            "is_available": lambda: True,
            "memory_allocated": lambda: self.allocated,
            "max_memory_allocated": lambda: self.most_allocated,
            "get_device_properties": lambda: SimpleNamespace(total_memory=100 * MIB),
            "get_device_name": lambda: "NVIDIA T4",
            "is_bf16_supported": lambda: False,
            "current_device": lambda: 1,
        }
        names = "synchronize reset_peak_memory_stats set_per_process_memory_fraction empty_cache manual_seed_all"
        for name in [*answers, *names.split()]:
            patch.setattr(torch.cuda, name, self._call(name, answers.get(name, lambda: None)))

    def _call(self, name: str, answer: Callable[[], Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.calls.append((name, *arguments))
            return answer()

        return call

    @property
    def fractions(self) -> list[float]:
        """The shares of the GPU to which this process was limited."""
        return [call[1] for call in self.calls if call[0] == "set_per_process_memory_fraction"]


# --- the cases ---


def a_budget_is_a_share_of_the_gpu(fake: FakeCuda) -> None:
    before = budget.baseline(CUDA)
    assert budget.with_libraries(CUDA, before) == before
    with budget.enforce(CUDA, before, 30 * MIB) as held:
        fake.allocated = 25 * MIB
        assert held.used_bytes() == 15 * MIB
    assert fake.fractions == [pytest.approx(0.4), 1.0]


def an_out_of_memory_error_says_what_was_needed(fake: FakeCuda) -> None:
    fake.most_allocated = 38 * MIB
    with pytest.raises(budget.OutOfMemory) as overrun, budget.enforce(CUDA, budget.baseline(CUDA), 30 * MIB) as held:
        with held.during(AttemptPhase.STEP):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total of 1 GiB")
    assert (overrun.value.requested_bytes, overrun.value.measured_bytes) == (20 * MIB, 48 * MIB)
    assert overrun.value.phase is AttemptPhase.STEP and fake.fractions[-1] == 1.0


def trainings_that_share_a_process_have_the_sum_of_their_budgets(fake: FakeCuda) -> None:
    limit, before = budget.SharedLimit(), budget.baseline(CUDA)
    with limit.part(CUDA, before, 30 * MIB, 20 * MIB), limit.part(CUDA, before, 40 * MIB, 20 * MIB):
        pass
    assert fake.fractions == [pytest.approx(share) for share in (0.4, 0.6, 0.4, 1.0)]


def memory_is_given_back_also_after_an_error_of_cuda(fake: FakeCuda) -> None:
    def fails() -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    budget.give_back(CUDA)
    fake.patch.setattr(torch.cuda, "empty_cache", fails)
    budget.give_back(CUDA)
    assert fake.calls == [("empty_cache",)]


def a_peak_is_that_of_the_allocator(fake: FakeCuda) -> None:
    def step() -> None:
        fake.calls.append(("step",))
        fake.most_allocated = 70 * MIB

    model = nn.Linear(1, 1)
    assert measure_peak(CUDA, model, torch.optim.SGD(model.parameters(), 0.1), step) == 70 * MIB
    assert [call[0] for call in fake.calls] == [
        "reset_peak_memory_stats",
        "step",
        "synchronize",
        "max_memory_allocated",
    ]


def gangs_talk_by_nccl(fake: FakeCuda) -> None:
    class Stop(Exception):
        pass

    def join(backend: str, **_: Any) -> None:
        fake.calls.append(("join", backend))
        raise Stop

    fake.patch.setattr(dist, "init_process_group", join)
    plan = Plan(1, dp_shard=2)
    with pytest.raises(Stop), gang.process_group(plan, 0, dist.HashStore(), CUDA):
        pass
    assert fake.calls == [("join", "cpu:gloo,cuda:nccl")]


def a_rank_trains_and_warms_up_on_its_only_gpu(fake: FakeCuda) -> None:
    def train(*arguments: Any) -> str:
        fake.calls.append(("train", arguments[4]))
        return "done"

    fake.patch.setattr(runtime, "_train", train)
    job: Any = SimpleNamespace(plan=Plan(2))
    assert runtime.train(job, 0, 1, None, None) == "done"  # type: ignore[arg-type]
    fake.patch.setattr(warm_up, "warm_up", lambda device, mesh: fake.calls.append(("warm up", device.type)))
    warm_up.prepare_process()
    calls = [call for call in fake.calls if call[0] != "is_available"]
    assert calls == [("train", CUDA), ("empty_cache",), ("warm up", "cuda")]


def memory_that_a_rank_keeps_is_that_of_the_gpu(fake: FakeCuda) -> None:
    leftovers = Leftovers()
    assert list(leftovers._kept_memory()) == []
    fake.allocated += KEPT_BYTES + MIB
    assert len(list(leftovers._kept_memory())) == 1


def seeds_are_those_of_all_gpus(fake: FakeCuda) -> None:
    state = torch.get_rng_state()
    seeds.seed_everything(7)
    torch.set_rng_state(state)
    assert fake.calls[-1] == ("manual_seed_all", 7)


def the_guards_know_the_gpu_and_its_generator(fake: FakeCuda) -> None:
    fake.patch.setattr(torch.cuda, "default_generators", ("first", "second"))
    assert resuming._place(CUDA) == "NVIDIA T4"
    assert sample_draws._generator_of((), {"device": "cuda:0"}) == "first"
    assert sample_draws._generator_of((), {"device": "cuda"}) == "second"


def operations_are_timed_by_events(fake: FakeCuda) -> None:
    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            fake.calls.append(("record",))

        def synchronize(self) -> None:
            fake.calls.append(("wait",))

        def elapsed_time(self, end: Any) -> float:
            return 5.0

    fake.patch.setattr(torch.cuda, "Event", Event)
    assert probes.GpuTime().seconds(lambda: fake.calls.append(("run",))) == 0.005
    assert [call[0] for call in fake.calls] == ["synchronize", "record", "run", "record", "wait"]


def steps_are_also_timed_in_16_bits(fake: FakeCuda) -> None:
    for has_to in (Tensor, nn.Module):
        fake.patch.setattr(has_to, "to", lambda self, device: self)
    fake.patch.setattr(probes, "ON_GPU", (((1, 8, 5, 2, 3),), ((1, 4, 2, 8),)))
    assert [step.keywords["half"] for step in probes.steps(CUDA)] == [False, True] * 2  # type: ignore[attr-defined]


def a_gpu_is_calibrated(fake: FakeCuda) -> None:
    test_measure.test_a_calibrated_gpu_has_what_was_measured_and_for_the_rest_what_is_known_of_its_kind(fake.patch)


CASES: tuple[Callable[[FakeCuda], None], ...] = (
    a_budget_is_a_share_of_the_gpu,
    an_out_of_memory_error_says_what_was_needed,
    trainings_that_share_a_process_have_the_sum_of_their_budgets,
    memory_is_given_back_also_after_an_error_of_cuda,
    a_peak_is_that_of_the_allocator,
    gangs_talk_by_nccl,
    a_rank_trains_and_warms_up_on_its_only_gpu,
    memory_that_a_rank_keeps_is_that_of_the_gpu,
    seeds_are_those_of_all_gpus,
    the_guards_know_the_gpu_and_its_generator,
    operations_are_timed_by_events,
    steps_are_also_timed_in_16_bits,
    a_gpu_is_calibrated,
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_against_a_fake_of_torchs_cuda(case: Callable[[FakeCuda], None], monkeypatch: pytest.MonkeyPatch) -> None:
    case(FakeCuda(monkeypatch))


# --- the page ---


@contextmanager
def traced(lines: set[tuple[str, int]]) -> Iterator[None]:
    """Add the lines of our code that are executed meanwhile."""
    ours = tuple(str(ROOT / folder) for folder in FOLDERS)

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(ours):
            return None
        lines.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def table() -> tuple[str, float]:
    """The list as Markdown, and the share of its statements that a case executes."""
    cases_of: dict[str, set[str]] = defaultdict(set)
    all_statements, executed = statements(), set[Statement]()
    for case in CASES:
        lines: set[tuple[str, int]] = set()
        with pytest.MonkeyPatch.context() as patch, traced(lines):
            case(FakeCuda(patch))
        for each in all_statements:
            if any((str(each.file), line) in lines for line in each.lines):
                executed.add(each)
                cases_of[each.function].add(case.__name__.replace("_", " "))
    rows = ["| code | statements | executed | by the case |", "|---|---|---|---|"]
    for function in dict.fromkeys(each.function for each in all_statements):
        of_function = [each for each in all_statements if each.function == function]
        num = sum(each in executed for each in of_function)
        words = ", ".join(sorted(cases_of[function])) or "*unverified*"
        rows.append(f"| `{function}` | {len(of_function)} | {num} | {words} |")
    return "\n".join(rows), len(executed) / len(all_statements)


BEGIN, END = "<!-- begin of the list -->\n", "\n<!-- end of the list -->"


def test_the_page_lists_the_lines_that_only_a_gpu_runs() -> None:
    listed, share = table()
    text = PAGE.read_text()
    assert text[text.index(BEGIN) + len(BEGIN) : text.index(END)] == listed, f"run python -m {__name__}"
    assert share >= 0.9


if __name__ == "__main__":
    text = PAGE.read_text()
    new, share = table()
    PAGE.write_text(text[: text.index(BEGIN) + len(BEGIN)] + new + text[text.index(END) :])
    print(f"{share:.0%} of the statements are executed")
