"""The set-up of a checkout, for real but small: its own pyproject.toml, and packages made here instead of an index.

The index of most tests has no uv, so pip installs; that uv installs the same is tested with the uv of this environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]

PYPROJECT = """\
[project]
name = "tiny"
requires-python = ">={python}"
dependencies = ["torch>=2.13", "alpha"]
[dependency-groups]
dev = ["beta"]
"""


def wheel(index: Path, name: str, version: str, *requires: str, script: Path | None = None) -> None:
    index.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{name}.py": f"version = {version!r}\n",
        f"{info}/METADATA": metadata + "".join(f"Requires-Dist: {line}\n" for line in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(index / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in [*files.items(), (f"{info}/RECORD", record)]:
            archive.writestr(path, text)
        if script is not None:
            archive.write(script, f"{name}-{version}.data/scripts/{name}")


def simple_index(folder: Path, wheels: Path) -> str:
    """Address of an index with these wheels, as PEP 503 has it."""
    for file in wheels.iterdir():
        package = folder / file.name.partition("-")[0].replace("_", "-")
        package.mkdir(parents=True, exist_ok=True)
        with (package / "index.html").open("a") as page:
            page.write(f'<a href="{file.as_uri()}">{file.name}</a>\n')
    return folder.as_uri()


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    index = tmp_path_factory.mktemp("index")
    wheel(index, "torch", "2.13.0+cpu", "nvidia_nccl", "gamma")
    for name in ("nvidia_nccl", "gamma", "beta"):
        wheel(index, name, "1.0")
    wheel(index, "alpha", "1.0")
    wheel(index, "alpha", "2.0")
    return index


def new_checkout(path: Path) -> Path:
    (path / "deploy").mkdir(parents=True)
    for name in ("Makefile", "deploy/environment.py", "deploy/scamp"):
        shutil.copy(ROOT / name, path / name)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    (path / "pyproject.toml").write_text(PYPROJECT.format(python=python))
    (path / "constraints.txt").write_text("alpha==1.0\nbeta==1.0\ngamma==1.0\ntorch==2.13.0\n")
    return path


def command(root: Path, index: Path, *target: str) -> tuple[list[str], dict[str, str]]:
    environment = bare() | {"PIP_ARGS": f"--no-index --find-links={index}", "PIP_CONFIG_FILE": os.devnull}
    return ["make", "-C", str(root), f"PYTHON={sys.executable}", *target], environment


def bare() -> dict[str, str]:
    """The environment without settings of pip, uv and make."""
    ours = ("PIP_", "UV_", "MAKE", "MFLAGS", "TORCH_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def make(root: Path, index: Path, *target: str) -> subprocess.CompletedProcess[str]:
    arguments, environment = command(root, index, *target)
    return subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS)


def installs_of(root: Path) -> list[str]:
    """The commands that install packages, without that for uv itself."""
    lines = (root / ".venv/setup.log").read_text().splitlines()
    return [line for line in lines if " pip install " in line and not line.endswith(" uv")]


def version_of(root: Path, package: str) -> str:
    code = f"import {package}; print({package}.version)"
    return subprocess.run([root / ".venv/bin/python", "-c", code], capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory, index: Path) -> Path:
    """A checkout that is set up. A test may change it, as long as one more ``make setup`` heals it."""
    root = new_checkout(tmp_path_factory.mktemp("checkout") / "with a space")
    done = make(root, index, "setup")
    assert done.returncode == 0, done.stdout + done.stderr
    return root


def test_setup_installs_the_pinned_torch_before_anything_else_and_no_tool_of_the_tests(checkout: Path) -> None:
    installs = installs_of(checkout)
    assert installs[0].endswith("--no-deps torch==2.13.0")
    assert "alpha" in installs[1]
    assert version_of(checkout, "alpha") == "1.0", "constraints.txt decides, not the newest version"
    assert version_of(checkout, "gamma") == "1.0", "what torch needs comes with the rest"
    assert version_of(checkout, "beta") == ""


def test_a_second_setup_does_nothing(checkout: Path, index: Path) -> None:
    assert make(checkout, index, "setup").returncode == 0
    log = (checkout / ".venv/setup.log").read_text()
    assert make(checkout, index, "-q", ".venv/.ready").returncode == 0, "not even a Python starts"
    assert make(checkout, index, "setup").returncode == 0
    assert (checkout / ".venv/setup.log").read_text() == log


def test_files_that_are_newer_but_the_same_install_nothing(checkout: Path, index: Path) -> None:
    assert make(checkout, index, "setup").returncode == 0
    log = (checkout / ".venv/setup.log").read_text()
    os.utime(checkout / "pyproject.toml")
    assert make(checkout, index, "setup").returncode == 0
    assert (checkout / ".venv/setup.log").read_text() == log
    assert make(checkout, index, "-q", ".venv/.ready").returncode == 0, "the stamp is newer again"


def test_a_changed_pin_is_installed(checkout: Path, index: Path) -> None:
    constraints = checkout / "constraints.txt"
    before = constraints.read_text()
    try:
        constraints.write_text(before.replace("alpha==1.0", "alpha==2.0"))
        assert make(checkout, index, "setup").returncode == 0
        assert version_of(checkout, "alpha") == "2.0"
    finally:
        constraints.write_text(before)


def test_an_environment_whose_python_is_gone_is_made_anew(checkout: Path, index: Path) -> None:
    (checkout / ".venv/bin/python").unlink()
    (checkout / ".venv/bin/python").symlink_to("/nowhere/python3")
    done = make(checkout, index, "setup")
    assert done.returncode == 0, done.stdout + done.stderr
    assert version_of(checkout, "alpha") == "1.0"


def test_a_checkout_that_moved_needs_an_environment_of_its_own(checkout: Path, index: Path, tmp_path: Path) -> None:
    moved = new_checkout(tmp_path / "moved")
    (moved / ".venv").symlink_to(checkout / ".venv")
    assert make(checkout, index, "-q", ".venv/.ready").returncode == 0
    assert make(moved, index, "-q", ".venv/.ready").returncode == 1
    refused = make(moved, index, "setup")
    assert refused.returncode != 0 and "remove the link" in refused.stderr
    assert version_of(checkout, "alpha") == "1.0", "it is still there"


def test_after_an_interrupt_two_at_once_make_one_environment(checkout: Path, index: Path) -> None:
    shutil.rmtree(next((checkout / ".venv/lib").glob("python*/site-packages/pip")))
    (checkout / ".venv/.ready").unlink()
    arguments, environment = command(checkout, index, "setup")
    both = [
        subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=PATIENCE_SECONDS)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    log = (checkout / ".venv/setup.log").read_text()  # begun anew with the environment
    assert log.count(" -m venv ") == 1
    assert len(installs_of(checkout)) == 2
    assert sum("waiting" in text for text in said) == 1


@pytest.fixture(scope="module")
def uv_wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel of the uv that this environment has."""
    binary = Path(sys.executable).parent / "uv"
    if not binary.exists():
        pytest.skip("this environment has no uv: make test installs it")
    folder = tmp_path_factory.mktemp("uv")
    wheel(folder, "uv", "1.0", script=binary)
    return folder


