"""Every plan trains the curve of one process, also after it resumes."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.features.feature import WORKLOADS
from estimators.model import Candidate, Plan
from tests.workloads.one_rank import Collected
from workloads.training.attempt.job import TrainingJob
from workloads.training.checkpoints.name import CheckpointName, written_checkpoints
from workloads.training.runtime import train

pytestmark = pytest.mark.full

# fp32 sums in another order, over a few steps of AdamW; a wrong scale or sample shows up at 1e-2.
TOLERANCE = 1e-5

SLOW = """
import time
import torch
from torch import nn
from workloads.protocol import Workload

class Slow(Workload):  # time passes by the clock of the test alone
    num_train, num_eval = 8, 8
    def build_model(self): return nn.Linear(1, 1)
    def train_batch(self, indices): return indices.float()[:, None]
    def eval_batch(self, indices): return indices.float()[:, None]
    def loss(self, model, batch):
        time.perf_counter.now += 50.0 if self.step < 3 else self.step
        return model(batch).square().mean()
    def evaluate(self, model, batch):
        time.perf_counter.now += 50.0
        return {"loss": model(batch).square()[:, 0]}
    def on_step(self, step, steps, optimizer): self.step = step
"""

TIED = """
import torch
from torch import nn
from torch.nn import functional
from workloads.protocol import Workload

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(17, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 17, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.full((8,), 0.5), persistent=False)

    def forward(self, x):
        x = self.embedding(x) * self.scale
        for layer in self.layers:
            x = x + layer(x).tanh()
        return self.head(x)

class Tied(Workload):
    num_train, num_eval = 50, 13
    def build_model(self): return Net().to("cuda" if torch.cuda.is_available() else "cpu")  # a habit of many
    def train_batch(self, indices): return indices % 17
    def eval_batch(self, indices): return indices
    def loss(self, model, batch):
        if self.params.get("fail_at") == self.step:
            raise RuntimeError(self.params["words"]) if "words" in self.params else ValueError("the user's own mistake")
        factor = self.params.get("factor", 1.0) if self.step >= self.params.get("factor_from", 0) else 1.0
        return functional.cross_entropy(model(batch), (batch + 1) % 17) * factor
    def evaluate(self, model, batch):
        return {"loss": functional.cross_entropy(model(batch), (batch + 1) % 17, reduction="none")}
    def on_step(self, step, steps, optimizer): self.step = step
