"""One warm rank process: trains one rank of an attempt at a time, or those of a pack, and repeats their reports until
the sink accepts them.

It decides neither placement nor retries; it follows the executor. It ends itself when no controller has been alive for
a while. Its outcome is in the database before its status says that it is idle.
"""

from __future__ import annotations

import faulthandler
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray._private.worker import global_worker

from scamp_service.cluster.sink import LeaseWatch, Silence, SinkClient, is_waiting
from scamp_service.cluster.worker.answers import Ended, RankStatus
from scamp_service.cluster.worker.attempt import Training
from scamp_service.cluster.worker.folders import Folders
from scamp_service.cluster.worker.host_mirror import keep_mirror
from scamp_service.cluster.worker.line_writer import LineWriter
from scamp_service.cluster.worker.report_queue import ReportQueue
from scamp_service.cluster.worker.whereabouts import whereabouts
from scamp_service.control.executor import Order
from scamp_service.errors import Deposed
from scamp_service.host import Process, source_hash
from scamp_service.model import Lease
from scamp_service.user_environment import close_environment

LAST_WORDS_SECONDS = 10.0
LOOK_SECONDS = 1.0
GCS_SECONDS = 5.0  # for which a rank waits for an answer of Ray's GCS
CONTROL = "control"
"""Ray's concurrency group for calls that never block, so that those that do cannot keep them waiting.

Calls of controllers that have died stay in the other group until their attempt ends.
"""


class _Running(NamedTuple):
    """An attempt that runs, with the thread that trains it."""

    reports: ReportQueue
    thread: threading.Thread


