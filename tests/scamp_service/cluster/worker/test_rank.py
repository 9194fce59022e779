"""One rank process that is asked over and over, without Ray."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayTaskError

from scamp_service.cluster.sink import LeaseWatch, Silence
from scamp_service.cluster.worker import rank as module
from scamp_service.cluster.worker.answers import Ended
from scamp_service.cluster.worker.attempt import Training
from scamp_service.cluster.worker.folders import Folders
from scamp_service.cluster.worker.rank import Rank
from scamp_service.cluster.worker.report_queue import ReportQueue
from scamp_service.errors import Deposed, Unavailable
from scamp_service.host import kernel
from scamp_service.lifecycle import Outcome
from scamp_service.model import Lease
from tests.ranks import ORDER, FakeSink
from tests.services.processes import ROOT
from tests.waiting import PATIENCE_SECONDS

OTHER = replace(ORDER, trial_id=2)


@pytest.fixture
def new_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setattr(module, "SinkClient", lambda namespace: FakeSink())
    monkeypatch.setattr(module, "close_environment", lambda passed: None)  # it would close that of pytest
    monkeypatch.setattr("workloads.training.warm_up.prepare_process", lambda: None)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")

    def new(train: Callable[..., Any], max_attempts: int = 10) -> Rank:
        rank = Rank(Folders(kernel(), tmp_path / "code", tmp_path / "checkpoints"), 1e6, max_attempts, "scamp", 1)
        rank._train = train
        return rank

    return new


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when the rank would end its process, which is that of pytest."""
    ended = threading.Event()
    monkeypatch.setattr(module, "LAST_WORDS_SECONDS", 0.0)
    monkeypatch.setattr(os, "_exit", lambda code: ended.set())
    return ended


def test_an_order_that_arrives_twice_is_trained_once(new_rank: Callable[..., Any]) -> None:
    trained: list[Any] = []
    rank = new_rank(lambda job, *_: trained.append(job) or "done")  # type: ignore[func-returns-value]
    assert [rank.run(ORDER, 0, None, 1) for _ in range(2)] == [Ended(Outcome.DONE, "", True)] * 2
    assert len(trained) == 1
    assert rank.run(OTHER, 0, None, 1).outcome is Outcome.DONE
    assert len(trained) == 2


def test_cuda_counts_the_gpus_of_a_rank_as_nvml_does(new_rank: Callable[..., Any]) -> None:
    new_rank(lambda *_: "done")
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_an_attempt_that_is_not_here_is_over(new_rank: Callable[..., Any]) -> None:
    assert new_rank(lambda *_: "done").join("7/1") == Ended(None, "the attempt never began on this rank", True)


def test_a_stop_may_come_before_its_order(new_rank: Callable[..., Any]) -> None:
    rank = new_rank(lambda job, number, world, store, reports, pack: "stopped" if reports.should_stop() else "done")
    rank.stop(ORDER.key, 1)
    assert rank.run(ORDER, 0, None, 1).outcome is Outcome.STOPPED
    assert rank.run(OTHER, 0, None, 1).outcome is Outcome.DONE


def test_it_obeys_no_controller_that_was_replaced(new_rank: Callable[..., Any]) -> None:
    rank = new_rank(lambda *_: "done")
    assert rank.status(2).key == ""
    for stale in (
        lambda: rank.status(1),
        lambda: rank.run(ORDER, 0, None, 1),
        lambda: rank.stop(ORDER.key, 1),
        lambda: rank.rendezvous(ORDER.key, 2, "127.0.0.1", 1),
    ):
        with pytest.raises(Deposed):
            stale()
    assert rank.run(ORDER, 0, None, 3).outcome is Outcome.DONE


def test_it_says_what_it_does(new_rank: Callable[..., Any]) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def train(*_: Any) -> str:
        begun.set()
        may_end.wait(PATIENCE_SECONDS)
        return "done"

    rank = new_rank(train)
    assert (rank.status(1).key, rank.status(1).process.pid) == ("", os.getpid())
    caller = threading.Thread(target=rank.run, args=(ORDER, 0, None, 1))
    caller.start()
    assert begun.wait(PATIENCE_SECONDS)
    assert (rank.status(1).key, rank.status(1).world, rank.status(1).reusable) == (ORDER.key, 1, True)
    may_end.set()
    caller.join(PATIENCE_SECONDS)
    assert rank.status(1).key == ""


