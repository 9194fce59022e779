"""Commands find the service that they are meant for, or read the studies themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scamp.cli import service
from scamp_service.errors import Unavailable
from scamp_service.processes.addresses import write_server_file
from scamp_service.settings import ROOT

SERVED, ALONE = "http://127.0.0.1:8100", ("http://127.0.0.1:1234", "a-token")


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service of ours listens at the usual address; an API for one command would listen at another."""
    monkeypatch.delenv("SCAMP_PORT", raising=False)
    monkeypatch.setattr(service, "is_own", lambda url: url == SERVED)
    monkeypatch.setattr(service, "_without_service", lambda local, address, token: ALONE)


def test_a_data_directory_that_no_service_uses_is_read_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert service.client_of("", "").address == SERVED, "nobody has said which studies"
    monkeypatch.setenv("SCAMP_DATA_DIR", str(tmp_path))
    assert service.client_of("", "").address == ALONE[0]
    assert service.client_of("http://host:81", "").address == "http://host:81"
    with pytest.raises(Unavailable, match="another data directory, so nothing was changed; start yours with"):
        service.client_of("", "", to_change=True)


def test_the_service_of_a_data_directory_is_asked_also_while_it_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCAMP_DATA_DIR", str(tmp_path))
    write_server_file(tmp_path, SERVED)
    assert service.client_of("", "").address == SERVED
    write_server_file(tmp_path, SERVED, runs=False)  # it listens, and will write its file soon
    assert service.client_of("", "").address == service.client_of("", "", to_change=True).address == SERVED
    write_server_file(tmp_path, "http://127.0.0.1:8107", runs=False)
    assert service.client_of("", "").address == ALONE[0]
    assert service.client_of("", "", to_change=True).address == "http://127.0.0.1:8107"


def test_a_command_that_asks_a_service_loads_neither_numpy_nor_sql_nor_the_models_of_a_study() -> None:
    heavy = ("numpy", "sqlalchemy", "ray", "torch", "optuna", "scamp_service.study.spec")
    code = f"import sys, scamp_service.cli.main; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).strip() == "[]"