@pytest.fixture
def machine(tmp_path: Path, uv_wheels: Path) -> dict[str, str]:
    """Variables of a machine whose pip knows two indexes, a folder with a CPU build of torch, and a constraint."""
    first, second, links = tmp_path / "first", tmp_path / "second", tmp_path / "links"
    wheel(first, "torch", "2.13.0", "nvidia_nccl", "gamma")
    for name, version in (("alpha", "2.0"), ("nvidia_nccl", "1.0"), ("nvidia_nccl", "2.0"), ("gamma", "1.0")):
        wheel(first, name, version)
    wheel(second, "alpha", "1.0")  # the pinned version is only here, and the first index has the package, too
    wheel(links, "torch", "2.13.0+cpu", "nvidia_nccl", "gamma")
    shutil.copy(next(uv_wheels.iterdir()), first)
    (tmp_path / "limits.txt").write_text("nvidia_nccl<2\n")
    (tmp_path / "pip.conf").write_text(
        f"[global]\nindex-url = {simple_index(tmp_path / 'simple', first)}\nfind-links = /nowhere\ntimeout = 9\n"
        f"[install]\nconstraint = {tmp_path / 'limits.txt'}\n"
    )
    return bare() | {
        "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"),
        "PIP_EXTRA_INDEX_URL": simple_index(tmp_path / "more", second),
        "PIP_FIND_LINKS": str(links),
        "UV_CACHE_DIR": str(tmp_path / "cache"),
    }


def set_up(root: Path, environment: dict[str, str]) -> str:
    arguments = ["make", "-C", str(root), f"PYTHON={sys.executable}", "setup"]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_uv_installs_what_pip_would_from_where_pips_settings_say(machine: dict[str, str], tmp_path: Path) -> None:
    root = new_checkout(tmp_path / "checkout")
    assert "by pip" not in set_up(root, machine)
    assert all(".venv/bin/uv pip install" in line for line in installs_of(root))
    assert version_of(root, "torch") == "2.13.0+cpu", "the CPU build in find-links"
    assert version_of(root, "alpha") == "1.0", "all indexes count alike"
    assert version_of(root, "nvidia_nccl") == "1.0", "the constraint of the machine"
    pins = root / "constraints.txt"
    pins.write_text(pins.read_text().replace("alpha==1.0", "alpha==2.0"))
    assert "by pip" in set_up(root, machine | {"PIP_ARGS": "--use-feature=fast-deps"}), "pip installs what uv refuses"
    assert version_of(root, "alpha") == "2.0"
    assert version_of(root, "torch") == "2.13.0+cpu"


