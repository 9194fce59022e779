"""Rows leave in order and once, refusals stop a training, and printed lines become log lines."""

from __future__ import annotations

import codecs
import faulthandler
import io
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from scamp_service.cluster.worker import report_queue as module
from scamp_service.cluster.worker.line_writer import LineWriter
from scamp_service.cluster.worker.report_queue import MAX_LINE, MOST_ROWS_PER_FLUSH, Delivery, ReportQueue
from scamp_service.errors import Unavailable
from scamp_service.model import Report
from tests.ranks import ORDER, FakeSink
from tests.waiting import PATIENCE_SECONDS, until
from workloads.training.checkpoints.name import CheckpointName


def reports(sink: FakeSink, rank: int = 0) -> ReportQueue:
    return ReportQueue(ORDER, rank, sink, lambda: False)  # type: ignore[arg-type]


def test_rows_leave_in_order_in_groups_and_all_before_the_end() -> None:
    sink = FakeSink(lambda report: True)
    channel = reports(sink)
    for step in range(1, 151):
        channel.metrics(step, {"accuracy": 0.1})
    channel.measured(7)
    channel.measured(5)
    channel.timed(0.3, 50, 0.1)
    channel.timed(0.2, 147, 0.01)
    channel.checkpoint(150)
    assert channel.close() is Delivery.STORED
    rows = [row for report in sink.accepted for row in report.metrics]
    assert [row.seq for row in rows] == [row.step for row in rows] == list(range(1, 151))
    assert all(len(report.metrics) <= MOST_ROWS_PER_FLUSH for report in sink.accepted)
    assert (sink.accepted[-1].measured_bytes, sink.accepted[-1].checkpoint_step) == (7, 150)
    last = sink.accepted[-1]
    assert (last.step_seconds, last.timed_steps, last.check_share) == (0.2, 147, 0.01)


def test_a_refusal_stops_the_training_and_nothing_more_is_sent() -> None:
    sink = FakeSink(lambda report: False)
    channel = reports(sink)
    channel.metrics(1, {"accuracy": 0.1})
    until(channel.should_stop, "the stop")
    channel.metrics(2, {"accuracy": 0.1})
    assert channel.close() is Delivery.REFUSED
    assert sink.accepted == []


def test_only_rank_0_tells_metrics_but_every_rank_its_log() -> None:
    sink = FakeSink(lambda report: True)
    channel = reports(sink, rank=1)
    channel.metrics(1, {"accuracy": 0.1})
    channel.log("hello")
    assert channel.close() is Delivery.STORED
    assert [row.text for report in sink.accepted for row in report.logs] == ["hello"]
    assert not any(report.metrics for report in sink.accepted)


def test_a_stream_becomes_lines() -> None:
    sink = FakeSink(lambda report: True)
    channel = reports(sink)
    writer = LineWriter(channel)
    writer.reconfigure(encoding="utf-8")  # as users' code may do
    print("one", "line", file=writer)
    print("progress 1\rprogress 2", end="", file=writer)
    print("x" * (MAX_LINE + 1) + "\n\n", file=writer)
    print("no end of line", end="", file=writer)
    writer.flush()
    assert channel.close() is Delivery.STORED
    lines = [row.text for report in sink.accepted for row in report.logs]
    assert lines[:2] == ["one line", "progress 1"]
    assert lines[2] == f"progress 2{'x' * (MAX_LINE - 10)} … (cut, 11 more characters)"
    assert lines[3] == "no end of line"


def test_the_stream_is_used_like_a_file_of_text_by_users_code_and_libraries() -> None:
    sink = FakeSink(lambda report: True)
    channel = reports(sink)
    writer: Any = LineWriter(channel)
    assert (writer.encoding, writer.isatty(), writer.writable(), writer.readable()) == ("utf-8", False, True, False)
    writer.buffer.write("one ü".encode()[:-1])  # half a character
    writer.buffer.write("ü\n".encode()[1:])
    writer.buffer.flush()
    io.TextIOWrapper(writer.buffer, encoding="utf-8", line_buffering=True).write("wrapped\n")  # closes it when it goes
    io.TextIOWrapper(writer.detach(), encoding="utf-8").write("detached\n")
    codecs.getwriter("utf-8")(writer.buffer).write("written\n")
    writer.writelines(["several\n", "lines\n"])
    faulthandler.dump_traceback(writer)  # writes to the process's own log
    subprocess.run(["true"], stdout=writer, stderr=writer, check=True)
    assert channel.close() is Delivery.STORED
    lines = [row.text for report in sink.accepted for row in report.logs]
    assert lines == ["one ü", "wrapped", "detached", "written", "several", "lines"]


