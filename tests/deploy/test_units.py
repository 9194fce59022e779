"""The units of systemd and the compose file, held against what will read them."""

from __future__ import annotations

import configparser
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from scamp_service.settings import Settings
from tests.deploy.test_deploy_files import ROOT, only

SYSTEM, USER = ROOT / "deploy/systemd/scamp.service", ROOT / "deploy/systemd/user/scamp.service"
SETTINGS = {f"SCAMP_{name.upper()}" for name in Settings.model_fields}
MOST_EXPOSED = 25
"""Tenths of what `systemd-analyze security` calls exposure: 100 is a service without any restriction."""
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


class Unit(configparser.ConfigParser):
    """The settings of a unit; of a setting that stands several times, the last."""

    def __init__(self, file: Path) -> None:
        super().__init__(strict=False, interpolation=None, comment_prefixes=("#",))
        self.optionxform = str  # type: ignore[assignment, method-assign]
        self.read(file)


def analyze(folder: Path, unit: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``systemd-analyze`` about the unit, as if this checkout were installed where it says."""
    (folder / "home").mkdir()
    command = Unit(unit)["Service"]["ExecStart"].split()[0]
    (folder / unit.name).write_text(unit.read_text().replace(command, str(ROOT / ".venv/bin/scamp")))
    variables = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "HOME": str(folder / "home")}
    program = ["systemd-analyze", *arguments, str(folder / unit.name)]
    return subprocess.run(program, env=variables, capture_output=True, text=True)


@needs_systemd
@pytest.mark.parametrize(("unit", "manager"), [(SYSTEM, "--system"), (USER, "--user")])
def test_systemd_finds_nothing_wrong_in_a_unit(unit: Path, manager: str, tmp_path: Path) -> None:
    done = analyze(tmp_path, unit, manager, "--man=no", "verify")
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
def test_systemd_would_find_a_setting_that_it_does_not_know(tmp_path: Path) -> None:
    (tmp_path / "scamp.service").write_text(SYSTEM.read_text().replace("KillMode=mixed", "KillMood=mixed"))
    (tmp_path / "copy").mkdir()
    assert "KillMood" in analyze(tmp_path / "copy", tmp_path / "scamp.service", "--man=no", "verify").stderr


@needs_systemd
def test_the_service_of_the_system_may_do_little_beside_its_work(tmp_path: Path) -> None:
    limits = ("security", "--offline=true", f"--threshold={MOST_EXPOSED}", "--no-pager")
    done = analyze(tmp_path, SYSTEM, *limits)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("unit", [SYSTEM, USER])
def test_a_unit_starts_the_service_and_gives_it_the_time_to_end(unit: Path) -> None:
    service = Unit(unit)["Service"]
    assert service["ExecStart"].split()[1:] == ["serve"]
    assert service["KillMode"] == "mixed", "SIGTERM to the supervisor alone, which ends the others"
    assert service["RestartPreventExitStatus"] == "2", "the exit code of a mistake in the settings"
    names = {pair.partition("=")[0] for pair in service["Environment"].split()}
    assert {name for name in names if name.startswith("SCAMP_")} <= SETTINGS


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())
    return document


def test_the_composed_service_is_the_image_with_its_port_and_volume() -> None:
    service = compose()["services"]["server"]
    assert (ROOT / "deploy" / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    assert set(service["build"]["args"]) <= {argument.partition("=")[0] for argument in [only("ARG")]}
    assert service["ports"] == [f"127.0.0.1:{only('EXPOSE')}:{only('EXPOSE')}"], "not for other machines"
    assert [volume.partition(":")[2] for volume in service["volumes"]] == [only("VOLUME")]
    assert "shm_size" in service, "Ray needs more than the 64 MiB of a container"
    assert set(service["environment"]) <= SETTINGS - {pair.partition("=")[0] for pair in only("ENV").split()}
    assert json.loads(only("CMD")) == ["serve"] and "command" not in service


def test_the_composed_service_finds_its_database_and_neither_has_a_password_in_the_file() -> None:
    services = compose()["services"]
    database = services["database"]["environment"]
    url = services["server"]["environment"]["SCAMP_DATABASE_URL"]
    assert url.startswith(f"postgresql+psycopg://{database['POSTGRES_USER']}:${{POSTGRES_PASSWORD")
    assert url.endswith(f"@database/{database['POSTGRES_DB']}")
    assert database["POSTGRES_INITDB_ARGS"] == "--encoding=UTF8"
    assert services["server"]["depends_on"] == {"database": {"condition": "service_healthy"}}
    for name in ("SCAMP_API_TOKEN", "POSTGRES_PASSWORD"):
        assert f"${{{name}:?" in (ROOT / "deploy/compose.yaml").read_text(), "refused without one"


def test_volumes_are_named_and_logs_do_not_grow_for_ever() -> None:
    document = compose()
    used = {volume.partition(":")[0] for each in document["services"].values() for volume in each["volumes"]}
    assert used == set(document["volumes"])
    for each in document["services"].values():
        assert each["logging"]["options"] == {"max-size": "10m", "max-file": "5"}
