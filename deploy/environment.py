"""Makes ``.venv``, the environment of this checkout, and keeps it up to date with pyproject.toml and constraints.txt.

It runs before anything is installed, so it uses only the standard library: ``python deploy/environment.py setup``.
Packages are installed by uv, which pip fetches first; pip installs what uv cannot. ScaMP itself is not installed: it
runs from its checkout, and ``.venv/bin/scamp`` links to it.
"""

from __future__ import annotations

import argparse
import ast
import fcntl
import hashlib
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
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FREE_BYTES = 4 << 30  # torch's CPU build and the rest take 2.1 GiB, and pip needs room to unpack

# Each build of torch requires its own exact versions of these: a pin of ours would tie every machine to one build.
TIED_TO_TORCH = re.compile(r"(nvidia|cuda|triton)\b(?!-ml-py)")

LOCK = ".setup-lock"
LOCK_HEADER = """\
# What `make setup` and `make test` install, exactly. Written by `make lock`; do not edit.
# Resolved for every Python that ScaMP supports, so that one list serves them all.
"""

# pip's settings as uv takes them: as variables, which options override; as options, which add up; as flags.
AS_VARIABLES = {
    "index-url": "UV_INDEX_URL",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "retries": "UV_HTTP_RETRIES",
    "no-cache-dir": "UV_NO_CACHE",
}
AS_OPTIONS = ("constraint", "extra-index-url", "find-links", "no-binary", "only-binary", "trusted-host")
AS_FLAGS = ("no-index", "pre")

# What a first `make run` imports. Two processes compile it; uv compiles nothing.
FIRST_IMPORTS = (
    "import workloads.training.runtime, workloads.cleaning.cleaner, workloads.sandbox.server as server; "
    "server.warm_up_tracing()",
    "import api.app, scamp_service.processes.controller_process",
)

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
    wanted_packages = packages + tools if dev else packages
    wanted = fingerprint(root, wanted_packages)
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
        uv = uv_pip(venv, "install")
        install(venv, uv, torch, ["--no-deps", torch], [f"--index-url={index}"] if index else [])
        install(venv, uv, f"{len(wanted_packages)} packages and what they need", wanted_packages)
        link_command(root)
        if uv:
            compile_first_imports(venv)
        (venv / ".ready").write_text(fingerprint(root, packages))
        stamp.write_text(wanted)