"""


@pytest.fixture
def tied(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "tied.py").write_text(TIED)
    return {"workload": "tied.py:Tied", "code_dir": str(tmp_path)}


def assert_same(curve: list[Any], expected: list[Any]) -> None:
    assert [step for step, _ in curve] == [step for step, _ in expected]
    for (step, values), (_, expected_values) in zip(curve, expected, strict=True):
        assert values == pytest.approx(expected_values, abs=TOLERANCE), f"after step {step}"


@pytest.fixture(scope="module")
def single(ranks: Any) -> list[Any]:
    return list(ranks.curve(Plan(64)))


# Every axis, and with each other axis that it interacts with: in each row, what no row before it has. What is missing
# (ZeRO-1, shards × sequence parallel) is trained with every feature of an update in ``updates/test_every_plan.py``, or
# by ``make soak``.
PLANS = [
    Plan(64, recompute=True),
    Plan(16, num_micro_batches=4),
    Plan(16, 2, evaluation_batch=3, dp_shard=2, recompute=True),  # shards × accumulation, recompute
    Plan(16, dp_shard=2, dp_replicate=2),  # shards × replicas
    Plan(16, num_micro_batches=2, dp_shard=2, reshard=False),  # kept whole × accumulation
    Plan(16, num_micro_batches=2, dp_shard=2, recompute=True, selective=True),  # shards × selective recompute
    Plan(64, tp=2, recompute=True, selective=True),  # tensor parallel × selective recompute
    Plan(16, num_micro_batches=4, tp=2, sequence_parallel=True, recompute=True),  # sequence × accumulation, recompute
    Plan(16, num_micro_batches=4, pp=2, schedule="gpipe", tp=2, recompute=True),  # pipeline × tensor parallel
    Plan(8, num_micro_batches=4, evaluation_batch=5, pp=2, dp_shard=2),  # 1F1B × shards
    Plan(32, num_micro_batches=2, pp=2, cut=(2, 0), recompute=True, recomputed=(1,)),  # any cut, some blocks
    Plan(64, co_shard=4),
    Plan(16, num_micro_batches=2, dp_shard=2, co_shard=2, recompute=True),  # co-shard × shards, accumulation, recompute
]
MORE_PLANS = [
    Plan(32, dp_replicate=2, tp=2),
    Plan(8, 2, evaluation_batch=3, dp_shard=4, recompute=True),
    Plan(32, dp_shard=2, tp=2, sequence_parallel=True),
    Plan(8, num_micro_batches=4, pp=2, dp_replicate=2, schedule="gpipe", recompute=True),
    Plan(16, num_micro_batches=2, dp_replicate=2, zero1=True, recompute=True),
    Plan(32, dp_shard=2),
    Plan(8, num_micro_batches=2, dp_replicate=4, recompute=True),
    Plan(64, tp=2),
    Plan(16, num_micro_batches=4, tp=4, sequence_parallel=True, recompute=True),
    Plan(32, dp_shard=2, tp=2),
    Plan(16, num_micro_batches=4, pp=2),
    Plan(16, num_micro_batches=4, pp=2, tp=2),
    Plan(8, num_micro_batches=4, pp=2, tp=2, dp_shard=2, recompute=True),
    Plan(16, num_micro_batches=4, pp=2, tp=2, sequence_parallel=True),
    Plan(4, num_micro_batches=4, pp=2, dp_replicate=2, dp_shard=2),
    Plan(16, dp_replicate=2, dp_shard=2, tp=2, sequence_parallel=True, recompute=True),
    Plan(32, dp_shard=2, tp=2, reshard=False),
    Plan(8, num_micro_batches=2, dp_replicate=2, dp_shard=2, reshard=False, recompute=True, selective=True),
    Plan(16, num_micro_batches=2, dp_replicate=2, zero1=True),
    Plan(16, dp_replicate=4, zero1=True, recompute=True),
]


def soak(case: Any) -> Any:
    return pytest.param(*case if isinstance(case, tuple) else (case,), marks=pytest.mark.soak)


@pytest.mark.sample
@pytest.mark.parametrize("plan", [*PLANS, *map(soak, MORE_PLANS)], ids=str)
def test_every_plan_gives_the_curve_of_one_process(ranks: Any, single: list[Any], plan: Plan) -> None:
    assert_same(ranks.curve(plan), single)


ORDERS = [Plan(16, 4, pp=2, schedule="zbv", evaluation_batch=5), Plan(16, 4, pp=2, schedule="zb-h1")]
ORDERS += [Plan(16, 4, pp=2, schedule="interleaved", cut=(1, 1, 1, 1)), Plan(16, 4, pp=2, schedule="dualpipev")]
GIVEN = Plan(32, 2, pp=2, schedule="1F0 1F1 1I0 1W0 1B1; 0F0 0F1 2F0 2B0 2F1 2B1 0B1 0B0", cut=(1, 2, 1))


@pytest.mark.parametrize("plan", [ORDERS[0], GIVEN, *map(soak, ORDERS[1:])], ids=str)
def test_every_order_of_passes_gives_the_curve_of_one_process(ranks: Any, plan: Plan) -> None:
    deep = {"params": {"depth": 4, "width": 32}}
    assert_same(ranks.curve(plan, 2, **deep), ranks.curve(Plan(64), 2, **deep))


def test_shared_parameters_and_unsaved_buffers_train_alike_when_sharded(ranks: Any, tied: dict[str, Any]) -> None:
    # One sample at a time leaves no padding in the evaluation of the 13: the sharded one pads, and must not count it.
    assert_same(ranks.curve(Plan(4, dp_shard=2, evaluation_batch=3), **tied), ranks.curve(Plan(1, 8), **tied))


# Ranks with unlike shares, stages without a loss, micro-batches with unlike numbers of tokens.
COUNTED = [Plan(3, 2, dp_shard=2, shares=(1, 3)), Plan(2, 4, pp=2)]


@pytest.mark.parametrize("plan", COUNTED, ids=str)
def test_a_sum_is_divided_by_the_tokens_of_the_whole_batch(ranks: Any, plan: Plan) -> None:
    answers: dict[str, Any] = {"workload": "counted.py:Answers", "code_dir": str(WORKLOADS), "params": {"lr": 0.01}}
    assert_same(ranks.curve(plan, 3, **answers), ranks.curve(Plan(8), 3, **answers))


# Sequences of 11 positions and layers of 171 features, which no number of ranks divides.
ODD = [Plan(8, tp=2, sequence_parallel=True, recompute=True)]
MORE_ODD = [Plan(2, 4, tp=4, sequence_parallel=True), Plan(4, dp_replicate=2, tp=2, sequence_parallel=True)]


@pytest.mark.parametrize("plan", [*ODD, *map(soak, MORE_ODD)], ids=str)
def test_ranks_may_have_parts_of_unlike_sizes(ranks: Any, plan: Plan) -> None:
    odd: dict[str, Any] = {"workload": "plans.py:Tokens", "code_dir": str(WORKLOADS)}
    odd["params"] = {"lr": 0.003, "length": 11, "hidden": 171, "kinds": "ana"}
    assert_same(ranks.curve(plan, 2, **odd), ranks.curve(Plan(8), 2, **odd))


FROZEN = """
import torch
from torch import nn
from workloads.protocol import Workload

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.teacher = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).requires_grad_(False)
        self.layer = nn.Linear(4, 4)
        self.eval()  # as models are that from_pretrained returns
    def train(self, mode=True):
        super().train(mode)
        self.teacher.eval()
        return self
    def forward(self, x):
        return self.layer(x) - self.teacher(x)