def test_the_lock_has_the_newest_versions_and_neither_a_build_of_torch_nor_what_hangs_on_it(
    machine: dict[str, str], tmp_path: Path
) -> None:
    root = new_checkout(tmp_path / "checkout")
    wheel(tmp_path / "links", "beta", "1.0")
    arguments = ["make", "-C", str(root), f"PYTHON={sys.executable}", "lock"]
    done = subprocess.run(arguments, env=machine, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in (root / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines == ["alpha==2.0", "beta==1.0", "gamma==1.0", "torch==2.13.0"]


@pytest.mark.parametrize(
    ("listed", "options", "variables"),
    [
        (":env:.find-links='/a /b'\nglobal.find-links='/c'", ["--find-links=/a", "--find-links=/b"], {}),
        ("global.no-index='true'\ninstall.no-index='0'", [], {}),
        ("install.no-index='yes'\nfreeze.pre='1'", ["--no-index"], {}),
        ("global.trusted-host='one\\ntwo'", ["--trusted-host=one", "--trusted-host=two"], {}),
        ("global.proxy='http://p:1'\n:env:.no-cache-dir='1'", [], {"ALL_PROXY": "http://p:1", "UV_NO_CACHE": "1"}),
        ("global.cert='/my ca'\nglobal.index-url='https://i'", [], {"SSL_CERT_FILE": "/my ca", "UV_INDEX_URL": "https://i"}),
        ("global.quiet='1'", [], {}),
    ],
)  # fmt: skip
def test_pips_settings_become_those_of_uv(listed: str, options: list[str], variables: dict[str, str]) -> None:
    code = "import sys, environment; print(environment.settings_for_uv(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, listed], cwd=ROOT / "deploy", capture_output=True, text=True)
    assert done.stdout.strip() == repr((options, variables)), done.stderr


def test_a_package_that_is_not_there_stops_the_setup_with_advice(checkout: Path, index: Path) -> None:
    pyproject = checkout / "pyproject.toml"
    before = pyproject.read_text()
    try:
        pyproject.write_text(before.replace('"alpha"', '"alpha", "absent"'))
        done = make(checkout, index, "setup")
        assert done.returncode != 0
        assert "No matching distribution found for absent" in done.stderr
        assert "make setup PYTHON=python3.12" in done.stderr
        assert make(checkout, index, "-q", ".venv/.ready").returncode != 0, "no stamp says that all is well"
    finally:
        pyproject.write_text(before)


@pytest.mark.parametrize("version", [None, (3, 10), (3, 14)])
def test_without_a_python_make_says_which_and_how_to_get_it(version: tuple[int, int] | None, tmp_path: Path) -> None:
    root, python = new_checkout(tmp_path / "bare"), tmp_path / "python3"
    if version:  # a Python that takes itself for this version
        python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "import sys; sys.version_info = {version}; $2"\n')
        python.chmod(0o755)
    done = subprocess.run(["make", "-C", str(root), "setup", f"PYTHON={python}"], capture_output=True, text=True)
    assert done.returncode != 0
    assert "ScaMP needs Python 3.11, 3.12 or 3.13" in done.stderr
    assert "apt-get install python3" in done.stderr
    assert not (root / ".venv").exists()


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk is full"),
        (
            "WARNING: Retrying after connection broken by 'NewConnectionError(Temporary failure in name resolution)'\n"
            "ERROR: No matching distribution found for torch==2.13.0",
            "cannot be reached",
        ),
        ("ERROR: No matching distribution found for torch==2.13.0", "TORCH_INDEX_URL"),
        ("ERROR: ResolutionImpossible: for help visit https://pip.pypa.io", "make lock"),
        ("The virtual environment was not created because ensurepip is not available.", "-venv"),
        ("PermissionError: [Errno 13] Permission denied: '/checkout/.venv'", "cannot be written"),
    ],
)
def test_every_common_failure_says_what_to_do(said: str, advice: str) -> None:
    code = "import sys, environment; print(environment.failure('headline', sys.argv[1]).splitlines()[-1])"
    shown = subprocess.run(
        [sys.executable, "-c", code, said], cwd=ROOT / "deploy", capture_output=True, text=True, check=True
    )
    assert advice in shown.stdout
