"""The commands of users, tokens and the audit log, against a real service."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from placement.packing.projects import Quota
from scamp.cli.main import app
from scamp.client import Client
from scamp.errors import Forbidden, Refused
from tests.services.serving import free_port, full_spec, served, settings_in

SECRET = re.compile(r"scamp_[\w-]{43}")


@pytest.mark.sample
@pytest.mark.full
def test_a_team_moves_in_by_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def scamp(*arguments: str) -> str:
        result = CliRunner().invoke(app, [*arguments, "--address", url, "--token", token], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    token = ""
    with served(settings_in(tmp_path, port=free_port())) as (url, store):
        assert "there are no users" in scamp("users", "list")
        token = SECRET.findall(scamp("users", "add", "anna", "--admin"))[0]
        bobs = SECRET.findall(scamp("users", "add", "bob", "--role", "viewer", "--project", "vision"))[0]
        assert re.search(r"bob +viewer in vision", scamp("users", "list"))
        study = store.studies.create(full_spec(project="vision"), now=1.0)
        with Client(url, token=bobs) as bob:
            assert [row["id"] for row in bob.studies(project="vision")] == [study.id]
            with pytest.raises(Forbidden, match="role editor"):
                bob.stop(study.id)
            scamp("users", "grant", "bob", "editor", "--project", "vision")
            assert bob.stop(study.id)["reason"] == "stopped by bob"
            assert [row["action"] for row in bob.changes(study.id)] == ["stop"]
        nightly = SECRET.findall(scamp("tokens", "create", "nightly", "--user", "bob", "--days", "0"))[0]
        number = re.search(r"(\d+) +bob +nightly +as its user +never", scamp("tokens", "list", "--all"))
        assert number
        with Client(url, token=nightly) as bob:
            assert bob.me()["roles"] == {"vision": "editor"}
            scamp("tokens", "revoke", number[1])
            with pytest.raises(Refused, match="revoked"):
                bob.me()
        scamp("users", "change", "bob", "--devices", "4", "--device-hours", "100")
        assert store.users.quotas() == {"bob": Quota(devices=4, device_hours=100.0)}
        assert re.search(r"bob .*4 devices, 100 device-hours", scamp("users", "list"))
        scamp("users", "change", "bob", "--devices", "none", "--device-hours", "none")
        assert store.users.quotas() == {}
        assert "no device was used" in scamp("usage")
        assert scamp("usage", "--csv") == "period,project,owner,device_hours,busy_share,mib_hours\n"
        scamp("users", "change", "bob", "--disable")
        assert re.search(r"bob .*disabled", scamp("users", "list"))
        log = scamp("audit", "--user", "anna")
        assert "change user" in log and "revoke token" in log and "stop" not in log
        assert "bob (127.0.0.1): stop study 1" in scamp("audit", "--study", str(study.id))