def lock(root: Path) -> None:
    """Write constraints.txt with the newest versions that pyproject.toml allows today; installs nothing but uv."""
    venv, index = root / ".venv", os.environ.get("TORCH_INDEX_URL")
    oldest = tomllib.loads((root / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    with locked(venv), tempfile.TemporaryDirectory() as scratch:
        if not usable(venv):
            create(venv)
        uv = uv_pip(venv, "compile")
        if not uv:
            raise SetupFailed("`make lock` needs uv, which this index does not have.")
        packages, tools = requirements(root)
        wanted, chosen = Path(scratch, "wanted"), Path(scratch, "chosen")
        wanted.write_text("\n".join(packages + tools))
        options = f"--universal --python-version={oldest} --fork-strategy=fewest --no-annotate --no-header".split()
        options += [f"--extra-index-url={index}"] if index else []
        run(venv, "choosing versions", [*uv, *options, f"--output-file={chosen}", str(wanted)])
        # Without the local tag (``+cpu``) of a build, and without the platforms that need a package.
        lines = {re.split(r"[+; ]", line)[0] for line in chosen.read_text().splitlines()}
    kept = sorted(line for line in lines if not TIED_TO_TORCH.match(line))
    (root / "constraints.txt").write_text(LOCK_HEADER + "".join(f"{line}\n" for line in kept))


def requirements(root: Path) -> tuple[list[str], list[str]]:
    """Packages that ScaMP needs to run, and those that its tests need in addition."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    packages = [line for line in project["project"]["dependencies"] if not line.startswith("scamp==")]  # it is here
    return packages, project["dependency-groups"]["dev"]


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
    """Hold the lock of ``venv``, which is not the ``.lock`` of uv; on a file system without locks, continue without."""
    try:
        venv.mkdir(exist_ok=True)
        handle = (venv / LOCK).open("w")
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
    """Make an empty environment in place of the present one.

    Raises ``SetupFailed`` if the disk is too full, and for a link to an environment of another checkout.
    """
    if venv.is_symlink() and (venv / "pyvenv.cfg").exists():
        raise SetupFailed(f"{venv} is a link to the environment {venv.resolve()}: remove the link, then run it again.")
    free = shutil.disk_usage(venv).free
    if free < FREE_BYTES:
        raise SetupFailed(failure(f"Only {free / 2**30:.1f} GiB are free for {venv}", "No space left on device"))
    for child in venv.iterdir():
        if child.name != LOCK:
            shutil.rmtree(child) if child.is_dir() and not child.is_symlink() else child.unlink()
    run(venv, f"environment in {venv} (Python {sys.version.split()[0]})", [sys.executable, "-m", "venv", str(venv)])


def install(venv: Path, uv: Sequence[str], what: str, wanted: Sequence[str], options: Sequence[str] = ()) -> None:
    """Install ``wanted`` in versions that constraints.txt allows; ``what`` describes it in the output.

    pip installs where ``uv`` is empty or fails: pip knows more settings, and ``ADVICE`` knows its errors.
    """
    arguments = [f"--constraint={venv.parent / 'constraints.txt'}", *options, *wanted]
    if uv:
        with suppress(SetupFailed):
            return run(venv, what, [*uv, f"--python={venv / 'bin' / 'python'}", *arguments])
    return pip(venv, f"{what}, by pip" if uv else what, arguments)


def pip(venv: Path, what: str, arguments: Sequence[str]) -> None:
    """Run ``pip install`` of ``venv``, with ``PIP_ARGS`` before ``arguments``."""
    quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    run(venv, what, [str(venv / "bin" / "python"), "-m", "pip", "install", *quiet, *pip_args(), *arguments])


def pip_args() -> list[str]:
    """The options for pip that make was given."""
    return shlex.split(os.environ.get("PIP_ARGS", ""))


def uv_pip(venv: Path, verb: str) -> list[str]:
    """The command ``uv pip install`` or ``uv pip compile`` with pip's settings; pip installs uv first.

    Empty where uv cannot be had. As with pip, the best version of all indexes counts, not the first index that has one.
    """
    try:
        pip(venv, "uv", [f"--constraint={venv.parent / 'constraints.txt'}", "uv"])
    except SetupFailed:
        print("  uv cannot be had: pip installs everything, which takes longer", flush=True)
        return []
    options, variables = settings_for_uv(
        subprocess.check_output([venv / "bin" / "python", "-m", "pip", "config", "list"], text=True)
    )
    os.environ.update(variables)
    always = ["--no-progress", "--index-strategy=unsafe-best-match"]
    return [str(venv / "bin" / "uv"), "pip", verb, *always, *options, *pip_args()]


def settings_for_uv(listed: str) -> tuple[list[str], dict[str, str]]:
    """Options and variables for uv, which reads neither pip's files nor ``PIP_*``, from ``pip config list``."""
    settings: dict[str, str] = {}
    for section in ("global", "install", ":env:"):  # the last one that has a setting counts
        for name, value in re.findall(rf"^{section}\.([a-z-]+)=(.*)$", listed, re.MULTILINE):
            settings[name] = ast.literal_eval(value)
    options = [f"--{name}={word}" for name in AS_OPTIONS for word in settings.get(name, "").split()]
    options += [f"--{name}" for name in AS_FLAGS if settings.get(name, "").lower() in ("1", "true", "yes", "on")]
    return options, {AS_VARIABLES[name]: value for name, value in settings.items() if name in AS_VARIABLES}


def compile_first_imports(venv: Path) -> None:
    """Write the bytecode of what ScaMP imports in its first seconds; an image is made before ScaMP is copied to it."""
    if (venv.parent / "workloads").exists():
        both = "".join(f"{shlex.quote(str(venv / 'bin' / 'python'))} -c '{code}' & " for code in FIRST_IMPORTS)
        run(venv, "bytecode of what is imported first", ["sh", "-c", f"{both}wait"])


def run(venv: Path, what: str, command: Sequence[str]) -> None:
    """Run ``command`` in the checkout: prints ``what`` and then its seconds; its output goes to ``.venv/setup.log``.

    Raises ``SetupFailed`` with the last lines of the output and advice.
    """
    print(f"  {what} … ", end="", flush=True)
    began = time.monotonic()
    log = venv / "setup.log"
    with log.open("a+") as output:
        start = output.seek(0, os.SEEK_END)
        output.write(f"$ {re.sub(r'(?<=://)[^/@ ]+@', '…@', shlex.join(command))}\n")  # without passwords of indexes
        output.flush()
        code = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=venv.parent
        ).returncode
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
