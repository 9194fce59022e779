"""Environment variables that users' code finds in the processes that import, trace and train it, and above."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from scamp.client import Client
from scamp_service.errors import Refused
from scamp_service.user_account import account_of
from tests.services import hostile
from tests.services.curious import SECRETS, curious, found_in, given
from tests.services.processes import ROOT, Served, run_scamp
from tests.services.seen_python import where_python_is_seen
from tests.waiting import until

WHO = """
reads = sum(os.access(name, os.R_OK) for name in SERVICE)
with open(os.path.join(os.path.dirname(FILE), "who"), "a") as file:
    file.write(json.dumps({"uid": os.getuid(), "reads": reads}) + "\\n")
"""


def check_that_nothing_was_found(folder: Path) -> None:
    secrets_of = found_in(folder)
    assert secrets_of.keys() == {"rank", "trace"}
    for role, pairs in secrets_of.items():
        assert ["os.environ", "SCAMP_PASS_ENVIRONMENT"] in pairs, f"the {role} did not look"
        assert {name for _, name in pairs} == {"SCAMP_PASS_ENVIRONMENT"}, role


@pytest.mark.soak  # half a minute; `scamp serve` and a job start their processes in the same way
@pytest.mark.ray
def test_scamp_run_shows_no_secret_to_users_code(tmp_path: Path) -> None:
    done = run_scamp(tmp_path / "data", "run", curious(tmp_path), "--json", **given(tmp_path))
    assert done.returncode == 0, done.stderr
    check_that_nothing_was_found(tmp_path)


@pytest.mark.ray
@pytest.mark.soak  # a job and another user's processes are started in the same way
def test_scamp_serve_shows_no_secret_to_users_code(tmp_path: Path) -> None:
    study = curious(tmp_path)
    service = Served(tmp_path / "data", **given(tmp_path))
    try:
        client = Client(service.url, token=SECRETS["SCAMP_API_TOKEN"])
        created = client.submit(study)
        until(lambda: client.study(created["id"])["state"] == "COMPLETED", "the study's end")
        client.close()
    finally:
        service.abandon()
    check_that_nothing_was_found(tmp_path)


@pytest.mark.ray
@pytest.mark.postgres
def test_as_another_user_no_process_of_users_code_reads_what_is_the_services(
    tmp_path: Path, postgres_server: Any
) -> None:
    """The user is that of the PostgreSQL server, as the socket of a test's server lies in a folder of its own."""
    name = pwd.getpwuid(postgres_server.directory.stat().st_uid).pw_name
    try:
        account = account_of(name)
    except Refused as refused:
        pytest.skip(str(refused))
    assert account is not None
    shared = Path(tempfile.mkdtemp(prefix="scamp-shared-", dir="/tmp"))
    try:
        os.chown(shared, account.uid, account.gid)
        study, url = curious(tmp_path), postgres_server.create_database()
        source = (tmp_path / "mine.py").read_text().replace(str(tmp_path / "found"), str(shared / "found"))
        private = [str(tmp_path / "data" / "ray-token"), "/etc/shadow"]
        (tmp_path / "mine.py").write_text(source + f"\nSERVICE = {private!r}" + WHO)
        settings = {"SCAMP_DATABASE_URL": url, "SCAMP_PASS_ENVIRONMENT": "NOTHING", "SCAMP_USER_CODE_USER": name}
        settings["SCAMP_CHECKPOINT_DIR"] = str(shared / "checkpoints")
        done = run_scamp(tmp_path / "data", "run", study, "--json", **SECRETS, **settings)
        assert done.returncode == 0, done.stderr
        who = [json.loads(line) for line in (shared / "who").read_text().splitlines()]
        assert {(process["uid"], process["reads"]) for process in who} == {(account.uid, 0)}
        check_that_nothing_was_found(shared)
        assert list((shared / "checkpoints").iterdir()), "ranks keep their checkpoints there"
    finally:
        shutil.rmtree(shared)


@pytest.mark.soak  # minutes; the test above shows that users' code is another user, who reads nothing of the service
@pytest.mark.ray
@pytest.mark.postgres
def test_a_hostile_workload_reads_nothing_that_is_not_its_own_and_hangs_nothing() -> None:
    """A tenth of the cases in ``tests/services/hostile_cases.py``, by the benchmark that runs all."""
    command = where_python_is_seen([sys.executable, "-m", "benchmarks.trust", "--only", "hostile", "--quick"])
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    figures = json.loads(ran.stdout.splitlines()[-1])
    if not figures["hostile_cases"]:
        pytest.skip(hostile.why_not())
    assert figures["hostile_cases"] >= 5 and (figures["hostile_read"], figures["hostile_hung"]) == (0, 0), ran.stdout
