"""How an attempt ends on one rank, without Ray and without training."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from estimators.learning import AttemptPhase
from estimators.model import Candidate, Plan
from scamp_service.cluster.worker import attempt, report_queue
from scamp_service.cluster.worker.answers import Ended
from scamp_service.cluster.worker.attempt import Training
from scamp_service.cluster.worker.folders import Folders
from scamp_service.cluster.worker.line_writer import LineWriter
from scamp_service.cluster.worker.report_queue import ReportQueue
from scamp_service.control.executor import Order
from scamp_service.host import kernel
from scamp_service.lifecycle import Outcome
from tests.ranks import ORDER, FakeSink
from workloads.refusals import WorkloadError
from workloads.training.attempt.loop import NonFiniteLoss
from workloads.training.faults import StorageFault
from workloads.training.guard.division import DependsOnDivision
from workloads.training.guard.resuming import ResumesDifferently
from workloads.training.memory.budget import OutOfMemory
from workloads.training.runtime import PeerLost

PAIR = replace(ORDER, plan=Plan(1, dp_shard=2))


class FakeCleaner:
    """Says what it was told to say after users' code, and keeps what it was asked."""

    def __init__(self, unclean: str = "") -> None:
        self.unclean = unclean
        self.asked: list[str] = []

    def remember(self) -> None:
        self.asked.append("remember")

    def restore(self, code_dir: Path) -> str:
        self.asked.append(f"restore {code_dir}")
        return self.unclean


def end(
    train: Callable[..., str],
    sink: FakeSink,
    *,
    order: Order = ORDER,
    rank: int = 0,
    cleaner: FakeCleaner | None = None,
    output: LineWriter | None = None,
    is_last: bool = False,
) -> Ended:
    channel = ReportQueue(order, rank, sink, lambda: False)  # type: ignore[arg-type]
    folders = Folders(kernel(), Path("/nowhere"), Path("/nowhere"))
    options: Any = {"sink": sink, "cleaner": cleaner or FakeCleaner(), "output": output or LineWriter()}
    attempt = Training(
        train=train,
        reports=channel,
        rendezvous=None,
        served=object(),
        give_up=lambda: False,
        folders=folders,
        pack=None,
        is_first=True,
        is_last=is_last,
        **options,
    )
    return attempt.cleaned(attempt.run())


def fail(error: BaseException) -> Callable[..., str]:
    def train(*_: Any) -> str:
        raise error

    return train


def test_a_stale_attempt_is_not_trained() -> None:
    sink = FakeSink(started=False)
    assert end(fail(AssertionError("it was trained")), sink) == Ended(None, "the attempt has already ended", True)
    assert sink.outcomes == [] and sink.accepted == []


@pytest.mark.parametrize(("verdict", "outcome"), [("done", Outcome.DONE), ("stopped", Outcome.STOPPED)])
def test_rank_0_alone_reports_how_a_training_ended_and_the_process_can_train_again(
    verdict: str, outcome: Outcome
) -> None:
    first, second = FakeSink(), FakeSink()
    assert end(lambda *_: verdict, first) == end(lambda *_: verdict, second, rank=1) == Ended(outcome, "", True)
    assert (first.outcomes, second.outcomes) == ([(outcome, "")], [])


def test_a_process_that_has_trained_often_is_not_used_again() -> None:
    assert not end(lambda *_: "done", FakeSink(), is_last=True).reusable


def test_a_process_that_has_run_a_users_code_is_used_again_if_it_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Training, "_unpack", lambda self, sha256: None)
    theirs = replace(ORDER, candidate=Candidate("mine.py:Mine", "sha", {}))
    for unclean in ("", "threads still run: theirs"):
        cleaner = FakeCleaner(unclean)
        ended = end(lambda *_: "done", FakeSink(), order=theirs, cleaner=cleaner)
        assert cleaner.asked == ["remember", "restore /nowhere/sha"]
        assert (ended.outcome, ended.reusable) == (Outcome.DONE, not unclean) and unclean in ended.detail
    built_in = FakeCleaner("never asked")
    assert end(lambda *_: "done", FakeSink(), cleaner=built_in).reusable and built_in.asked == []


def test_a_library_that_keeps_the_stream_of_an_earlier_attempt_prints_to_the_present_one() -> None:
    output, streams = LineWriter(), []

    def first(*_: Any) -> str:
        streams.append(sys.stderr)
        return "done"

    def second(*_: Any) -> str:
        print("from a library", file=streams[0])
        return "done"

    end(first, FakeSink(), output=output)
    print("between two attempts", file=streams[0])
    sink = FakeSink()
    end(second, sink, output=output)
    assert [line.text for report in sink.accepted for line in report.logs] == ["from a library"]


