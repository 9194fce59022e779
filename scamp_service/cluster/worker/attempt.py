"""Runs one attempt on one rank, from its order to its outcome in the database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimators.model import MIB
from scamp_service.cluster.sink import SinkClient
from scamp_service.cluster.worker.answers import Ended
from scamp_service.cluster.worker.folders import Folders
from scamp_service.cluster.worker.line_writer import LineWriter
from scamp_service.cluster.worker.report_queue import Delivery, ReportQueue
from scamp_service.files import code_zip
from scamp_service.lifecycle import Outcome

if TYPE_CHECKING:
    from workloads.cleaning.cleaner import Cleaner

MAX_DETAIL = 8000
WITNESS_SECONDS = 3.0
"""Seconds that a rank that only lost its peers stays silent, so that the rank with the true cause reports first."""


@dataclass(frozen=True, slots=True)
class Training:
    """Everything that a rank needs for one attempt. ``train`` is ``workloads.training.runtime.train``.

    ``rendezvous`` is the address of the gang's store, None for a single rank; ``served`` is that store on rank 0.
    ``cleaner`` cleans the process after users' code, which prints to ``output``. ``pack`` is the ``Pack`` of the
    attempts that share the process, None if there is only this one. ``is_first`` means that no other attempt runs in
    the process, and ``is_last`` that it must not train another one.
    """

    train: Callable[..., str]
    reports: ReportQueue
    rendezvous: tuple[str, int] | None
    served: Any
    sink: SinkClient
    give_up: Callable[[], bool]
    folders: Folders
    cleaner: Cleaner
    output: LineWriter
    pack: Any
    is_first: bool
    is_last: bool

    def run(self) -> Ended:
        """Train, send every report, and store the outcome. Raises ``TimeoutError`` when the sink is gone for good."""
        reports, order = self.reports, self.reports.order
        identity = (order.trial_id, order.attempt, order.token)
        if not self._ask("started", *identity):
            reports.close()
            return Ended(None, "the attempt has already ended", True)
        if order.candidate.code and self.is_first:
            self.cleaner.remember()
        outcome, detail, any_rank_reports, phase = self._result()
        delivery = reports.close()  # every metric is stored before the outcome
        if delivery is Delivery.LOST and outcome in (Outcome.DONE, Outcome.STOPPED):  # rows are missing
            why = f"rank {reports.rank}: its reports could not be stored: {reports.why_lost}"
            outcome, detail, any_rank_reports = Outcome.FAULT, why[:MAX_DETAIL], True
        if outcome is None:
            reports.wait_for_stop(WITNESS_SECONDS)
        elif delivery is not Delivery.REFUSED and (any_rank_reports or reports.rank == 0):
            self._ask("outcome", *identity, outcome, detail, phase)
        went_well = outcome in (Outcome.DONE, Outcome.STOPPED)
        return Ended(outcome, "" if went_well and not self.is_last else detail, went_well and not self.is_last)

    def cleaned(self, ended: Ended) -> Ended:
        """Clean the process for its next attempt, once none runs in it; says whether it can train again."""
        if not ended.reusable or not self._code_dir:
            return ended
        unclean = self.cleaner.restore(self._code_dir)
        return replace(ended, detail=f"the process is not clean: {unclean}", reusable=False) if unclean else ended

    def _ask(self, method: str, *args: Any) -> Any:
        with self.reports.awaiting_sink():
            return self.sink.ask(method, *args, give_up=self.give_up)

    def _result(self) -> tuple[Outcome | None, str, bool, str]:
        """(outcome, detail, whether any rank reports it, phase of an out-of-memory). Only rank 0 reports success."""
        from workloads.training.attempt.loop import NonFiniteLoss
        from workloads.training.faults import host_fault
        from workloads.training.guard.division import DependsOnDivision
        from workloads.training.guard.resuming import ResumesDifferently
        from workloads.training.memory.budget import OutOfMemory
        from workloads.training.runtime import lost_its_peers

        reports = self.reports
        found_by_all: dict[type[Exception], Outcome] = {
            NonFiniteLoss: Outcome.DIVERGED,
            DependsOnDivision: Outcome.DEPENDS_ON_DIVISION,
            ResumesDifferently: Outcome.RESUMES_DIFFERENTLY,
        }
        try:
            with self.output.writing_to(reports):
                verdict = self._run_workload()
            return Outcome.DONE if verdict == "done" else Outcome.STOPPED, "", False, ""
        except OutOfMemory as error:
            reports.measured(error.measured_bytes)
            return Outcome.OUT_OF_MEMORY, f"rank {reports.rank}: {error}"[:MAX_DETAIL], True, error.phase or ""
        except tuple(found_by_all) as error:  # the first rank that ends must report it, or its gang would count as lost
            return found_by_all[type(error)], str(error)[:MAX_DETAIL], True, ""
        except BaseException as error:  # also SystemExit: user code must not end this process
            if fault := host_fault(error):
                return Outcome.FAULT, f"rank {reports.rank}: {fault}"[:MAX_DETAIL], True, ""
            if reports.order.plan.world_size > 1 and lost_its_peers(error):
                return None, f"rank {reports.rank} lost its peers: {error}"[:MAX_DETAIL], False, ""
            return Outcome.ERROR, _describe(error, self._code_dir), True, ""

    def _run_workload(self) -> str:
        order, rank, world = self.reports.order, self.reports.rank, self.reports.order.plan.world_size
        brought = order.shared_bytes if order.pack not in ("", order.key) else 0  # by the attempt that began the pack
        job = replace(
            order,
            code_dir=self._unpack(order.candidate.code) if order.candidate.code else None,
            budget_bytes=order.mib_of(rank) * MIB + brought,
            checkpoint_root=self.folders.checkpoints,
            is_mirrored=self.folders.url != "",
        )
        return self.train(job, rank, world, self._store(rank, world), self.reports, self.pack)

    @property
    def _code_dir(self) -> Path | None:
        code = self.reports.order.candidate.code
        return self.folders.code / code if code else None

    def _unpack(self, sha256: str) -> Path:
        """The folder with the user's files, as they were sent. The zip is kept beside it."""
        from workloads.files.archive import unpack_code

        file = code_zip(self.folders.code, sha256, lambda: self._ask("blob", sha256))
        return unpack_code(file.read_bytes(), self.folders.code / sha256)

    def _store(self, rank: int, world: int) -> Any:
        if self.rendezvous is None:
            return None
        if rank == 0:
            assert self.served is not None
            return self.served
        from workloads.training.rendezvous import connect_to_store

        return connect_to_store(self.rendezvous, world)


def _describe(error: BaseException, code_dir: Path | None) -> str:
    """The error in the words of ``explain``, an empty line, and the traceback."""
    from workloads.refusals import explain, traceback_of

    return f"{explain(error, code_dir, in_training=True)}\n\n{traceback_of(error)}"
