"""One warm rank process: trains one rank of an attempt at a time, and reports to the sink until it is acknowledged.

It places nothing and retries nothing: it obeys the executor, and it ends itself when no controller has been alive
for a while. Its outcome is in the database before anybody can see it idle.
"""

from __future__ import annotations

import io
import os
import socket
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from estimators.model import MIB
from scamp_service.cluster.sink import Report, SinkClient
from scamp_service.control.executor import Order
from scamp_service.lifecycle import Outcome
from scamp_service.model import LogLine, Metric
from workloads.archive import unpack_code

ROWS_PER_FLUSH = 64
FLUSH_SECONDS = 0.1
MAX_WAITING_ROWS = 4096  # beyond it, training waits for the sink
MAX_LINE = 2000
MAX_DETAIL = 8000
RENDEZVOUS_SECONDS = 120.0
WITNESS_SECONDS = 3.0
"""How long a rank that has only lost its peers stays silent, so that the peer with the true cause is heard first."""
LAST_WORDS_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class RankStatus:
    """``key`` is the attempt that runs here, empty when idle. (``host``, ``pid``) identify the process."""

    host: str
    pid: int
    key: str
    rank: int
    world: int
    reusable: bool


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended on this rank; ``outcome`` is None when it had nothing to tell. Unless ``reusable`` the
    process is about to end."""

    outcome: Outcome | None
    detail: str
    reusable: bool


class Rank:
    """Runs as a detached Ray actor with threads: ``run`` and ``hold`` wait in them."""

    def __init__(self, folder: str, checkpoint_root: str, lease_seconds: float, max_attempts: int) -> None:
        """``folder`` keeps unpacked code; ``max_attempts`` of one process, against leaks of what is not ours."""
        import torch

        from workloads.training import runtime
        from workloads.training.warm_up import warm_up

        self._train = runtime.train
        self._folder, self._checkpoint_root = Path(folder), Path(checkpoint_root)
        self._lease_seconds, self._max_attempts = lease_seconds, max_attempts
        self._changed = threading.Condition()
        self._current: Reports | None = None
        self._ended: dict[str, Ended] = {}
        self._stopped: set[str] = set()
        self._server: tuple[str, Any, tuple[str, int]] | None = None
        self._reusable = True
        self._answered = time.monotonic()
        self._sink = SinkClient()
        self._sink.ask("ping", give_up=self._forsaken)
        if not torch.cuda.is_available():
            torch.set_num_threads(1)  # several ranks share the cores
        warm_up(torch.device("cuda" if torch.cuda.is_available() else "cpu"), None)
        threading.Thread(target=self._watch_lease, daemon=True).start()

    def status(self) -> RankStatus:
        with self._changed:
            now = self._current
            key, rank, world = (now.order.key, now.rank, now.order.plan.world_size) if now else ("", 0, 0)
            return RankStatus(host_id(), os.getpid(), key, rank, world, self._reusable)

    def hold(self, seconds: float) -> None:
        """Wait; whoever waits for the answer learns at once that this process has died."""
        time.sleep(seconds)

    def rendezvous(self, key: str, world: int, host: str) -> tuple[str, int]:
        """On rank 0: the address of the gang's store, which listens already, so no port can be taken meanwhile."""
        with self._changed:
            if self._server is None or self._server[0] != key:
                self._server = (key, *_serve_store(host, world))
            return self._server[2]

    def run(self, order: Order, rank: int, rendezvous: tuple[str, int] | None) -> Ended:
        """Train, and return when it is over. Repeats of a call join the first one."""
        with self._changed:
            if self._current is None and order.key not in self._ended:
                assert self._reusable, "this rank is about to end"
                self._current = Reports(order, rank, self._sink, self._forsaken)
                if order.key in self._stopped:
                    self._current.stop()
                threading.Thread(target=self._attempt, args=(self._current, rendezvous), daemon=True).start()
        return self.join(order.key)

    def join(self, key: str) -> Ended:
        """Return when the attempt is over on this rank, at once when it is not here."""
        with self._changed:
            self._changed.wait_for(lambda: self._current is None or self._current.order.key != key)
            return self._ended.get(key, Ended(None, "it never began here", self._reusable))

    def stop(self, key: str) -> None:
        """Ask the attempt to stop after the step that it is in."""
        with self._changed:
            self._stopped.add(key)
            if self._current is not None and self._current.order.key == key:
                self._current.stop()

    # --- one attempt -----------------------------------------------------------------------------------------------

    def _attempt(self, reports: Reports, rendezvous: tuple[str, int] | None) -> None:
        ended = Ended(None, "the rank itself failed", False)
        try:
            ended = self._train_and_report(reports, rendezvous)
        finally:
            with self._changed:
                self._ended[reports.order.key] = ended
                self._reusable = ended.reusable
                self._current = None
                self._server = None
                self._changed.notify_all()
            if not ended.reusable:
                threading.Timer(LAST_WORDS_SECONDS, os._exit, [0]).start()

    def _train_and_report(self, reports: Reports, rendezvous: tuple[str, int] | None) -> Ended:
        order = reports.order
        identity = (order.trial_id, order.attempt, order.token)
        if not self._sink.ask("started", *identity, give_up=self._forsaken):
            reports.close()
            return Ended(None, "the attempt is over", True)
        outcome, detail, heard = self._result(reports, rendezvous)
        accepted = reports.close()  # every metric is stored before the outcome
        if outcome is None:
            reports.wait_for_stop(WITNESS_SECONDS)
        elif accepted and (heard or reports.rank == 0):
            accepted = self._sink.ask("outcome", *identity, outcome, detail, give_up=self._forsaken)
        healthy = outcome in (Outcome.DONE, Outcome.STOPPED) and order.candidate.code is None
        return Ended(outcome, detail, healthy and len(self._ended) + 1 < self._max_attempts)

    def _result(self, reports: Reports, rendezvous: tuple[str, int] | None) -> tuple[Outcome | None, str, bool]:
        """(outcome, detail, whether every rank tells it): the end of a success is told by rank 0 alone."""
        from workloads.training.budget import OutOfMemory

        writer = LineWriter(reports)
        try:
            with redirect_stdout(writer), redirect_stderr(writer):
                verdict = self._run_workload(reports, rendezvous)
            return Outcome.DONE if verdict == "done" else Outcome.STOPPED, "", False
        except OutOfMemory as error:
            reports.measured(error.measured_bytes)
            return Outcome.OUT_OF_MEMORY, f"rank {reports.rank}: {error}"[:MAX_DETAIL], True
        except BaseException as error:  # also SystemExit: user code must not decide over this process
            if reports.order.plan.world_size > 1 and lost_its_peers(error):
                return None, f"rank {reports.rank} lost its peers: {error}"[:MAX_DETAIL], False
            return Outcome.ERROR, _describe(error), True
        finally:
            writer.flush()

    def _run_workload(self, reports: Reports, rendezvous: tuple[str, int] | None) -> str:
        from workloads.training.runtime import Job

        order, rank, world = reports.order, reports.rank, reports.order.plan.world_size
        job = Job(
            workload=order.candidate.workload,
            code_dir=self._unpacked(order.candidate.code) if order.candidate.code else None,
            params=order.candidate.params,
            plan=order.plan,
            seed=order.seed,
            steps=order.steps,
            report_every=order.report_every,
            budget_bytes=order.mib_per_rank * MIB,
            checkpoint_dir=self._checkpoint_root / str(order.trial_id),
            resume_step=order.resume_step,
            metric=order.metric,
        )
        verdict: str = self._train(job, rank, world, self._store(order.key, rank, world, rendezvous), reports)
        return verdict

    def _unpacked(self, sha256: str) -> Path:
        target = self._folder / sha256
        if not target.exists():
            unpack_code(self._sink.ask("blob", sha256, give_up=self._forsaken), target)
        return target

    def _store(self, key: str, rank: int, world: int, rendezvous: tuple[str, int] | None) -> Any:
        if rendezvous is None:
            return None
        host, port = rendezvous
        if rank == 0:
            assert self._server is not None and self._server[0] == key
            return self._server[1]
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        return TCPStore(host, port, world, False, timeout=timedelta(seconds=RENDEZVOUS_SECONDS))

    # --- the controller's lease --------------------------------------------------------------------------------------

    def _watch_lease(self) -> None:
        """End this process when the lease has lapsed, or could not be asked for, twice in a row: a clock that jumps
        makes a lease look old only until it is renewed."""
        lapsed = 0
        while lapsed < 2:
            time.sleep(self._lease_seconds / 10)
            try:
                age = SinkClient().try_once("lease_age")
                self._answered = time.monotonic()
                lapsed = lapsed + 1 if age is None or age > self._lease_seconds else 0
            except Exception:
                lapsed = lapsed + 1 if self._forsaken() else 0
        os._exit(3)

    def _forsaken(self) -> bool:
        return time.monotonic() - self._answered > self._lease_seconds