def test_after_its_last_attempt_it_takes_no_other_and_ends(new_rank: Callable[..., Any], ends: threading.Event) -> None:
    rank = new_rank(lambda *_: "done", max_attempts=1)
    assert rank.run(ORDER, 0, None, 1) == Ended(Outcome.DONE, "", False)
    assert ends.wait(PATIENCE_SECONDS)
    assert not rank.status(1).reusable
    with pytest.raises(AssertionError, match="about to end"):
        rank.run(OTHER, 0, None, 1)


class Answering(FakeSink):
    """A sink whose answer to each question about the lease is this one; an error is raised as Ray does."""

    def __init__(self, answer: Lease | Exception) -> None:
        super().__init__()
        self.answer = answer

    def ask(self, method: str, *args: Any, give_up: Any = None) -> Any:
        return self.try_once(method) if method == "lease" else super().ask(method, *args, give_up=give_up)

    def try_once(self, method: str) -> Lease:
        if isinstance(self.answer, Unavailable):
            raise RayTaskError(method, "", self.answer, "p", 1, "ip").as_instanceof_cause()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_a_rank_that_a_replaced_controller_starts_ends(
    new_rank: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SinkClient", lambda namespace: Answering(Lease("the next one", 2, 0)))
    with pytest.raises(Deposed, match="term 2 leads now"):
        new_rank(lambda *_: "done")
    monkeypatch.setattr(module, "SinkClient", lambda namespace: Answering(Lease("me", 1, 7)))
    rank = new_rank(lambda *_: "done")
    with pytest.raises(Deposed):
        rank.run(ORDER, 0, None, 0)
    assert rank.run(ORDER, 0, None, 1).outcome is Outcome.DONE


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


AWAY = Unavailable("the study database cannot be used")


@pytest.mark.parametrize(
    ("answer", "gcs", "lives"),
    [
        (AWAY, True, True),
        (AWAY, False, False),  # cut off together with the sink
        (ValueError("no actor has this name"), True, False),
        (TimeoutError("no answer"), True, False),
        (RuntimeError("the sink has died"), True, False),
        (Lease("me", 1, 0), True, False),  # not renewed, although the database can be written
    ],
    ids=str,
)
def test_a_rank_lives_as_long_as_the_sink_says_that_it_waits_for_its_database(
    new_rank: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, answer: Any, gcs: bool, lives: bool
) -> None:
    for thread in ("_watch_lease", "_watch_silence"):  # they would end this process
        monkeypatch.setattr(Rank, thread, lambda self: None)
    rank, clock = new_rank(lambda *_: "done"), Clock()
    monkeypatch.setattr(module, "SinkClient", lambda namespace: Answering(answer))
    monkeypatch.setattr(module, "gcs_answers", lambda: gcs)
    rank._silence, watch = Silence(60.0, clock), LeaseWatch(60.0, clock)

    def is_alive() -> bool:
        """Let both watching threads of a rank look at the sink once a second."""
        clock.now += 1.0
        lapsed = clock.now % 6 == 0 and watch.has_lapsed(rank._read_lease)
        return not (lapsed or rank._silence.is_too_long())

    assert all(is_alive() for _ in range(59))
    assert all(is_alive() for _ in range(200)) is lives


@pytest.mark.parametrize("waits", [True, False])
def test_an_attempt_that_waits_for_the_database_is_not_stuck_and_one_that_waits_for_anything_else_is(
    new_rank: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def train(*args: Any) -> str:
        reports: ReportQueue = args[4]
        with reports.awaiting_sink() if waits else nullcontext():
            begun.set()
            may_end.wait(PATIENCE_SECONDS)
        return "done"

    monkeypatch.setattr(Rank, "_watch_silence", lambda self: None)
    rank = new_rank(train)
    caller = threading.Thread(target=rank.run, args=(ORDER, 0, None, 1))
    caller.start()
    assert begun.wait(PATIENCE_SECONDS)
    monkeypatch.setattr(module, "gcs_answers", lambda: True)
    for answer, num_signs in [(AWAY, 1), (ValueError("no actor has this name"), 1), (AWAY, 2)]:
        monkeypatch.setattr(module, "SinkClient", lambda namespace, answer=answer: Answering(answer))
        with pytest.raises(TimeoutError):
            rank._read_lease()
        assert rank.status(1).num_signs == (num_signs if waits else 0)
    may_end.set()
    caller.join(PATIENCE_SECONDS)


def test_calls_that_never_block_have_threads_of_their_own() -> None:
    for name in ("status", "stop", "rendezvous"):
        assert getattr(Rank, name).__ray_concurrency_group__ == module.CONTROL


CRASH = """
import os, sys
from types import SimpleNamespace
import ray
from scamp_service.cluster.worker.rank import keep_last_stack
ray._private.worker._global_node = SimpleNamespace(get_logs_dir_path=lambda: sys.argv[1])
keep_last_stack()
os.abort()
"""


def test_a_rank_that_crashes_leaves_its_stack_in_a_file_of_its_own(tmp_path: Path) -> None:
    crashed = subprocess.run(
        [sys.executable, "-c", CRASH, str(tmp_path)], cwd=ROOT, stderr=subprocess.DEVNULL, check=False
    )
    assert crashed.returncode == -signal.SIGABRT
    (file,) = tmp_path.iterdir()
    assert re.fullmatch(r"worker-stack-\d+\.err", file.name)
    assert "Fatal Python error: Aborted" in file.read_text()


def test_attempts_of_a_pack_train_side_by_side_and_one_may_fail(
    new_rank: Callable[..., Any], ends: threading.Event
) -> None:
    both, packs = threading.Barrier(2, timeout=PATIENCE_SECONDS), list[Any]()

    def train(job: Any, number: int, world: int, store: Any, reports: ReportQueue, pack: Any) -> str:
        packs.append(pack)
        both.wait()
        print(f"of {job.trial_id}")
        if job.trial_id == 2:
            raise ArithmeticError("only mine")
        return "done"

    rank = new_rank(train)
    first, second = replace(ORDER, pack="1/1"), replace(OTHER, pack="1/1")
    with ThreadPoolExecutor() as pool:
        results = list(pool.map(lambda order: rank.run(order, 0, None, 1), (first, second)))
    assert [ended.outcome for ended in results] == [Outcome.DONE, Outcome.ERROR]
    assert packs[0] is packs[1] is not None
    assert rank.status(1).keys == () and not rank.status(1).reusable, "after an error it ends with its last attempt"
    assert ends.wait(PATIENCE_SECONDS)


def test_after_the_error_of_one_others_may_still_join_a_pack(
    new_rank: Callable[..., Any], ends: threading.Event
) -> None:
    running, release = threading.Event(), threading.Event()

    def train(job: Any, *_: Any) -> str:
        if job.trial_id == 1:
            running.set()
            release.wait(PATIENCE_SECONDS)
        elif job.trial_id == 2:
            raise ArithmeticError("only mine")
        return "done"

    rank = new_rank(train)
    first, failing, later = (replace(ORDER, trial_id=trial, pack="1/1") for trial in (1, 2, 3))
    with ThreadPoolExecutor() as pool:
        ended = pool.submit(rank.run, first, 0, None, 1)
        running.wait(PATIENCE_SECONDS)
        assert rank.run(failing, 0, None, 1).outcome is Outcome.ERROR
        assert rank.run(later, 0, None, 1).outcome is Outcome.DONE
        release.set()
        assert ended.result().outcome is Outcome.DONE and not ended.result().reusable
    assert ends.wait(PATIENCE_SECONDS)


def test_an_attempt_of_another_pack_does_not_join(new_rank: Callable[..., Any]) -> None:
    running, release = threading.Event(), threading.Event()

    def train(*_: Any) -> str:
        running.set()
        release.wait(PATIENCE_SECONDS)
        return "done"

    rank = new_rank(train)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(rank.run, replace(ORDER, pack="1/1"), 0, None, 1)
        running.wait(PATIENCE_SECONDS)
        assert rank.run(replace(OTHER, pack="2/1"), 0, None, 1).outcome is None
        assert rank.status(1).keys == (ORDER.key,)
        release.set()
        assert first.result().outcome is Outcome.DONE


def test_who_comes_while_the_process_of_its_pack_is_cleaned_begins_after_it(
    new_rank: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaning, may_end = threading.Event(), threading.Event()
    cleaned = Training.cleaned

    def slow(self: Training, ended: Ended) -> Ended:
        cleaning.set()
        may_end.wait(PATIENCE_SECONDS)
        return cleaned(self, ended)

    monkeypatch.setattr(Training, "cleaned", slow)
    rank = new_rank(lambda *_: "done")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(rank.run, replace(ORDER, pack="1/1"), 0, None, 1)
        assert cleaning.wait(PATIENCE_SECONDS)
        late = pool.submit(rank.run, replace(OTHER, pack="1/1"), 0, None, 1)
        may_end.set()
        assert [first.result(PATIENCE_SECONDS).outcome, late.result(PATIENCE_SECONDS).outcome] == [Outcome.DONE] * 2
