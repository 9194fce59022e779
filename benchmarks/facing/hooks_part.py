"""Webhooks while the process that sends them and their receiver are killed at random moments: none may be lost."""

from __future__ import annotations

import json
import multiprocessing
import random
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.facing.hook_processes import notify, receive
from scamp_service.lifecycle import DeliveryState, StudyState
from scamp_service.store.store import Store
from scamp_service.study.parse import parse_study

TITLE = "Webhooks"
HEADER = ("sent", "lost", "doubled", "requests", "kills", "seconds", "case")
ABOUT = """\
Each study that ends sends a signed webhook. Meanwhile the process that sends them and their receiver are both killed
(SIGKILL) at random moments, and started again. The receiver answers every third request badly: with status 500 before
or after it has kept the request, by closing the connection, or not at all. *Lost*: studies for which no request with a
valid signature has arrived. *Doubled*: studies for which requests with different `webhook-id`s have arrived; a request
that is sent again has the id of the first, so that a receiver can drop it."""
SPEC = parse_study(
    {
        "name": "hooks",
        "workload": "vit_digits",
        "objective": {"metric": "loss"},
        "space": {"lr": {"low": 0.1, "high": 1}},
    }
).to_json()
LEAST_SECONDS, MOST_SECONDS = 0.05, 1.5
"""From a start of the processes to the next kill."""


@dataclass(frozen=True)
class Case:
    """So many studies that end, while so many times both processes are killed."""

    num_hooks: int
    num_kills: int
    seed: int

    def __str__(self) -> str:
        return f"{self.num_hooks} webhooks over {self.num_kills} kills"


@dataclass(frozen=True, slots=True)
class Result:
    """Numbers of one case."""

    hooks_sent: int
    hooks_lost: int
    hooks_doubled: int
    num_requests: int
    num_kills: int
    seconds: float

    def row(self) -> list[str]:
        counts = self.hooks_sent, self.hooks_lost, self.hooks_doubled, self.num_requests, self.num_kills
        return [*map(str, counts), f"{self.seconds:.1f}"]


def cases(quick: bool, seed: int) -> Sequence[Case]:
    return [Case(100, 5, seed) if quick else Case(600, 20, seed)]


def figures(results: Sequence[Result]) -> Mapping[str, Any]:
    """Sums over the cases."""
    names = ("hooks_sent", "hooks_lost", "hooks_doubled")
    return {name: sum(getattr(result, name) for result in results) for name in names}


def measure(case: Case, seconds: float) -> Result:
    """Let studies end while processes are killed, and count what has arrived once everything was delivered."""
    began, drawn = time.monotonic(), random.Random(case.seed)
    with tempfile.TemporaryDirectory(prefix="scamp-hooks-") as folder:
        url, log = f"sqlite:///{folder}/scamp.db", Path(folder, "requests.jsonl")
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        store = Store(url)
        secret = store.deliveries.begin()[1]
        processes = _Processes(url, port, log, secret)
        ended: list[int] = []
        try:
            for round_number in range(1, case.num_kills + 1):
                processes.start(drawn.randrange(2**32))
                kills_at = time.monotonic() + drawn.uniform(LEAST_SECONDS, MOST_SECONDS)
                while len(ended) < case.num_hooks * round_number // case.num_kills:
                    ended.append(_ended_study(store))
                time.sleep(max(0.0, kills_at - time.monotonic()))
                processes.kill()
            processes.start(drawn.randrange(2**32))
            while not _is_done(store, case.num_hooks):
                if time.monotonic() - began > seconds:
                    break
                if not processes.are_alive:  # a lease that lapsed on a busy machine, or a port that somebody took
                    processes.kill()
                    processes.start(drawn.randrange(2**32))
                time.sleep(0.1)
        finally:
            processes.kill()
            store.close()
        ids_of, num_requests = _arrived(log)
    lost, doubled = set(ended) - ids_of.keys(), [study for study, ids in ids_of.items() if len(ids) > 1]
    took = time.monotonic() - began
    return Result(len(ended), len(lost), len(doubled), num_requests, 2 * case.num_kills, took)


class _Processes:
    """The process that sends and the one that receives; forks of one that has imported all that they need."""

    def __init__(self, url: str, port: int, log: Path, secret: str) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["benchmarks.facing.hook_processes"])
        self._url, self._port, self._log, self._secret = url, port, log, secret
        self._running: list[Any] = []

    def start(self, seed: int) -> None:
        hook = f"http://127.0.0.1:{self._port}/"
        tasks = ((receive, (self._port, self._log, self._secret, seed)), (notify, (self._url, hook)))
        for task, arguments in tasks:
            process = self._context.Process(target=task, args=arguments, daemon=True)
            process.start()
            self._running.append(process)

    @property
    def are_alive(self) -> bool:
        """Whether both run."""
        return all(process.is_alive() for process in self._running)

    def kill(self) -> None:
        for process in self._running:
            process.kill()
        for process in self._running:
            process.join()
        self._running.clear()


def _ended_study(store: Store) -> int:
    study_id = store.studies.create(SPEC, now=time.time()).id
    store.studies.move(study_id, [StudyState.RUNNING], StudyState.FAILED, reason="to be told", now=time.time())
    return study_id


def _is_done(store: Store, num_hooks: int) -> bool:
    """Whether the sender has nothing left to do."""
    deliveries = store.deliveries.page(limit=2 * num_hooks)
    return not store.deliveries.is_behind() and all(each.state is not DeliveryState.WAITING for each in deliveries)


def _arrived(log: Path) -> tuple[dict[int, set[str]], int]:
    """The ids of webhooks by the study that they are about, and the number of requests."""
    ids_of: dict[int, set[str]] = {}
    lines = log.read_text().split("\n")[:-1] if log.exists() else []  # the receiver may have been killed in the last
    for line in lines:
        webhook_id, study_id = json.loads(line)
        ids_of.setdefault(study_id, set()).add(webhook_id)
    return ids_of, len(lines)
