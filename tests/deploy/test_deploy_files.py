"""The files that carry ScaMP elsewhere, held against the tools that will read them; no Docker or cluster is needed."""

from __future__ import annotations

import importlib
import json
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PACKAGES = ("scamp", "api", "scamp_service", "workloads", "placement", "estimators")
CLUSTER = ROOT / "deploy/ray-cluster.yaml"


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, comments dropped and continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "deploy/Dockerfile").read_text(), flags=re.MULTILINE)
    lines = (line for line in text.replace("\\\n", " ").splitlines() if line.strip())
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines)]


def only(name: str) -> str:
    (argument,) = (rest for instruction, rest in instructions() if instruction == name)
    return argument


def ignored(path: str) -> bool:
    """Whether .dockerignore keeps ``path`` (of a file or folder named in it) out of the image."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*", "everything is left out but what is named"
    return not any(path == line[1:] or path.startswith(line[1:] + "/") for line in lines if line.startswith("!"))


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    done = subprocess.run([BIN / "hadolint", ROOT / "deploy/Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_hadolint_would_find_something(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM python:latest\nRUN cd /tmp && sudo apt-get install make\n")
    assert subprocess.run([BIN / "hadolint", tmp_path / "Dockerfile"], capture_output=True).returncode != 0


def test_the_image_runs_the_service_under_tini_as_an_ordinary_user_and_asks_it_for_its_health() -> None:
    assert json.loads(only("ENTRYPOINT"))[0] == "tini"
    assert json.loads(only("ENTRYPOINT"))[-1] == "scamp"
    assert json.loads(only("CMD")) == ["serve"]
    assert re.fullmatch(r"[1-9][0-9]*:[1-9][0-9]*", only("USER"))
    names = [name for name, _ in instructions()]
    assert names.index("USER") > max(index for index, name in enumerate(names) if name in ("RUN", "COPY"))
    health = json.loads(only("HEALTHCHECK").partition("CMD")[2])
    assert health[-1].count(f"http://127.0.0.1:{only('EXPOSE')}/healthz") == 1
    compile(health[-1], "HEALTHCHECK", "exec")


def test_the_image_keeps_its_data_on_the_volume_and_holds_no_token() -> None:
    settings = dict(pair.split("=", 1) for pair in only("ENV").split())
    assert settings["SCAMP_DATA_DIR"] == only("VOLUME")
    assert settings["SCAMP_HOST"] == "0.0.0.0"
    assert not any("TOKEN" in rest for name, rest in instructions() if name in ("ENV", "ARG") and "TORCH" not in rest)


def test_the_image_gets_every_package_and_nothing_that_was_made_in_the_checkout() -> None:
    assert all(name == "FROM" or "--from" not in rest for name, rest in instructions())
    for package in (*PACKAGES, "Makefile", "pyproject.toml", "constraints.txt", "deploy/environment.py"):
        assert (ROOT / package).exists()
        assert not ignored(package), package
    for private in (".venv", ".git", ".scamp", "tests", ".hypothesis"):
        assert ignored(private), private
    copied = [word for name, rest in instructions() if name == "COPY" for word in rest.split()[:-1] if word != "."]
    assert all((ROOT / path).exists() and not ignored(path) for path in copied)


def test_every_yaml_file_is_well_formed() -> None:
    names = ("*.yaml", "*.yml", ":!deploy/kubernetes/chart/templates")  # helm makes YAML of those
    listed = subprocess.run(["git", "ls-files", *names], cwd=ROOT, capture_output=True, text=True)
    files = listed.stdout.split() or ["deploy/ray-cluster.yaml"]
    assert "deploy/ray-cluster.yaml" in files
    rules = "{extends: default, rules: {line-length: {max: 120}, document-start: disable, comments: disable}}"
    done = subprocess.run([BIN / "yamllint", "--strict", "-d", rules, *files], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def cluster() -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(CLUSTER.read_text())
    return config


def prepared(config: dict[str, Any]) -> dict[str, Any]:
    """As ``ray up`` reads it: filled up with the provider's defaults, then held against Ray's schema."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    filled: dict[str, Any] = prepare_config(config)
    validate_config(filled)
    return filled


def test_ray_accepts_the_cluster_file_with_every_worker_that_it_lists() -> None:
    config = prepared(cluster())
    (node_type,) = config["available_node_types"].values()
    workers = len(cluster()["provider"]["worker_ips"])
    assert node_type["min_workers"] == node_type["max_workers"] == config["max_workers"] == workers > 0


def test_ray_would_refuse_a_field_that_it_does_not_know() -> None:
    with pytest.raises(importlib.import_module("jsonschema").ValidationError, match="head_start_commands"):
        prepared(cluster() | {"head_start_commands": []})


def test_the_cluster_file_mounts_all_that_a_node_needs_and_only_what_is_there() -> None:
    mounts = cluster()["file_mounts"]
    needed = {*PACKAGES, "Makefile", "pyproject.toml", "constraints.txt", "deploy", "examples"}
    assert {Path(target).name for target in mounts if target.startswith("~/scamp/")} == needed
    assert all((ROOT / source).exists() for target, source in mounts.items() if target.startswith("~/scamp/"))


@pytest.mark.parametrize("stage", ["head_start_ray_commands", "worker_start_ray_commands"])
def test_every_ray_of_the_cluster_is_started_in_token_mode(stage: str) -> None:
    starts = [command for command in cluster()[stage] if "ray start" in command]
    assert len(starts) == 1
    assert "RAY_AUTH_MODE=token" in starts[0].partition("ray start")[0]
    assert "~/.ray/auth_token" in cluster()["file_mounts"]


@pytest.mark.full
def test_every_command_of_the_cluster_file_is_a_shell_command_and_every_option_one_of_rays() -> None:
    config = cluster()
    help_text = subprocess.run([BIN / "ray", "start", "--help"], capture_output=True, text=True, check=True).stdout
    commands = [command for stage, lines in config.items() if stage.endswith("_commands") for command in lines]
    assert commands
    for command in commands:
        assert subprocess.run(["bash", "-n", "-c", command]).returncode == 0, command
        for option in re.findall(r"(--[a-z-]+)", command.partition("ray start")[2]):
            assert option in help_text, option


def test_the_scripts_are_executable_and_their_syntax_is_right() -> None:
    for path, shell in ((ROOT / ".ci/run", "bash"), (ROOT / "deploy/scamp", "sh")):
        assert path.stat().st_mode & stat.S_IXUSR, path
        assert subprocess.run([shell, "-n", path]).returncode == 0, path
