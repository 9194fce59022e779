"""Random requests of schemathesis, drawn from the OpenAPI document: which answers break what the document says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scamp_service.settings import Settings
from scamp_service.store.store import Store
from tests.services.serving import fill, fill_several, free_port, served

TITLE = "Random requests"
HEADER = ("requests", "accepted", "5xx", "status", "body", "seconds", "broken by", "case")
PACKAGE = "schemathesis==4.32.5"
ABOUT = """\
[schemathesis](https://github.com/schemathesis/schemathesis) draws requests from the OpenAPI document of a service, both
valid ones and such that break its rules, and sends them to every operation but the endless stream of events. Three of
four are then aimed at studies, trials and users that exist, and their specifications are a valid one with two fields
that were drawn. The service is asked without users, and with users and a token that may do everything. *Accepted*:
answers with a status below 400. *5xx*: the service failed. *Status*: answers whose status the document does not name
for the operation. *Body*: answers whose type or fields are not those of the document."""
OPTIONS = {"schemathesis": f"a virtual environment that has {PACKAGE} (default: a temporary one)"}
HOOKS = Path(__file__).with_name("fuzz_hooks.py")
TOKEN = "0123456789abcdef-shared"
CHECKS = {
    "not_a_server_error": "num_5xx",
    "status_code_conformance": "num_statuses",
    "content_type_conformance": "num_bodies",
    "response_schema_conformance": "num_bodies",
}
SEEDS = 3
ANSWER_SECONDS = 300
"""A screening takes long, and each waits for those before it."""


@dataclass(frozen=True)
class Case:
    """Up to ``per_operation`` requests to each operation, which are drawn with this seed."""

    seed: int
    with_users: bool
    per_operation: int
    environment: Path | None = None

    def __str__(self) -> str:
        return f"{'with' if self.with_users else 'without'} users, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Result:
    """Numbers of requests and of answers that break a rule, and the operations with such answers."""

    num_requests: int
    num_accepted: int
    num_5xx: int
    num_statuses: int
    num_bodies: int
    seconds: float
    broken: Sequence[str]

    def row(self) -> list[str]:
        counts = (self.num_requests, self.num_accepted, self.num_5xx, self.num_statuses, self.num_bodies)
        return [*map(str, counts), f"{self.seconds:.0f}", "; ".join(self.broken) or "none"]


def cases(quick: bool, seed: int, schemathesis: Path | None = None) -> Sequence[Case]:
    if quick:
        return [Case(seed, True, 1, schemathesis)]
    return [Case(seed + i, with_users, 32, schemathesis) for with_users in (False, True) for i in range(SEEDS)]


def figures(results: Sequence[Result]) -> Mapping[str, Any]:
    """Sums over the cases."""
    return {
        "fuzz_cases": sum(result.num_requests for result in results),
        "fuzz_accepted": sum(result.num_accepted for result in results),
        "fuzz_5xx": sum(result.num_5xx for result in results),
        "fuzz_statuses": sum(result.num_statuses for result in results),
        "fuzz_bodies": sum(result.num_bodies for result in results),
    }


def measure(case: Case, seconds: float) -> Result:
    """Serve studies that a controller is said to run, and let schemathesis ask."""
    with tempfile.TemporaryDirectory(prefix="scamp-fuzz-") as name:
        folder = Path(name)
        program = _program(case.environment, folder)
        settings = Settings(
            data_dir=folder / "data",
            port=free_port(),
            lease_seconds=3600,
            api_token=TOKEN if case.with_users else "",
        )
        began = time.monotonic()
        with served(settings) as (url, store):
            _fill(store, with_users=case.with_users)
            _ask(program, url, folder, case, seconds)
        return count(map(json.loads, (folder / "report").open()), time.monotonic() - began)


def count(events: Iterable[Mapping[str, Any]], seconds: float) -> Result:
    """The result of a report of schemathesis, which is one event to a line."""
    counts: Counter[str] = Counter()
    broken: dict[str, None] = {}
    for recorder in (event["ScenarioFinished"]["recorder"] for event in events if "ScenarioFinished" in event):
        answers = [interaction.get("response") for interaction in recorder.get("interactions", {}).values()]
        counts["num_requests"] += len(answers)
        counts["num_accepted"] += sum(answer is not None and answer["status_code"] < 400 for answer in answers)
        for check, title in _failures(recorder):
            counts[CHECKS[check]] += 1
            broken[f"{recorder['label']}: {title}"] = None
    return Result(
        **{name: counts[name] for name in ("num_requests", "num_accepted", *dict.fromkeys(CHECKS.values()))},
        seconds=seconds,
        broken=list(broken),
    )


def _failures(recorder: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(name of the check, words) for each answer that fails one, and for each request without an answer."""
    for interaction in recorder.get("interactions", {}).values():
        if interaction.get("response") is None:
            yield "not_a_server_error", f"no answer to {interaction['request']['uri'][:200]}"
    for check in (check for checks in recorder.get("checks", {}).values() for check in checks):
        if check["status"] == "failure":
            failure = check["failure_info"]["failure"]
            yield check["name"], f"{failure['title']} {failure['message'].partition(chr(10))[0]}".strip()


def _fill(store: Store, *, with_users: bool) -> None:
    now = time.time()
    if with_users:
        store.users.create("root", is_admin=True, now=now)
        for name in ("viewer", "keeper"):
            store.users.create(name, now=now)
    for _ in range(3):
        fill(store, num_trials=5)
    fill_several(store)
    assert store.leases.take("controller", "test", None, now=now)


def _program(environment: Path | None, folder: Path) -> Path:
    """The command of schemathesis, in a new environment unless there is one."""
    if environment is None:
        environment = folder / "venv"
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        subprocess.run([environment / "bin" / "pip", "install", "--quiet", PACKAGE], check=True)
    program = environment / "bin" / "schemathesis"
    if not program.exists():
        raise FileNotFoundError(f"no schemathesis in {environment}: {environment}/bin/pip install {PACKAGE}")
    return program


def _ask(program: Path, url: str, folder: Path, case: Case, seconds: float) -> None:
    """Send all requests, and write the report to ``folder``. Raises ``RuntimeError`` when they could not be sent."""
    options = {
        "--phases": "fuzzing",
        "--checks": ",".join(CHECKS),
        "--max-examples": case.per_operation,
        "--seed": case.seed,
        "--exclude-path": "/v1/events",
        "--report": "ndjson",
        "--report-ndjson-path": folder / "report",
        "--generation-database": "none",
        "--suppress-health-check": "all",
        "--warnings": "off",
        "--wait-for-schema": ANSWER_SECONDS,
        "--request-timeout": ANSWER_SECONDS,
    }
    words = [str(word) for pair in options.items() for word in pair]
    command: list[str | Path] = [program, "run", f"{url}/openapi.json", *words]
    command += ["--continue-on-failure", "--no-shrink", "--no-color"]
    with_token = ["--header", f"Authorization: Bearer {TOKEN}"]
    command += with_token if case.with_users else ["--exclude-operation-id", "create_user"]  # the first needs no token
    answer = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "SCHEMATHESIS_HOOKS": str(HOOKS)},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    if answer.returncode not in (0, 1):  # 1: answers break rules
        reason = " ".join((answer.stderr or answer.stdout).split())
        raise RuntimeError(f"schemathesis: {reason[-500:]}")
