from __future__ import annotations

import time

from scamp_service.cluster.reports import MAX_LINE, ROWS_PER_FLUSH, LineWriter, Reports
from tests.ranks import ORDER, FakeSink


def reports(sink: FakeSink, rank: int = 0) -> Reports:
    return Reports(ORDER, rank, sink, lambda: False)  # type: ignore[arg-type]


def test_rows_leave_in_order_in_groups_and_all_before_the_end() -> None:
    sink = FakeSink(lambda report: True)
    channel = reports(sink)
    for step in range(1, 151):
        channel.metrics(step, {"accuracy": 0.1})
    channel.measured(7)
    channel.measured(5)
    channel.timed(0.3, 50)
    channel.timed(0.2, 147)
    channel.checkpoint(150)
    assert channel.close()
    rows = [row for report in sink.accepted for row in report.metrics]
    assert [row.seq for row in rows] == [row.step for row in rows] == list(range(1, 151))
    assert all(len(report.metrics) <= ROWS_PER_FLUSH for report in sink.accepted)
    assert (sink.accepted[-1].measured_bytes, sink.accepted[-1].checkpoint_step) == (7, 150)
    assert (sink.accepted[-1].step_seconds, sink.accepted[-1].timed_steps) == (0.2, 147)


def test_a_refusal_stops_the_training_and_nothing_more_is_sent() -> None:
    sink = FakeSink(lambda report: False)
    channel = reports(sink)
    channel.metrics(1, {"accuracy": 0.1})
    deadline = time.monotonic() + 10
    while not channel.should_stop() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert channel.should_stop()
    channel.metrics(2, {"accuracy": 0.1})
    assert not channel.close()
    assert sink.accepted == []


def test_only_rank_0_tells_metrics_but_every_rank_its_log() -> None:
    sink = FakeSink(lambda report: True)
    channel = reports(sink, rank=1)
    channel.metrics(1, {"accuracy": 0.1})
    channel.log("hello")
    assert channel.close()
    assert [row.text for report in sink.accepted for row in report.logs] == ["hello"]
    assert not any(report.metrics for report in sink.accepted)


def test_a_stream_becomes_lines() -> None:
    sink = FakeSink(lambda report: True)
    channel = reports(sink)
    writer = LineWriter(channel)
    print("one", "line", file=writer)
    print("progress 1\rprogress 2", end="", file=writer)
    print("x" * (MAX_LINE + 1) + "\n\n", file=writer)
    print("no end of line", end="", file=writer)
    writer.flush()
    assert channel.close()
    lines = [row.text for report in sink.accepted for row in report.logs]
    assert lines[:2] == ["one line", "progress 1"]
    assert len(lines[2]) == MAX_LINE and lines[2].startswith("progress 2xxx")
    assert lines[3] == "no end of line"
