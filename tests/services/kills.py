"""A live service under fire: its processes are killed or frozen at moments drawn from a seed, while studies run.

What an outsider plays is played here too: studies are submitted, and whatever no supervisor of ours watches over (the
supervisor itself, PostgreSQL) is started again, as a service manager would.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scamp_service.errors import Unavailable
from scamp_service.store.store import Store
from scamp_service.study.user_code.bundling import bundle_code
from tests.services.postgres import PostgresServer
from tests.services.processes import Served, pids_of
from tests.waiting import PATIENCE_SECONDS

CLUSTER = {
    "SCAMP_VIRTUAL_DEVICES": "2",
    "SCAMP_DEVICE_MIB": "29",
    "SCAMP_MAX_GANGS_PER_DEVICE": "1",
    "SCAMP_LEASE_SECONDS": "3",
}
"""Two devices for one gang each: there are at most two ranks, and a gang of two fills the cluster."""

SPACE = {"lr": {"low": 1e-3, "high": 1e-2, "log": True}}
STUDY: dict[str, Any] = {
    "workload": "vit_digits",
    "objective": {"metric": "accuracy"},
    "space": SPACE,
    "search": {"sampler": "random"},
    "stopping": {"rule": "none"},
}
SMALL = {"space": {**SPACE, "width": {"choice": [16, 24, 32, 40, 48]}}, "fixed": {"depth": 2, "patch": 4}}
LARGE_MODEL = {"depth": 8, "width": 128, "patch": 4, "batch": 32}
LARGE = {"fixed": LARGE_MODEL}
SMALL_STEPS, LARGE_STEPS, EVERY = 300, 40, 10
STUDY_FILE, ADAPTERS = Path(__file__).parents[2] / "examples" / "lora" / "study.yaml", "text_lora.py:TextLora"
PACKED: dict[str, Any] = {
    **STUDY,
    "workload": ADAPTERS,
    "objective": {"metric": "loss", "direction": "minimize"},
    "space": {"lr": {"low": 1e-3, "high": 3e-2, "log": True}, "rank": {"choice": [1, 2, 4, 8]}},
    "pack": 4,
}
PACKED_TRIALS, PACKED_MIB = 8, "64"

VICTIMS: Mapping[str, str] = {
    "api": "-m api",
    "controller": "scamp_service controller",
    "sink": "ray::Sink",
    "rank": "ray::Rank",
    "trace": "workloads.sandbox",
    "raylet": "/raylet/raylet",
    "gcs": "/gcs/gcs_server",
    "guardian": "scamp_service.cluster.local.guardian",
    "supervisor": "scamp_service serve",
}
"""Words in the command line of each kind of process."""

LONGEST_FREEZE_SECONDS = 15.0
LAST_GASP_SECONDS = 3.0
"""Seconds: reports so soon after a hit may come from ranks that end because of it."""


@dataclass
class Losses:
    """Violations of what must always hold, as sentences, and the seconds that recovery from each kill took."""

    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    missing_metrics: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    leaked_mib: int = 0
    seconds: list[tuple[str, float]] = field(default_factory=list)
    largest_pack: int = 0
    """The most attempts that one process has trained, where several may share one."""

    def all(self) -> list[str]:
        """Every sentence."""
        return [*self.lost, *self.duplicated, *self.missing_metrics, *self.leaked]


class UnderFire:
    """A service in a folder, whose processes are hit. With ``postgres`` its database is there, and it is hit too.

    With ``packs`` the trials are adapters of one model, of which several share a process.
    """

    def __init__(self, folder: Path, seed: int, postgres: PostgresServer | None = None, packs: bool = False) -> None:
        self._data_dir, self._packs = folder / "data", packs
        self._cluster = CLUSTER | ({"SCAMP_DEVICE_MIB": PACKED_MIB} if packs else {})
        self._rng = random.Random(seed)
        self._postgres = postgres
        self._url = postgres.create_database() if postgres else f"sqlite:///{self._data_dir}/scamp.db"
        self._specs: dict[int, dict[str, Any]] = {}
        self._acknowledged: dict[tuple[int, int, int, int], dict[str, float]] = {}  # study, trial, step, attempt
        self._hits: list[tuple[str, float]] = []
        self._reported_at = 0.0  # of the newest metric, by the wall clock of its rank
        self.found = Losses()
        self._start()

    def _start(self) -> None:
        """Start the service, again if it gives up: it does while a process that is frozen holds the database."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                self._service = Served(self._data_dir, **self._cluster, SCAMP_DATABASE_URL=self._url)
                return
            except AssertionError:
                if time.monotonic() > deadline:
                    raise

    def run(self, num_kills: int) -> Losses:
        """Hit this many processes while studies run, wait for the end of all studies, stop, and say what was lost."""
        try:
            while len(self.found.seconds) < num_kills:
                self._keep_busy()
                for _ in range(min(self._rng.choice((1, 1, 2, 3)), num_kills - len(self.found.seconds))):
                    time.sleep(self._rng.uniform(0.0, 2.0))
                    self._hit()
                self._recover()
            self._finish()
            self._check()
        finally:
            self._service.abandon()
        deadline = time.monotonic() + PATIENCE_SECONDS  # of a Ray whose guardian was killed, agents notice late
        while (left := pids_of(self._data_dir)) and time.monotonic() < deadline:
            time.sleep(0.2)
        if left:
            self.found.leaked.append(f"{len(left)} processes are left long after the service has stopped")
        return self.found

    def _hit(self) -> None:
        """Kill or freeze one process, of a kind that is drawn among those that run."""
        alive = {name: pids for name, words in VICTIMS.items() if (pids := self._service.pids(words))}
        if self._postgres:
            alive["postgres"] = [self._postgres.process.pid]
        victim = self._rng.choice(sorted(alive))
        pid = self._rng.choice(alive[victim])
        frozen = self._rng.random() < 0.3
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(pid, signal.SIGSTOP if frozen else signal.SIGKILL)
        now = time.monotonic()
        self._hits.append((f"{victim} {'frozen' if frozen else 'killed'}", now))
        if frozen:
            thaw = threading.Timer(self._rng.uniform(0.5, LONGEST_FREEZE_SECONDS), _thaw, [pid])
            thaw.daemon = True
            thaw.start()
        elif victim == "supervisor":
            self._service.kill()
            self._service.client.close()
            self._start()  # at once, whatever its predecessor has left
        elif victim == "postgres":
            assert self._postgres
            self._postgres.process.wait()
            self._postgres.start()

    def _keep_busy(self) -> None:
        """Submit studies until two are unfinished."""
        while sum(not self._view(study_id)["finished_at"] for study_id in self._specs) < 2:
            of, steps = (SMALL, SMALL_STEPS) if self._rng.random() < 0.7 else (LARGE, LARGE_STEPS)
            budget = {"trials": 3, "steps": steps, "report_every": EVERY, "max_lost": 1000}
            spec: dict[str, Any] = STUDY | of | {"name": f"study {len(self._specs)}", "budget": budget}
            code = None
            if self._packs:
                budget |= {"trials": PACKED_TRIALS, "steps": SMALL_STEPS}
                spec, code = PACKED | {"name": spec["name"], "budget": budget}, bundle_code(STUDY_FILE, ADAPTERS)
            study_id = self._asked(lambda client, spec=spec, code=code: client.submit(spec, code=code))["id"]
            self._specs[study_id] = spec

    def _asked(self, question: Any) -> Any:
        """The answer of the API, which may be away for a while."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return question(self._service.client)
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def _view(self, study_id: int) -> dict[str, Any]:
        view: dict[str, Any] = self._asked(lambda client: client.study(study_id))
        return view

    def _trials(self) -> list[dict[str, Any]]:
        """Trials of studies that have not been read to their end; their metrics are remembered."""
        rows = []
        for study_id, spec in self._specs.items():
            if spec.get("read"):
                continue
            finished = self._view(study_id)["finished_at"]
            trials = self._asked(lambda client, study_id=study_id: list(client.trials(study_id)))
            for trial in trials:
                self._remember(trial)
            spec["read"] = bool(finished)
            rows += trials
        return rows

    def _remember(self, trial: dict[str, Any]) -> None:
        study_id, number = trial["study_id"], trial["number"]
        for row in self._asked(lambda client: list(client.metrics(study_id, number))):
            self._acknowledged[study_id, number, row["step"], row["attempt"]] = row["values"]
            self._reported_at = max(self._reported_at, row["time"])

    def _recover(self) -> None:
        """Wait for a controller that has beaten since the last hit, and for a rank that has reported since."""
        last, wall = self._hits[-1][1], time.time() + LAST_GASP_SECONDS
        deadline = last + PATIENCE_SECONDS
        while time.monotonic() < deadline and not (self._beats_since(last) and self._reported_at > wall):
            time.sleep(0.2)
            self._keep_busy()
            self._trials()
        now = time.monotonic()
        self.found.seconds += [(victim, now - when) for victim, when in self._hits]
        if now >= deadline:
            self.found.lost.append(f"nothing trains {PATIENCE_SECONDS:.0f} s after {self._hits}")
        self._hits.clear()

    def _beats_since(self, when: float) -> bool:
        silent = self._asked(lambda client: client.cluster())["controller_silent_seconds"]
        return silent is not None and time.monotonic() - silent > when

    def _finish(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not all(spec.get("read") for spec in self._specs.values()):
            self._trials()
            time.sleep(0.5)
            if time.monotonic() > deadline:
                unfinished = [study_id for study_id, spec in self._specs.items() if not spec.get("read")]
                self.found.lost.append(f"studies {unfinished} do not end: {self._waiting(unfinished)}")
                return

    def _waiting(self, studies: list[int]) -> list[str]:
        trials = [
            trial
            for study in studies
            for trial in self._asked(lambda client, study_id=study: list(client.trials(study_id)))
        ]
        return [f"{trial['state']}: {trial['reason']}" for trial in trials if trial["state"] != "COMPLETED"]

    def _check(self) -> None:
        """Compare what the service says now with what it has ever acknowledged."""
        store = Store(self._url)
        counter = Counter(event.trial_id for event in _events(store) if event.data.get("state") == "COMPLETED")
        for study_id, spec in self._specs.items():
            trials = self._asked(lambda client, study_id=study_id: list(client.trials(study_id)))
            if [trial["number"] for trial in trials] != list(range(spec["budget"]["trials"])):
                self.found.lost.append(f"study {study_id} has trials {[trial['number'] for trial in trials]}")
            for trial in trials:
                self._check_trial(trial, spec, counter[trial["id"]])
        devices = self._asked(lambda client: client.cluster())["devices"]
        self.found.leaked_mib += sum(device["reserved_mib"] for device in devices)
        if len(devices) != 2 or self.found.leaked_mib or any(device["gangs"] or device["closed"] for device in devices):
            self.found.leaked.append(f"after the end: {devices}")
        if still := store.attempts.open():
            self.found.leaked.append(f"{len(still)} attempts are open after the end")
        packs = Counter(attempt.pack for study_id in self._specs for attempt in store.attempts.of_study(study_id))
        self.found.largest_pack = max((num for pack, num in packs.items() if pack), default=0)
        store.close()

    def _check_trial(self, trial: dict[str, Any], spec: dict[str, Any], num_told: int) -> None:
        study_id, number = trial["study_id"], trial["number"]
        where = f"trial {number} of study {study_id}"
        if trial["state"] != "COMPLETED":
            self.found.lost.append(f"{where} is {trial['state']}: {trial['reason']}")
            return
        attempts = self._asked(lambda client: client.trial(study_id, number))["attempts"]
        outcomes = [attempt["outcome"] for attempt in attempts]
        if num_told != 1 or outcomes.count("DONE") != 1 or outcomes[-1] != "DONE":
            self.found.duplicated.append(f"{where} completed {num_told} times: {outcomes}")
        rows = self._asked(lambda client: list(client.metrics(study_id, number)))
        steps, every = [row["step"] for row in rows], spec["budget"]["report_every"]
        expected = list(range(every, spec["budget"]["steps"] + 1, every))
        if len(set(steps)) < len(steps):
            self.found.duplicated.append(f"{where} has steps {steps}")
        elif steps != expected:
            self.found.missing_metrics.append(f"{where} has steps {steps}")
        for row in rows:
            acknowledged = self._acknowledged.get((study_id, number, row["step"], row["attempt"]))
            if acknowledged is not None and acknowledged != row["values"]:
                self.found.missing_metrics.append(
                    f"{where}: step {row['step']} was {acknowledged}, and is {row['values']}"
                )


def _thaw(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _events(store: Store) -> Iterator[Any]:
    after = 0
    while page := store.events.page(after=after):
        yield from page
        after = page[-1].id