class Reports:
    """What the training of one rank says, on its way to the sink; implements ``workloads.training.runtime.Reporter``.

    Rows leave in the order in which they came, at most ``ROWS_PER_FLUSH`` at a time or every ``FLUSH_SECONDS``, and
    are sent again until they are acknowledged. When they are refused the attempt is stale: ``should_stop`` turns True.
    """

    def __init__(self, order: Order, rank: int, sink: SinkClient, give_up: Any) -> None:
        self.order, self.rank = order, rank
        self._sink, self._give_up = sink, give_up
        self._changed = threading.Condition()
        self._metrics: list[Metric] = []
        self._logs: list[LogLine] = []
        self._measured_bytes, self._checkpoint_step, self._news = 0, -1, False
        self._num_metrics = self._num_logs = 0
        self._closed = self._refused = self._stop = False
        self._sender = threading.Thread(target=self._send, daemon=True)
        self._sender.start()  # now: under a memory budget a thread may not start any more

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
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
        with self._changed:
            self._wait_for_room()
            self._num_logs += 1
            order = self.order
            row = LogLine(order.trial_id, order.attempt, self.rank, self._num_logs, time.time(), text[:MAX_LINE])
            self._logs.append(row)
            self._changed.notify_all()

    def measured(self, peak_bytes: int) -> None:
        with self._changed:
            self._news |= peak_bytes > self._measured_bytes
            self._measured_bytes = max(self._measured_bytes, peak_bytes)

    def checkpoint(self, step: int) -> None:
        with self._changed:
            self._checkpoint_step, self._news = step, True

    def should_stop(self) -> bool:
        return self._stop

    def stop(self) -> None:
        with self._changed:
            self._stop = True
            self._changed.notify_all()

    def wait_for_stop(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stop, seconds)

    def close(self) -> bool:
        """Send what is left; False when the sink refused anything."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._sender.join()
        return not self._refused

    def _wait_for_room(self) -> None:
        self._changed.wait_for(lambda: self._refused or len(self._metrics) + len(self._logs) < MAX_WAITING_ROWS)

    def _send(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._full, FLUSH_SECONDS)
                report, closed = self._take(), self._closed
            if report is None and closed:
                return
            if report is None or self._refused:
                continue
            try:
                accepted = self._sink.ask("flush", report, give_up=self._give_up)
            except TimeoutError:
                accepted = False
            if not accepted:
                with self._changed:
                    self._refused = self._stop = True
                    self._changed.notify_all()

    def _full(self) -> bool:
        return self._closed or len(self._metrics) + len(self._logs) >= ROWS_PER_FLUSH

    def _take(self) -> Report | None:
        metrics = self._metrics[:ROWS_PER_FLUSH]
        logs = self._logs[: ROWS_PER_FLUSH - len(metrics)]
        if not (metrics or logs or self._news):
            return None
        del self._metrics[: len(metrics)], self._logs[: len(logs)]
        self._news = False
        self._changed.notify_all()
        order = self.order
        return Report(
            trial_id=order.trial_id,
            attempt=order.attempt,
            token=order.token,
            objective=order.metric,
            metrics=metrics,
            logs=logs,
            measured_bytes=self._measured_bytes,
            checkpoint_step=self._checkpoint_step,
        )


class LineWriter(io.TextIOBase):
    """A text stream whose lines become log lines of the trial."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._rest = ""
        self._lock = threading.Lock()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._rest = (self._rest + text.replace("\r", "\n")).split("\n")
            if len(self._rest) > MAX_LINE:
                lines.append(self._rest)
                self._rest = ""
        for line in lines:
            if line.strip():
                self._reports.log(line)
        return len(text)

    def flush(self) -> None:
        with self._lock:
            rest, self._rest = self._rest, ""
        if rest.strip():
            self._reports.log(rest)


def lost_its_peers(error: BaseException) -> bool:
    """Whether the error only says that another rank is gone: its own word is the cause then."""
    from torch.distributed import DistError

    from workloads.training.runtime import PeerLost

    return isinstance(error, (PeerLost, DistError))


def host_id() -> str:
    """Names the kernel and the process namespace: processes with the same can signal each other by pid."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{boot.read_text().strip()}/{os.readlink('/proc/self/ns/pid')}" if boot.exists() else socket.gethostname()


def _serve_store(host: str, world: int) -> tuple[Any, tuple[str, int]]:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    port = listener.getsockname()[1]
    store = TCPStore(
        host,
        port,
        world,
        True,
        timeout=timedelta(seconds=RENDEZVOUS_SECONDS),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    return store, (host, port)


def _describe(error: BaseException) -> str:
    text = "".join(traceback.format_exception(error))
    return f"{type(error).__name__}: {error}"[:500] + "\n" + text[-MAX_DETAIL:]
