"""Requests share the processes of a pool, and a failure leaves the pool usable."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError

import pytest

from scamp_service.sizing.tracing.trace_pool import TracePool
from scamp_service.sizing.tracing.trace_process import TraceFailed, TraceProcess
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.usefixtures("warm_traces")


def test_one_thing_after_another_is_done_by_one_process_and_no_other_starts() -> None:
    with TracePool(3) as pool:
        used = {pool.submit(lambda process: process).result() for _ in range(5)}
        assert len(used) == 1


def test_what_is_done_sooner_than_a_process_starts_waits_for_the_first_one() -> None:
    with TracePool(3, start_seconds=60) as pool:
        answers = [pool.submit(lambda process: process) for _ in range(9)]
        assert len({answer.result() for answer in answers}) == 1


def test_things_at_once_are_done_by_different_processes_and_the_rest_waits() -> None:
    both_there = threading.Barrier(2)

    def meet(process: TraceProcess) -> TraceProcess:
        both_there.wait(PATIENCE_SECONDS)
        return process

    with TracePool(2, start_seconds=0.01) as pool:
        answers = [pool.submit(meet) for _ in range(4)]
        assert len({answer.result() for answer in answers}) == 2


def test_a_failure_leaves_the_process_to_others() -> None:
    def fail(process: TraceProcess) -> None:
        raise TraceFailed("no", infeasible=True)

    with TracePool(1) as pool:
        with pytest.raises(TraceFailed):
            pool.submit(fail).result()
        assert isinstance(pool.submit(lambda process: process).result(PATIENCE_SECONDS), TraceProcess)


def test_the_end_ends_what_is_asked_and_what_waits() -> None:
    with TracePool(1) as pool:
        answer = pool.submit(lambda process: process.ask({"ask": "load", "workload": "vit_digits"}, 600))
        waits = pool.submit(lambda process: process)
    with pytest.raises((TraceFailed, CancelledError)):  # it may not have begun
        answer.result()
    with pytest.raises(CancelledError):
        waits.result()
