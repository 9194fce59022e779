"""A user's code sees no secret of the service."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scamp_service.settings import ROOT
from scamp_service.user_environment import user_environment

GIVEN = {"PATH": "/bin", "LC_ALL": "C", "OMP_NUM_THREADS": "1", "SCAMP_DATA_DIR": "/data"}
SECRETS = {
    "SCAMP_API_TOKEN": "t", "SCAMP_DATABASE_URL": "u", "AWS_SECRET_ACCESS_KEY": "k", "HF_TOKEN": "h",
    "RAY_AUTH_TOKEN": "r", "RAY_AUTH_TOKEN_PATH": "p", "PGPASSWORD": "w", "https_proxy": "http://u:p@h",
}  # fmt: skip


def test_users_code_reads_what_libraries_need_and_no_secret() -> None:
    assert user_environment(GIVEN | SECRETS) == GIVEN


@pytest.mark.parametrize(("names", "passed"), [("DATASETS", {"DATASETS"}), (" W_*, DATASETS", {"DATASETS", "W_1"})])
def test_further_variables_are_passed_by_name(names: str, passed: set[str]) -> None:
    variables = {"DATASETS": "/d", "W_1": "1", "OTHER": "o", "SCAMP_PASS_ENVIRONMENT": names}
    assert set(user_environment(variables)) == {*passed, "SCAMP_PASS_ENVIRONMENT"}


SAY = """
import json, os, subprocess, sys
from pathlib import Path
from scamp_service.user_environment import close_environment, hide_environment
exec(sys.argv[1])
shown = Path("/proc/self/environ").read_text().split(chr(0))
copied = subprocess.check_output(["env", "-0"], text=True).split(chr(0))  # inherits what the C library has
of_python = [f"{name}={value}" for name, value in os.environ.items()]
print(json.dumps([[n for n in sys.argv[2:] if f"{n}=value of {n}" in lines] for lines in (shown, copied, of_python)]))
"""


def said(act: str, *names: str, **variables: str) -> list[list[str]]:
    """Which of ``names`` a process shows in /proc, has for the C library, and has for Python, after ``act``."""
    environment = {"PATH": os.environ["PATH"], **{name: f"value of {name}" for name in names}, **variables}
    words = subprocess.check_output([sys.executable, "-c", SAY, act, *names], cwd=ROOT, env=environment, text=True)
    lists: list[list[str]] = json.loads(words)
    return lists


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc/self/environ")
def test_a_process_of_ours_shows_no_secret_and_keeps_its_copy() -> None:
    names = ("PGPASSWORD", "LANG", "SCAMP_API_TOKEN", "DATASETS")
    for times in (1, 2):
        shown, copies, kept = said("hide_environment()\n" * times, *names, SCAMP_PASS_ENVIRONMENT="DATASETS")
        assert shown == ["LANG", "DATASETS"]
        assert copies == kept == list(names)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc/self/environ")
@pytest.mark.parametrize("passed", ["DATASETS", ""])
def test_a_rank_has_no_secret_anywhere(passed: str) -> None:
    names = ("PGPASSWORD", "LANG", "NCCL_DEBUG", "RAY_AUTH_TOKEN", "RAY_AUTH_MODE", "SCAMP_API_TOKEN", "DATASETS")
    allowed = ["LANG", "NCCL_DEBUG", "RAY_AUTH_MODE", *([passed] if passed else [])]
    assert said(f"close_environment({passed!r})", *names) == [allowed] * 3