def test_a_rank_that_prints_without_end_fills_neither_its_memory_nor_the_database(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_LOG_CHARACTERS", 3 * 2**20)
    most = 0

    def slow(report: Report) -> bool:
        nonlocal most
        most = max(most, sum(len(line.text) for line in (*report.logs, *channel._logs)))
        time.sleep(0.001)
        return True

    sink = FakeSink(slow)
    channel = reports(sink)
    for _ in range(5000):
        print("x" * 1000, file=LineWriter(channel))
    channel.metrics(1, {"accuracy": 0.1})
    assert channel.close() is Delivery.STORED
    lines = [row.text for report in sink.accepted for row in report.logs]
    assert 2**17 < most < 2 * (module.MAX_WAITING_CHARACTERS + MAX_LINE)  # being sent, and waiting
    assert 3.0e6 < sum(map(len, lines)) < 3.2e6
    assert lines[-1] == "this rank has printed 3 MiB in this attempt: the rest is not kept"
    assert sum(len(report.metrics) for report in sink.accepted) == 1


def test_a_training_waits_for_the_sink_while_there_is_no_room_for_its_rows_or_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_ROWS", 1)
    may_answer = threading.Event()
    channel = reports(FakeSink(lambda report: may_answer.wait(PATIENCE_SECONDS)))

    def train() -> None:
        for step in range(3):
            channel.metrics(step, {"accuracy": 0.1})
        channel.close()

    channel.excuse()
    assert channel.num_signs == 0
    training = threading.Thread(target=train)
    training.start()

    def has_a_sign() -> bool:
        channel.excuse()
        return channel.num_signs == 1

    until(has_a_sign, "a sign")
    may_answer.set()
    training.join(PATIENCE_SECONDS)
    channel.excuse()
    assert channel.num_signs == 1


def failing(error: BaseException, times: float) -> Callable[[Report], bool]:
    """Raises ``error`` this many times, then accepts."""
    left = [times]

    def flush(report: Report) -> bool:
        left[0] -= 1
        if left[0] >= 0:
            raise error
        return True

    return flush


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(module, "FIRST_PAUSE_SECONDS", 0.001)


@pytest.mark.parametrize(
    ("error", "times"),
    [(Unavailable("its disk is full"), 30), (MemoryError(), 30), (OSError(28, "no space"), 30), (KeyError("x"), 3)],
    ids=["database", "memory", "disk", "other"],
)
def test_every_row_arrives_once_although_the_sink_raised_before(impatient: None, error: Exception, times: int) -> None:
    sink = FakeSink(failing(error, times))
    channel = reports(sink)
    for step in range(1, 300):
        channel.metrics(step, {"accuracy": 0.1})
    assert channel.close() is Delivery.STORED and not channel.should_stop()
    assert [row.seq for report in sink.accepted for row in report.metrics] == list(range(1, 300))


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit("leave")], ids=["permanent", "fatal"])
def test_rows_that_can_never_be_stored_are_lost_and_stop_the_training(impatient: None, error: BaseException) -> None:
    sink = FakeSink(failing(error, float("inf")))
    channel = reports(sink)
    for step in range(1, module.MAX_WAITING_ROWS + 300):  # training does not wait for a sender that has ended
        channel.metrics(step, {"accuracy": 0.1})
    assert channel.close() is Delivery.LOST and channel.should_stop()
    assert type(error).__name__ in channel.why_lost
    assert sink.accepted == []


def test_the_sender_gives_up_on_a_database_that_stays_away(impatient: None) -> None:
    sink = FakeSink(failing(Unavailable("gone"), float("inf")))
    channel = ReportQueue(ORDER, 0, sink, lambda: True)  # type: ignore[arg-type]
    channel.metrics(1, {"accuracy": 0.1})
    assert channel.close() is Delivery.LOST and channel.why_lost == "Unavailable: gone"


def test_the_checkpoints_to_keep_are_the_acknowledged_one_and_the_one_on_its_way() -> None:
    begun, answered = threading.Event(), threading.Event()

    def at(step: int) -> CheckpointName:
        return CheckpointName(ORDER.trial_id, step)

    def flush(report: Report) -> bool:
        begun.set()
        return answered.wait(PATIENCE_SECONDS)

    channel = ReportQueue(replace(ORDER, resume=at(5)), 0, FakeSink(flush), lambda: False)  # type: ignore[arg-type]
    assert channel.needed_checkpoints() == {at(5)}
    channel.checkpoint(10)
    assert begun.wait(PATIENCE_SECONDS)
    channel.checkpoint(20)
    channel.checkpoint(30)
    assert channel.needed_checkpoints() == {at(5), at(10)}, "the database may have either"
    answered.set()
    assert channel.close() is Delivery.STORED
    assert channel.needed_checkpoints() == {at(30)}