def test_any_rank_reports_that_it_ran_out_of_memory_and_how_much_it_needed() -> None:
    sink = FakeSink()
    ended = end(fail(OutOfMemory(5, 77, 60, phase=AttemptPhase.EVALUATION)), sink, rank=1)
    assert (ended.outcome, ended.reusable) == (Outcome.OUT_OF_MEMORY, False) and ended.detail.startswith("rank 1: ")
    assert sink.outcomes == [(Outcome.OUT_OF_MEMORY, ended.detail)] and sink.phases == [AttemptPhase.EVALUATION]
    assert sink.accepted[-1].measured_bytes == 77


def test_a_user_who_leaves_the_process_has_made_an_error() -> None:
    sink = FakeSink()
    ended = end(fail(SystemExit("bye")), sink, rank=1)
    assert ended.outcome is Outcome.ERROR and not ended.reusable
    assert ended.detail.startswith("ends Python (bye)\n→ raise an exception instead\n\nTraceback")
    assert sink.outcomes == [(Outcome.ERROR, ended.detail)]


def test_a_rank_that_only_lost_its_peers_lets_them_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "WITNESS_SECONDS", 0.01)
    sink = FakeSink()
    ended = end(fail(PeerLost("connection reset")), sink, order=PAIR)
    assert ended.outcome is None
    assert "rank 0 lost its peers" in ended.detail
    assert not ended.reusable
    assert sink.outcomes == []
    assert end(fail(PeerLost("of no gang")), FakeSink()).outcome is Outcome.ERROR


def test_what_a_user_prints_is_logged_before_the_outcome() -> None:
    def train(*_: Any) -> str:
        print("half a line", end="")
        return "done"

    sink = FakeSink()
    end(train, sink)
    assert [line.text for report in sink.accepted for line in report.logs] == ["half a line"]


def test_a_rank_whose_rows_were_lost_never_reports_that_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def flush(_: Any) -> bool:
        raise KeyError("no such column")

    monkeypatch.setattr(report_queue, "MAX_REFLUSHES", 0)
    for verdict in ("done", "stopped"):
        sink = FakeSink(flush)

        def train(*arguments: Any, verdict: str = verdict) -> str:
            arguments[4].metrics(1, {"accuracy": 0.5})
            return verdict

        ended = end(train, sink)
        assert ended.outcome is Outcome.FAULT and not ended.reusable
        assert ended.detail == "rank 0: its reports could not be stored: KeyError: 'no such column'"
        assert sink.outcomes == [(Outcome.FAULT, ended.detail)]


def test_a_full_disk_and_a_lost_checkpoint_folder_are_faults_that_any_rank_reports() -> None:
    for error, why in (
        (OSError(errno.ENOSPC, "No space left on device", "/data/x"), "No space left on device: /data/x"),
        (StorageFault("ranks do not share the checkpoint folder /x"), "ranks do not share the checkpoint folder /x"),
    ):
        sink = FakeSink()
        ended = end(fail(error), sink, rank=1)
        assert (ended.outcome, ended.detail, ended.reusable) == (Outcome.FAULT, f"rank 1: {why}", False)
        assert sink.outcomes == [(Outcome.FAULT, f"rank 1: {why}")]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (NonFiniteLoss("the training loss became nan at step 3"), Outcome.DIVERGED),
        (DependsOnDivision("the loss changes in step 1"), Outcome.DEPENDS_ON_DIVISION),
        (ResumesDifferently("the loss of step 5 is 0.2, and was 0.1"), Outcome.RESUMES_DIFFERENTLY),
    ],
)
def test_what_all_ranks_find_is_reported_by_the_one_that_ends_first(error: Exception, outcome: Outcome) -> None:
    first, second = FakeSink(), FakeSink()
    for sink, rank in ((first, 0), (second, 1)):
        assert end(fail(error), sink, rank=rank).outcome is outcome
    assert first.outcomes == second.outcomes == [(outcome, str(error))]


class Hostile(ValueError):
    """An error whose class fails wherever it can."""

    def __str__(self) -> str:
        raise SystemExit("no")

    __repr__ = __str__

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        raise KeyboardInterrupt


def _nested(depth: int) -> Exception:
    error: Exception = ValueError("deepest")
    for _ in range(depth):
        error = ExceptionGroup("several", [error])
    return error


def _circular() -> Exception:
    first, second = ValueError("first"), RuntimeError("second")
    first.__cause__, second.__cause__ = second, first
    return first


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Hostile(), "Hostile"),
        (_nested(5000), "ExceptionGroup"),
        (_circular(), "ValueError: first"),
        (ValueError("x" * 10**7), "ValueError: xxx"),
        (WorkloadError("x" * 10**7), "xxx"),
        (ValueError("half \ud800 nul \0"), "half"),
    ],
    ids=["hostile", "nested", "circular", "long", "long words", "odd"],
)
def test_any_error_of_a_workload_ends_its_trial_in_bounded_words(error: Exception, words: str) -> None:
    sink = FakeSink()
    end(fail(error), sink)
    ((outcome, detail),) = sink.outcomes
    assert outcome is Outcome.ERROR and words in detail.splitlines()[0] + detail.splitlines()[1]
    assert len(detail) < 17_000