class Rank:
    """A rank process, as a detached Ray actor with several threads, because ``run``, ``join`` and ``hold`` block.

    Controllers name their term, which only grows. Orders of an earlier one than the newest known raise ``Deposed``.
    """

    def __init__(
        self,
        folders: Folders,
        lease_seconds: float,
        max_attempts: int,
        namespace: str,
        term: int,
        pass_environment: str = "",
    ) -> None:
        """Load torch and wait for the sink, which is found in ``namespace``.

        ``folders`` are those of the controller's host. The process ends after ``max_attempts``, against leaks in
        libraries. ``pass_environment`` lists variables that users' code may read besides the usual ones; all others
        are removed from the process. Raises ``Deposed``, which ends the process, if the controller that made it, of
        ``term``, has been replaced: the one that leads now may not know of this rank.
        """
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # by which NVML counts, too; CUDA would count the fastest first
        from workloads.cleaning.cleaner import Cleaner
        from workloads.training.packs.pack import Pack
        from workloads.training.runtime import train
        from workloads.training.warm_up import prepare_process

        keep_last_stack()
        self._train, self._new_pack = train, Pack
        self._output = LineWriter()
        self._code: str | None = None
        self._folders = folders.here()
        is_controllers = self._folders.kernel == folders.kernel
        keep_mirror(self._folders, namespace, lease_seconds, is_controllers=is_controllers)
        close_environment(pass_environment)
        self._lease_seconds, self._max_attempts = lease_seconds, max_attempts
        self._changed = threading.Condition()
        self._running: dict[str, _Running] = {}
        self._pack = ""
        self._members: Any = None
        self._ended: dict[str, Ended] = {}
        self._stopped: set[str] = set()
        self._server: tuple[str, Any, tuple[str, int]] | None = None
        self._reusable = True
        self._term = term
        self._namespace = namespace
        began = time.monotonic()
        self._sink = SinkClient(namespace)
        lease: Lease | None = self._sink.ask("lease", give_up=lambda: time.monotonic() - began > lease_seconds)
        if lease is not None and lease.term > term:
            raise Deposed(f"the controller of term {lease.term} leads now; that of term {term} started this rank")
        prepare_process()
        self._cleaner = Cleaner()
        self._silence = Silence(lease_seconds)
        for watch in (self._watch_lease, self._watch_silence):
            threading.Thread(target=watch, daemon=True).start()

    @ray.method(concurrency_group=CONTROL)
    def status(self, term: int) -> RankStatus:
        """Reports the present activity of this process. It obeys no controller of an earlier ``term`` any more."""
        with self._changed:
            self._obey(term)
            mine = self._reusable, source_hash(), self._code
            if not self._running:
                return RankStatus(Process.current(), "", 0, 0, *mine)
            first, *others = self._running
            now, thread = self._running[first]
            world, signs = now.order.plan.world_size, sum(reports.num_signs for reports, _ in self._running.values())
            doing = f"{whereabouts(thread)} in step {now.present_step + 1}"
            return RankStatus(
                Process.current(), first, now.rank, world, *mine, signs, doing, tuple(others), now.order.pack
            )

    def hold(self, seconds: float) -> None:
        """Wait for ``seconds``. Ray reports the death of this process at once to a caller that waits for the answer."""
        time.sleep(seconds)

    @ray.method(concurrency_group=CONTROL)
    def rendezvous(self, key: str, world: int, host: str, term: int) -> tuple[str, int]:
        """(host, port) of the gang's store, asked of rank 0. The store already listens, so the port cannot be taken."""
        from workloads.training.rendezvous import listen

        with self._changed:
            self._obey(term)
            if self._server is None or self._server[0] != key:
                self._server = (key, *listen(host, world))
            return self._server[2]

    def run(self, order: Order, rank: int, rendezvous: tuple[str, int] | None, term: int) -> Ended:
        """Train, and return when the attempt has ended on this rank. A repeated call waits for the first one."""
        with self._changed:
            self._obey(term)
            if order.pack:  # the last of its pack may have just ended: then it begins a new one after the cleaning
                self._changed.wait_for(lambda: not self._closes)
            if order.key not in self._ended and order.key not in self._running and self._may_begin(order):
                assert self._reusable or self._running, "this rank is about to end"
                assert self._code in (None, order.candidate.code), "this rank has run another archive of user code"
                self._code = order.candidate.code
                reports = ReportQueue(order, rank, self._sink, self._silence.is_too_long)
                if order.key in self._stopped:
                    reports.stop()
                if order.pack and not self._running:
                    self._members = self._new_pack()
                thread = threading.Thread(
                    target=self._attempt, args=(reports, rendezvous, not self._running), daemon=True
                )
                self._running[order.key] = _Running(reports, thread)
                self._pack = order.pack
                thread.start()
        return self.join(order.key)

    @property
    def _closes(self) -> bool:
        """Whether the last of a pack has ended, and the process is being cleaned."""
        return self._members is not None and not self._pack

    def _may_begin(self, order: Order) -> bool:
        return not self._running or (order.pack != "" and order.pack == self._pack)

    def join(self, key: str) -> Ended:
        """Return when the attempt has ended on this rank, at once when it does not run here."""
        with self._changed:
            self._changed.wait_for(lambda: key not in self._running)
            return self._ended.get(key, Ended(None, "the attempt never began on this rank", self._reusable, key))

    @ray.method(concurrency_group=CONTROL)
    def stop(self, key: str, term: int, keep: bool = False) -> None:
        """Ask the attempt to stop after its current step; ``keep``: with a checkpoint."""
        with self._changed:
            self._obey(term)
            self._stopped.add(key)
            if (running := self._running.get(key)) is not None:
                running.reports.stop(keep=keep)

    def _attempt(self, reports: ReportQueue, rendezvous: tuple[str, int] | None, is_first: bool) -> None:
        training, ended = self._training(reports, rendezvous, is_first), Ended(None, "the rank itself failed", False)
        try:
            ended = training.run()
        finally:
            with self._changed:
                self._reusable &= ended.reusable
                has_others = len(self._running) > 1
                if has_others:  # as long as they go on, so does the process
                    self._forget(reports.order.key, replace(ended, reusable=True))
                else:
                    self._pack = ""  # nobody may join any more
            if not has_others:
                ended = training.cleaned(replace(ended, reusable=self._reusable))
                with self._changed:
                    self._reusable, self._server, self._members = ended.reusable, None, None
                    self._forget(reports.order.key, ended)
                if not ended.reusable:
                    threading.Timer(LAST_WORDS_SECONDS, os._exit, [0]).start()

    def _forget(self, key: str, ended: Ended) -> None:
        """Note how an attempt has ended. Call it with the lock."""
        self._ended[key] = replace(ended, key=key)
        del self._running[key]
        self._changed.notify_all()

    def _training(self, reports: ReportQueue, rendezvous: tuple[str, int] | None, is_first: bool) -> Training:
        served = self._server[1] if self._server is not None and self._server[0] == reports.order.key else None
        return Training(
            self._train,
            reports,
            rendezvous,
            served,
            self._sink,
            self._silence.is_too_long,
            self._folders,
            self._cleaner,
            self._output,
            self._members,
            is_first,
            is_last=len(self._ended) + 1 >= self._max_attempts,
        )

    # --- who leads ---------------------------------------------------------------------------------------------------

    def _obey(self, term: int) -> None:
        if term < self._term:
            raise Deposed(f"the controller of term {self._term} leads now")
        self._term = term

    def _watch_lease(self) -> None:
        """End this process when nobody leads any more."""
        watch = LeaseWatch(self._lease_seconds)
        while not watch.has_lapsed(self._read_lease):
            time.sleep(self._lease_seconds / 10)
        os._exit(3)

    def _watch_silence(self) -> None:
        """End this process once the sink has been silent for too long, also while a question to it hangs.

        The executor relies on it: when this host is cut off, nobody else can end this process, and the trial runs again
        elsewhere.
        """
        while not self._silence.is_too_long():
            time.sleep(LOOK_SECONDS)
        os._exit(3)

    def _read_lease(self) -> Lease | None:
        try:
            lease: Lease | None = SinkClient(self._namespace).try_once("last_lease")
        except Exception as error:
            if is_waiting(error):
                self._excuse()
                # A sink that waits for its database is not silent. But if this host and the sink are cut off together,
                # this rank must end, because its trial runs again elsewhere; then Ray's GCS cannot be reached either.
                if gcs_answers():
                    self._silence.ends()
            raise TimeoutError from error
        self._silence.ends()
        return lease

    def _excuse(self) -> None:
        with self._changed:
            for running in self._running.values():
                running.reports.excuse()


def keep_last_stack() -> None:
    """Let Python write its stack to a file of its own if this process crashes.

    Its standard error stream may be a pipe to Ray, which is read in this process: what is in it then is lost. The name
    is one that ``rank_processes.stderr_end`` finds, after those of Ray's files.
    """
    node: Any = ray._private.worker._global_node
    if node is not None:
        file = open(Path(node.get_logs_dir_path()) / f"worker-stack-{os.getpid()}.err", "wb")  # noqa: SIM115
        faulthandler.enable(file)


def rank_class() -> Any:
    """Ray's actor class of ranks."""
    remote: Any = ray.remote  # its types do not know concurrency groups
    return remote(concurrency_groups={CONTROL: 2})(Rank)


def gcs_answers() -> bool:
    """Whether Ray's GCS answers this process in time."""
    worker: Any = global_worker
    try:
        worker.gcs_client.check_alive([], timeout=GCS_SECONDS)
    except Exception:
        return False
    return True
