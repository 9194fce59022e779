"""Sends what one rank reports while it trains to the sink: metrics, log lines, peaks, step times and checkpoints."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Literal

from scamp_service.cluster.sink import SinkClient
from scamp_service.cluster.worker.load_meter import LoadMeter
from scamp_service.control.executor import Order
from scamp_service.errors import Unavailable
from scamp_service.model import LogLine, Metric, Report
from workloads.training.checkpoints.name import CheckpointName

ROWS_PER_FLUSH = 64
MOST_ROWS_PER_FLUSH = 1024
"""Rows that are sent at once when more are waiting, because the sink is slower than the ranks."""
FLUSH_SECONDS = 0.1
MAX_WAITING_ROWS = 4096  # beyond this, training waits for the sink
MAX_WAITING_CHARACTERS = 2**18  # of log lines, which are charged to the memory budget of a trial on CPUs
MAX_LINE = 2000
MAX_LOG_CHARACTERS = 4 * 2**20
"""The most that is kept of the log of one rank in one attempt; more would fill the database."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 10.0
MAX_REFLUSHES = 8  # after an error that is not known to pass, over about 25 s
PASSING = (Unavailable, OSError, MemoryError)
"""Errors that pass: a database that is locked or full, a lost connection, and a thread under a memory budget."""


log = logging.getLogger("scamp.rank")


class Delivery(StrEnum):
    """The fate of reports: stored, refused because the attempt is stale, or lost for another reason."""

    STORED = "STORED"
    REFUSED = "REFUSED"
    LOST = "LOST"