class Frozen(Workload):
    num_train = num_eval = 16
    def build_model(self): return Net()
    def train_batch(self, indices): return torch.sin(indices[:, None] + torch.arange(4.0))
    eval_batch = train_batch
    def loss(self, model, batch):
        assert model.training and not model.teacher.training
        return model(batch).square().mean()
    def evaluate(self, model, batch): return {"loss": model(batch).square().mean(1)}
"""


def test_a_model_trains_in_the_mode_that_train_gives_it_from_the_first_step_on(ranks: Any, tmp_path: Path) -> None:
    (tmp_path / "frozen.py").write_text(FROZEN)
    frozen: dict[str, Any] = {"workload": "frozen.py:Frozen", "code_dir": str(tmp_path)}
    assert_same(ranks.curve(Plan(4, 2), 2, **frozen), ranks.curve(Plan(8), 2, **frozen))
    assert_same(ranks.curve(Plan(4, dp_shard=2), 2, **frozen), ranks.curve(Plan(8), 2, **frozen))


SHARDED, REPLICATED = Plan(32, dp_shard=2), Plan(16, dp_shard=2, dp_replicate=2)
PIPELINE, ZERO1 = Plan(16, 4, pp=2), Plan(16, 2, dp_replicate=2, zero1=True)
# A checkpoint does not say which plan has written it: each kind of plan writes one and reads one.
RESUMED = [
    (Plan(64), PIPELINE),
    (SHARDED, REPLICATED),
    (Plan(64, tp=2), Plan(32, dp_shard=2, tp=2)),
]
MORE_RESUMED = [
    (PIPELINE, SHARDED),
    (REPLICATED, ZERO1),
    (ZERO1, Plan(64)),
    (Plan(64), SHARDED),
    (SHARDED, Plan(64)),
    (REPLICATED, Plan(64)),
    (PIPELINE, Plan(64)),
    (SHARDED, ZERO1),
]


@pytest.mark.sample
@pytest.mark.parametrize(("first", "then"), [*RESUMED, *map(soak, MORE_RESUMED)], ids=str)
def test_a_resumed_training_goes_on_with_the_same_curve_on_other_ranks(
    ranks: Any, tmp_path: Path, single: list[Any], first: Plan, then: Plan
) -> None:
    stopped = ranks.train(first, checkpoint_root=str(tmp_path), stop_after=2)
    assert [answer["ended"] for answer in stopped] == ["stopped"] * first.world_size
    assert stopped[0]["checkpoints"] == [2]
    assert_same(ranks.curve(then, checkpoint_root=str(tmp_path), resume_step=2), single[1:])


@pytest.mark.sample
@pytest.mark.parametrize(("first", "then"), RESUMED, ids=str)
def test_a_training_that_stops_with_a_checkpoint_between_reports_goes_on_with_the_same_curve(
    ranks: Any, tmp_path: Path, single: list[Any], first: Plan, then: Plan
) -> None:
    stopped = ranks.train(first, checkpoint_root=str(tmp_path), stop_after=3, keeps=True)
    assert stopped[0]["checkpoints"] == [2, 3]
    assert_same(ranks.curve(then, checkpoint_root=str(tmp_path), resume_step=3), single[1:])


def test_a_training_that_stops_after_a_report_writes_one_checkpoint(ranks: Any, tmp_path: Path) -> None:
    stopped = ranks.train(Plan(32), checkpoint_root=str(tmp_path), stop_after=2, keeps=True)
    assert stopped[0]["checkpoints"] == [2]


def test_epochs_are_the_unit_of_reports_and_checkpoints_also_after_a_resume(
    tied: dict[str, Any], tmp_path: Path
) -> None:
    def trained(in_epochs: bool, steps: int, until: int, resume: int = 0) -> Collected:
        """Reports and checkpoints with batches of 16 out of 50 samples: 4 optimizer steps in an epoch."""
        reporter = Collected(None)
        start = CheckpointName(1, resume) if resume else None
        saved = tmp_path / f"{in_epochs}"
        job = TrainingJob(
            Candidate("tied.py:Tied", None, {}), tmp_path, Plan(16), 0, steps, 1 if in_epochs else 4, None, saved, 1,
            start, ["loss"], until=until, in_epochs=in_epochs,
        )  # fmt: skip
        assert train(job, 0, 1, None, reporter) == "done"
        return reporter

    expected = trained(in_epochs=False, steps=12, until=12).reports
    first = trained(in_epochs=True, steps=3, until=2)
    assert first.checkpoints[-1].step == 2
    reports = first.reports + trained(in_epochs=True, steps=3, until=3, resume=2).reports
    assert reports == [(step // 4, values) for step, values in expected]


def test_a_resumed_replica_takes_only_the_states_that_it_updates(ranks: Any, tmp_path: Path) -> None:
    plan = Plan(16, 2, dp_replicate=2, zero1=True)
    fresh = ranks.train(plan, checkpoint_root=str(tmp_path), stop_after=2)
    resumed = ranks.train(plan, steps=8, checkpoint_root=str(tmp_path), resume_step=2)
    replica = ranks.train(plan, steps=8, checkpoint_root=str(tmp_path / "other"))
    assert fresh[0]["checkpoints"] == [2]
    assert resumed[0]["checkpoints"][-1] == 8
    assert 0 < resumed[0]["peak"] == pytest.approx(replica[0]["peak"], abs=1000)


@pytest.mark.parametrize("plan", [Plan(64), SHARDED], ids=str)
def test_a_recorded_checkpoint_that_is_missing_ends_the_attempt_and_nothing_starts_again(
    ranks: Any, tmp_path: Path, plan: Plan
) -> None:
    answers = ranks.train(plan, checkpoint_root=str(tmp_path), resume_step=2)
    assert [answer["error"] for answer in answers] == ["StorageFault"] * plan.world_size
    assert "the checkpoint of step 2, which the study database has recorded, is not in" in answers[0]["message"]
    assert answers[0]["reports"] == []


def test_a_damaged_checkpoint_is_replaced_by_training_on_from_an_older_one(ranks: Any, tmp_path: Path) -> None:
    first = ranks.train(SHARDED, checkpoint_root=str(tmp_path))
    shard = next((tmp_path / "1" / "step-4").glob("__1_*"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    continued = ranks.train(SHARDED, checkpoint_root=str(tmp_path), resume_step=4)
    assert continued[0]["reports"] == first[0]["reports"][1:], "from step 2"
    assert continued[0]["checkpoints"] == [4] and shard.read_bytes() != content, "it is written anew"


def test_a_gang_whose_ranks_see_different_folders_does_not_train(ranks: Any, tmp_path: Path) -> None:
    answers = ranks.train(SHARDED, checkpoint_root=str(tmp_path / "host-{rank}"))
    assert [answer["error"] for answer in answers] == ["StorageFault"] * 2
    assert "ranks do not share the checkpoint folder" in answers[0]["message"] and not answers[0]["reports"]
    assert not list((tmp_path / "host-0" / "1").iterdir()), "nothing is left behind"


def test_a_folder_that_cannot_be_written_is_a_fault_of_the_storage(ranks: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    answers = ranks.train(Plan(64), checkpoint_root=str(tmp_path / "file"))
    assert answers[0]["error"] == "StorageFault" and "cannot be written" in answers[0]["message"]


def test_one_rank_that_is_told_to_stop_stops_all_at_the_same_step(ranks: Any) -> None:
    answers = ranks.train(Plan(32, dp_shard=2), steps=50, stop_after=3, stopped_rank=1)
    assert [(answer["ended"], answer["asked"]) for answer in answers] == [("stopped", 3), ("stopped", 3)]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_step_is_timed_without_the_first_ones_evaluations_and_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    monkeypatch.setattr(time, "perf_counter", Clock())
    reporter = Collected(None)
    job = TrainingJob(
        Candidate("slow.py:Slow", None, {}), tmp_path, Plan(8), 0, 12, 4, None, tmp_path / "saved", 1, None, ["loss"]
    )
    assert train(job, 0, 1, None, reporter) == "done"
    assert reporter.checkpoints and reporter.times == [(3, 1), (5, 5), (7, 9)], "step n takes n seconds, from 3 on"


@pytest.mark.parametrize("workload", ["slow.py:Slow", "slow.py:Missing"])
def test_unused_memory_goes_back_to_the_device_however_training_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workload: str
) -> None:
    given_back: list[torch.device] = []
    (tmp_path / "slow.py").write_text(SLOW)
    monkeypatch.setattr(time, "perf_counter", Clock())
    monkeypatch.setattr("workloads.training.memory.budget.give_back", given_back.append)
    job = TrainingJob(Candidate(workload, None, {}), tmp_path, Plan(8), 0, 1, 1, None, tmp_path, 1, None, ["loss"])
    with suppress(Exception):
        train(job, 0, 1, None, Collected(None))
    assert len(given_back) == 1


def test_a_training_too_short_to_be_timed_reports_no_time_and_only_rank_0_reports_any(ranks: Any) -> None:
    short, pair = ranks.train(Plan(64), steps=3), ranks.train(Plan(32, dp_shard=2), steps=5)
    assert short[0]["times"] == []
    assert [num for _, num in pair[0]["times"]] == [1, 2] and pair[1]["times"] == []
    assert all(seconds > 0 for seconds, _ in pair[0]["times"])
    first, last = pair[0]["check_shares"]
    assert 0 < first < 1 and 0 < last < 1, "the share of the time that checks took"


def test_a_rank_that_fails_is_named_and_its_sibling_knows_it_is_not_to_blame(ranks: Any, tied: dict[str, Any]) -> None:
    answers = ranks.train(Plan(4, dp_shard=2), params={"fail_at": 1}, **tied)
    assert {answer["error"] for answer in answers} <= {"ValueError", "PeerLost"}
    assert any("the user's own mistake" in answer["message"] for answer in answers)


def test_an_error_of_users_that_reads_like_a_lost_peer_is_their_own(ranks: Any, tied: dict[str, Any]) -> None:
    answers = ranks.train(Plan(4, dp_shard=2), params={"fail_at": 1, "words": "Connection reset by the data"}, **tied)
    assert "RuntimeError" in {answer["error"] for answer in answers}


@pytest.mark.sample
def test_a_loss_that_is_not_finite_ends_the_training_with_its_step(ranks: Any, tied: dict[str, Any]) -> None:
    answers = ranks.train(Plan(4, dp_shard=2), params={"factor": float("inf")}, **tied)
    assert [answer["error"] for answer in answers] == ["NonFiniteLoss"] * 2
    assert "at step 1, with the initial weights" in answers[0]["message"]
    assert "lower the learning rate" not in answers[0]["message"]
    (answer,) = ranks.train(Plan(4), params={"factor": float("inf"), "factor_from": 1}, **tied)
    assert answer["message"] == "the training loss became inf at step 2: lower the learning rate"


def test_an_objective_that_the_workload_does_not_report_is_refused(ranks: Any) -> None:
    (answer,) = ranks.train(Plan(64), metric="f1")
    assert answer["error"] == "WorkloadError"
    assert "reports accuracy, loss, train_loss" in answer["message"]


def test_the_checkpoint_of_the_best_report_is_kept_also_over_a_resume(tied: dict[str, Any], tmp_path: Path) -> None:
    """The loss falls with each report, so the first is the largest: by ``maximize`` it stays the best."""

    def trained(until: int, resume: int, best: tuple[float, int] | None) -> Collected:
        reporter = Collected(None)
        start = CheckpointName(1, resume) if resume else None
        job = TrainingJob(
            Candidate("tied.py:Tied", None, {}), tmp_path, Plan(16), 0, 20, 2, None, tmp_path / "saved", 1, start,
            ["loss"], until=until, best_of="maximize", best=best,
        )  # fmt: skip
        assert train(job, 0, 1, None, reporter) == "done"
        return reporter

    first = trained(10, 0, None).reports[0][1]["loss"]
    trained(20, 10, (first, 2))
    kept = {name.step for name in written_checkpoints(tmp_path / "saved", 1)}
    assert {2, 20} <= kept and len(kept) <= 4
