"""Makes ``.venv``, the environment of this checkout, and keeps it up to date with pyproject.toml and constraints.txt.

It runs before anything is installed, so it uses only the standard library: ``python deploy/environment.py setup``.
ScaMP itself is not installed: it is an application that runs from its checkout, and ``.venv/bin/scamp`` links to it.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FREE_BYTES = 4 << 30  # torch's CPU build and the rest take 2.1 GiB, and pip needs room to unpack

# Each build of torch requires its own exact versions of these: a pin of ours would tie every machine to one build.
TIED_TO_TORCH = re.compile(r"(nvidia|cuda|triton)\b(?!-ml-py)")

LOCK_HEADER = """\
# What `make setup` and `make test` install, exactly. Written by `make lock`; do not edit.
# Resolved on the oldest Python that ScaMP supports, so that one list serves them all.
"""

ADVICE = (
    (
        r"No space left on device|Errno 28|Disk quota exceeded",
        "The disk is full: free about 4 GiB (10 GiB for torch with CUDA), or set TMPDIR to a larger disk.",
    ),
    (
        r"name resolution|nodename nor servname|NewConnectionError|Network is unreachable|Connection refused"
        r"|ConnectTimeout|ReadTimeout|Max retries exceeded|ProxyError|SSLError|CERTIFICATE_VERIFY_FAILED",
        "The package index cannot be reached: check the network and the proxy (https_proxy), or choose a mirror: "
        "make setup PIP_ARGS='--index-url https://…'.",
    ),
    (
        r"ResolutionImpossible|conflicting dependencies",
        "pyproject.toml requires versions that constraints.txt does not allow: run `make lock`, then `make setup`.",
    ),
    (
        r"No matching distribution found|Could not find a version",
        "The index has no such package for this Python and machine: use Python 3.11, 3.12 or 3.13 "
        "(make clean; make setup PYTHON=python3.12), or another index (TORCH_INDEX_URL, PIP_ARGS).",
    ),
    (
        r"ensurepip is not available|No module named '?(ensurepip|venv)",
        "This Python cannot create environments: install its venv package (Debian, Ubuntu: "
        f"apt-get install python3.{sys.version_info.minor}-venv).",
    ),
    (
        r"Permission denied|Read-only file system",
        "The checkout cannot be written to: change its owner, or use a copy of your own.",
    ),
)


class SetupFailed(Exception):
    """The environment could not be made; the message says what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit status: 1 after a failure, which is printed to stderr."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("setup", "lock"))
    parser.add_argument("--dev", action="store_true", help="also install the tools for the tests")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder of the checkout (default: this one)")
    options = parser.parse_args(arguments)
    try:
        if options.command == "lock":
            lock(options.root)
        else:
            setup(options.root, dev=options.dev)
    except SetupFailed as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def setup(root: Path, *, dev: bool) -> None:
    """Make or update ``root/.venv``; ``dev`` also installs the tools for the tests.

    It is safe to repeat, to interrupt and to run twice at once: one waits for the other. Raises ``SetupFailed``.
    """
    venv = root / ".venv"
    packages, tools = requirements(root)
    wanted = fingerprint(root, packages + tools if dev else packages)
    stamp = venv / (".ready-dev" if dev else ".ready")
    with locked(venv):
        if stamp.exists() and stamp.read_text() == wanted and usable(venv):
            stamp.touch()
            return
        if not usable(venv):
            create(venv)
        torch = next((line for line in pins(root) if line.startswith("torch==")), None)
        if torch is None:
            raise SetupFailed("constraints.txt does not pin torch: run `make lock` in a checkout that is set up.")
        index = os.environ.get("TORCH_INDEX_URL")
        # torch comes first and alone: its index has few other packages, and no later step may choose another build.
        install(venv, root, torch, ["--no-deps", torch], [f"--index-url={index}"] if index else [])
        install(venv, root, f"{len(packages)} packages and what they need", packages)
        if dev:
            install(venv, root, f"{len(tools)} tools for the tests", packages + tools)
        link_command(root)
        (venv / ".ready").write_text(fingerprint(root, packages))
        stamp.write_text(wanted)


def lock(root: Path) -> None:
    """Write constraints.txt with the newest versions that pyproject.toml allows today; installs none of them."""
    venv = root / ".venv"
    with locked(venv):
        if not usable(venv):
            create(venv)
        chosen = resolve(root, venv)
    (root / "constraints.txt").write_text(LOCK_HEADER + "".join(f"{line}\n" for line in chosen))