class ReportQueue:
    """Queue from the training of one rank to the sink; implements ``workloads.training.attempt.reporter.Reporter``.

    Rows are sent in order, once there are ``ROWS_PER_FLUSH`` or every ``FLUSH_SECONDS``, with those that have come
    meanwhile, and again until they are acknowledged. A refusal means that the attempt is stale; rows that cannot be
    sent are lost, for which ``why_lost`` gives the reason. After either, ``should_stop`` is True and nothing more is
    sent.
    """

    def __init__(
        self, order: Order, rank: int, sink: SinkClient, give_up: Callable[[], bool], meter: LoadMeter | None = None
    ) -> None:
        """Start the sender thread. It gives up on a silent sink once ``give_up()`` is True.

        Rank 0 also sends what its ``meter`` measures.
        """
        self.order, self.rank = order, rank
        self._sink, self._give_up = sink, give_up
        self._changed = threading.Condition()
        self._metrics: list[Metric] = []
        self._logs: list[LogLine] = []
        self._measured_bytes, self._news = 0, False
        self._checkpoint: CheckpointName | None = None
        self._recorded, self._sent = order.resume, order.resume
        self.why_lost = ""
        self._step_seconds, self._timed_steps, self._check_share = 0.0, 0, 0.0
        self._communication_share: float | None = None
        self._noise_scale: float | None = None
        self._meter = meter or LoadMeter()
        self._num_metrics = self._num_logs = 0
        self._waiting_characters = self._logged_characters = 0
        self._closed = self._stop = self._keep = False
        self._delivery = Delivery.STORED
        self.num_signs = self.present_step = 0
        self._num_waits = 0
        self._sender = threading.Thread(target=self._send, daemon=True)
        self._sender.start()  # now, because under a memory budget a thread may fail to start

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Queue an evaluation; no effect except on rank 0. Blocks while ``MAX_WAITING_ROWS`` are queued."""
        if self.rank != 0:
            return
        with self._changed:
            self._wait_for_room()
            self._num_metrics += 1
            order = self.order
            row = Metric(order.trial_id, order.attempt, self._num_metrics, step, dict(values), time.time())
            self._metrics.append(row)
            self._changed.notify_all()

    def log(self, text: str) -> None:
        """Queue a log line, cut after ``MAX_LINE`` characters, unless ``MAX_LOG_CHARACTERS`` were queued before.

        Blocks while ``MAX_WAITING_ROWS`` or ``MAX_WAITING_CHARACTERS`` are queued.
        """
        with self._changed:
            if self._logged_characters > MAX_LOG_CHARACTERS:
                return
            self._wait_for_room()
            self._num_logs += 1
            order, text = self.order, _cut(text)
            self._logged_characters += len(text)
            if self._logged_characters > MAX_LOG_CHARACTERS:
                text = f"this rank has printed {MAX_LOG_CHARACTERS >> 20} MiB in this attempt: the rest is not kept"
            self._waiting_characters += len(text)
            self._logs.append(LogLine(order.trial_id, order.attempt, self.rank, self._num_logs, time.time(), text))
            self._changed.notify_all()

    def measured(self, peak_bytes: int) -> None:
        """Report a measured peak; the highest counts."""
        with self._changed:
            self._news |= peak_bytes > self._measured_bytes
            self._measured_bytes = max(self._measured_bytes, peak_bytes)

    def timed(self, step_seconds: float, num_steps: int, check_share: float) -> None:
        """Report the median seconds of the ``num_steps`` steps that were timed so far, and the share of checks."""
        with self._changed:
            self._step_seconds, self._timed_steps, self._check_share = step_seconds, num_steps, check_share
            self._news = True

    def communicated(self, share: float) -> None:
        """Report the share of a step in which ranks wait for each other."""
        with self._changed:
            self._communication_share, self._news = share, True

    def learned_noise(self, noise_scale: float) -> None:
        """Report the noise scale of the gradient in samples."""
        with self._changed:
            self._noise_scale, self._news = noise_scale, True

    def checkpoint(self, step: int) -> None:
        """Report that the checkpoint of ``step`` is committed."""
        with self._changed:
            self._checkpoint, self._news = CheckpointName(self.order.trial_id, step), True

    def progressed(self, step: int) -> None:
        """Count a sign of life: a batch of optimizer step ``step``."""
        self.num_signs += 1
        self.present_step = step

    def needed_checkpoints(self) -> frozenset[CheckpointName]:
        """The one that the database has acknowledged (or the attempt resumed from), one that is being recorded, and
        those that other trials need."""
        with self._changed:
            return self.order.keep.union(name for name in (self._recorded, self._sent) if name)

    def should_stop(self) -> bool | Literal["keep"]:
        """Whether the attempt was asked to stop, or its reports were refused or lost; "keep": with a checkpoint."""
        return "keep" if self._keep else self._stop

    def stop(self, *, keep: bool = False) -> None:
        """Ask the attempt to stop after its current step; ``keep``: with a checkpoint."""
        with self._changed:
            self._stop, self._keep = True, keep
            self._changed.notify_all()

    def wait_for_stop(self, seconds: float) -> None:
        """Return once the attempt is asked to stop, after ``seconds`` at the latest."""
        with self._changed:
            self._changed.wait_for(lambda: self._stop, seconds)

    def close(self) -> Delivery:
        """Send the remaining rows, and end the sender; returns what became of all the rows."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        with self.awaiting_sink():
            self._sender.join()
        return self._delivery

    @contextmanager
    def awaiting_sink(self) -> Iterator[None]:
        """The attempt can do nothing meanwhile but wait for the sink."""
        with self._changed:
            self._num_waits += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_waits -= 1

    def excuse(self) -> None:
        """Count a sign of life if the attempt waits for the sink, whose database is away: nothing is stuck then."""
        self.num_signs += self._num_waits > 0

    def _wait_for_room(self) -> None:
        with self.awaiting_sink():
            self._changed.wait_for(lambda: self._delivery is not Delivery.STORED or self._has_room())

    def _has_room(self) -> bool:
        num_rows = len(self._metrics) + len(self._logs)
        return num_rows < MAX_WAITING_ROWS and self._waiting_characters < MAX_WAITING_CHARACTERS

    def _send(self) -> None:
        """Run the sender thread: whatever ends it early, the rows do not count as stored."""
        delivery, why = Delivery.LOST, "the thread that sends reports ended"
        try:
            delivery, why = self._send_all()
        except BaseException as error:
            why = f"{type(error).__name__}: {error}"
            log.exception("reports of attempt %s are lost", self.order.key)
        finally:
            with self._changed:
                self._delivery, self.why_lost = delivery, why
                self._stop |= delivery is not Delivery.STORED
                self._changed.notify_all()

    def _send_all(self) -> tuple[Delivery, str]:
        """Send rows until this is closed, a report is refused, or one cannot be sent; returns that, with the reason."""
        while True:
            has_grown = self.rank == 0 and self.num_signs > 0 and self._meter.look()
            with self._changed:
                self._news |= has_grown
                self._changed.wait_for(self._full, FLUSH_SECONDS)
                report, closed = self._take(), self._closed
            if report is None:
                if closed:
                    return Delivery.STORED, ""
                continue
            try:
                accepted = self._flush(report)
            except Exception as error:
                return Delivery.LOST, f"{type(error).__name__}: {error}"
            if not accepted:
                return Delivery.REFUSED, ""
            with self._changed:
                self._recorded = self._sent

    def _flush(self, report: Report) -> bool:
        """The sink's answer. Errors that pass are repeated until ``give_up()``, others a few times, then raised."""
        pause, num_other = FIRST_PAUSE_SECONDS, 0
        while True:
            try:
                return bool(self._sink.ask("flush", report, give_up=self._give_up))
            except TimeoutError:  # the sink's client has given up; this is also an OSError
                raise
            except Exception as error:
                num_other += not isinstance(error, PASSING)
                if self._give_up() or num_other > MAX_REFLUSHES:
                    raise
                log.warning("a report of attempt %s is sent again: %s", self.order.key, error)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _full(self) -> bool:
        return self._closed or len(self._metrics) + len(self._logs) >= ROWS_PER_FLUSH

    def _take(self) -> Report | None:
        metrics = self._metrics[:MOST_ROWS_PER_FLUSH]
        logs = self._logs[: MOST_ROWS_PER_FLUSH - len(metrics)]
        if not (metrics or logs or self._news):
            return None
        del self._metrics[: len(metrics)], self._logs[: len(logs)]
        self._waiting_characters -= sum(len(line.text) for line in logs)
        self._news, self._sent = False, self._checkpoint or self._sent
        self._changed.notify_all()
        order = self.order
        return Report(
            trial_id=order.trial_id,
            attempt=order.attempt,
            token=order.token,
            objectives=order.objectives,
            best_of=order.best_of,
            metrics=metrics,
            logs=logs,
            measured_bytes=self._measured_bytes,
            checkpoint_step=self._checkpoint.step if self._checkpoint else -1,
            step_seconds=self._step_seconds,
            timed_steps=self._timed_steps,
            check_share=self._check_share,
            communication_share=self._communication_share,
            noise_scale=self._noise_scale,
            load=self._meter.load,
        )


def _cut(text: str) -> str:
    more = len(text) - MAX_LINE
    return text if more <= 0 else f"{text[:MAX_LINE]} … (cut, {more:,} more characters)"
