"""What users' code finds in the environments of the processes that import, trace and train it, and above."""

from __future__ import annotations

from pathlib import Path

import pytest

from scamp_service.client import Client
from tests.curious import SECRETS, curious, found_in, given
from tests.processes import Served, run_scamp, until


def check_that_nothing_was_found(folder: Path) -> None:
    found = found_in(folder)
    assert found.keys() == {"rank", "trace"}
    for role, pairs in found.items():
        assert ["os.environ", "SCAMP_PASS_ENVIRONMENT"] in pairs, f"the {role} did not look"
        assert {name for _, name in pairs} == {"SCAMP_PASS_ENVIRONMENT"}, role


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_scamp_run_shows_no_secret_to_users_code(tmp_path: Path) -> None:
    done = run_scamp(tmp_path / "data", "run", curious(tmp_path), "--json", **given(tmp_path))
    assert done.returncode == 0, done.stderr
    check_that_nothing_was_found(tmp_path)


@pytest.mark.ray
@pytest.mark.timeout(300)
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