def resolve(root: Path, venv: Path) -> list[str]:
    """Lines of constraints.txt, chosen by pip. Raises ``SetupFailed`` unless the oldest supported Python runs it."""
    python = venv / "bin" / "python"
    oldest = tomllib.loads((root / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    running = subprocess.check_output([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], text=True)
    if running.strip() != oldest:
        raise SetupFailed(f"Run the lock on Python {oldest}: make clean; make lock PYTHON=python{oldest}")
    packages, tools = requirements(root)
    index = os.environ.get("TORCH_INDEX_URL")
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        command = ["--dry-run", "--ignore-installed", f"--report={report}", *packages, *tools]
        pip(venv, "choosing versions", command + ([f"--extra-index-url={index}"] if index else []))
        return sorted(pinned(json.loads(report.read_text())), key=str.lower)


def pinned(report: dict[str, Any]) -> list[str]:
    """``name==version`` of each package in pip's report, without the local tag (``+cpu``) of a build."""
    found = [(item["metadata"]["name"], item["metadata"]["version"]) for item in report["install"]]
    return [
        f"{name}=={version.partition('+')[0]}"
        for name, version in found
        if not TIED_TO_TORCH.match(re.sub(r"[-_.]+", "-", name).lower())
    ]


def requirements(root: Path) -> tuple[list[str], list[str]]:
    """Packages that ScaMP needs to run, and those that its tests need in addition."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    return project["project"]["dependencies"], project["dependency-groups"]["dev"]


def pins(root: Path) -> list[str]:
    """Lines of constraints.txt (``name==version``), without comments."""
    lines = (line.partition("#")[0].strip() for line in (root / "constraints.txt").read_text().splitlines())
    return [line for line in lines if line]


def fingerprint(root: Path, wanted: Sequence[str]) -> str:
    """A hash that changes when the environment must change; file times do not count, as another branch changes them."""
    inputs = [sys.version.split()[0], *sorted(wanted), *pins(root)]
    return hashlib.sha256("\n".join(inputs).encode()).hexdigest()


@contextmanager
def locked(venv: Path) -> Iterator[None]:
    """Hold ``.venv/.lock``; on a file system without locks, continue without it."""
    try:
        venv.mkdir(exist_ok=True)
        handle = (venv / ".lock").open("w")
    except OSError as error:
        raise SetupFailed(failure(f"{venv} cannot be created", str(error))) from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("  another make is setting up this checkout: waiting for it", flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            pass
        yield


def usable(venv: Path) -> bool:
    """Whether ``venv`` works.

    It does not if its Python is gone, if the checkout has moved (its scripts have absolute paths), or if an interrupt
    left it without pip.
    """
    python, made = venv / "bin" / "python", venv / "pyvenv.cfg"
    if not python.exists() or not made.exists() or f"-m venv {venv}\n" not in made.read_text():
        return False
    return subprocess.run([python, "-c", "import pip"], stderr=subprocess.DEVNULL).returncode == 0


def create(venv: Path) -> None:
    """Make an empty environment in place of the present one. Raises ``SetupFailed`` if the disk is too full."""
    free = shutil.disk_usage(venv).free
    if free < FREE_BYTES:
        raise SetupFailed(failure(f"Only {free / 2**30:.1f} GiB are free for {venv}", "No space left on device"))
    for child in venv.iterdir():
        if child.name != ".lock":
            shutil.rmtree(child) if child.is_dir() and not child.is_symlink() else child.unlink()
    run(venv, f"environment in {venv} (Python {sys.version.split()[0]})", [sys.executable, "-m", "venv", str(venv)])


def install(venv: Path, root: Path, what: str, wanted: Sequence[str], options: Sequence[str] = ()) -> None:
    """Install ``wanted`` in versions that constraints.txt allows; ``what`` describes it in the output."""
    pip(venv, what, ["--constraint", str(root / "constraints.txt"), *options, *wanted])


def pip(venv: Path, what: str, arguments: Sequence[str]) -> None:
    """Run ``pip install`` of ``venv``, with ``PIP_ARGS`` before ``arguments``."""
    quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    extra = shlex.split(os.environ.get("PIP_ARGS", ""))
    run(venv, what, [str(venv / "bin" / "python"), "-m", "pip", "install", *quiet, *extra, *arguments])


def run(venv: Path, what: str, command: Sequence[str]) -> None:
    """Run ``command``: prints ``what`` and then its seconds; all its output goes to ``.venv/setup.log``.

    Raises ``SetupFailed`` with the last lines of the output and advice.
    """
    print(f"  {what} … ", end="", flush=True)
    began = time.monotonic()
    log = venv / "setup.log"
    with log.open("a+") as output:
        start = output.seek(0, os.SEEK_END)
        output.write(f"$ {shlex.join(command)}\n")
        output.flush()
        code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output).returncode
        output.seek(start)
        said = output.read()
    if code:
        print("failed", flush=True)
        raise SetupFailed(failure(f"Setup failed at this step: {what}. Its last lines (full output: {log}):", said))
    print(f"{time.monotonic() - began:.0f} s", flush=True)


def failure(headline: str, said: str) -> str:
    """A message: the headline, the last eight lines of ``said``, and advice that fits them."""
    advice = next((text for pattern, text in ADVICE if re.search(pattern, said)), "Fix this error, then run it again.")
    lines = [line for line in said.splitlines() if line.strip() and not line.startswith("$ ")]
    return "\n".join([headline, *(f"    {line[:200]}" for line in lines[-8:]), advice])


def link_command(root: Path) -> None:
    """Make ``.venv/bin/scamp`` a link to deploy/scamp of the checkout."""
    command = root / ".venv" / "bin" / "scamp"
    command.unlink(missing_ok=True)
    command.symlink_to(Path("..") / ".." / "deploy" / "scamp")


if __name__ == "__main__":
    sys.exit(main())
