"""Checks of this machine and its Python, whatever the settings are."""

from __future__ import annotations

import importlib.metadata
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

from estimators.model import MIB
from scamp_service.cluster.devices.gpu_nodes import why_nothing
from scamp_service.cluster.devices.gpus import driver_trouble, inventory, processes_on, visible
from scamp_service.cluster.local.connection import expect_tokens
from scamp_service.cluster.local.guardian import SHORT
from scamp_service.cluster.local.local_ray import OBJECT_STORE_BYTES
from scamp_service.errors import Unavailable
from scamp_service.files import with_remedy
from scamp_service.host import allow_many_files, package_versions
from scamp_service.settings import ROOT
from scamp_service.temporary import make_folder, remove_folder
from scamp_service.upkeep.finding import Doubt

SUPPORTED = ((3, 11), (3, 12), (3, 13))
SETUP = "run `make setup`, or install scamp-server again"
TORCH = (
    "import json, torch; "
    "print(json.dumps([torch.__version__, torch.version.cuda, torch.version.cuda and torch.cuda.is_available()]))"
)
TORCH_SECONDS = 60.0
SHARED_MEMORY = Path("/dev/shm")
LEAST_THREADS = 2000
"""Threads that a service with a few ranks has: Ray's processes alone have some hundred."""
DAY_SECONDS = 24 * 3600.0


def python() -> str:
    """The version is one of those that ScaMP is tested with."""
    words = f"Python {sys.version.split()[0]}, {sys.executable}"
    if sys.version_info[:2] not in SUPPORTED:
        versions = ", ".join(f"{major}.{minor}" for major, minor in SUPPORTED)
        raise Doubt(f"{words}, is not tested: make the environment again with one of {versions}")
    return words


def packages() -> str:
    """Each package is installed, in a version that ScaMP needs, and in that of ``constraints.txt`` in a checkout."""
    installed = {canonicalize_name(name): version for name, version in package_versions().items()}
    needed = _requirements()
    if wrong := [line for line in needed if not _is_met(line, installed)]:
        raise Unavailable(f"{_listed(wrong)} {'is' if len(wrong) == 1 else 'are'} not installed: {SETUP}")
    pins, file = [], ROOT / "constraints.txt"
    if file.exists():
        lines = (line.partition("#")[0].strip() for line in file.read_text().splitlines())
        pins = [Requirement(line) for line in lines if line]
    differing = [pin for pin in pins if canonicalize_name(pin.name) in installed and not _is_met(pin, installed)]
    if differing:
        raise Doubt(f"other versions than the tested ones are installed, instead of {_listed(differing)}: {SETUP}")
    return f"{len(needed)} packages as needed" + ", in the versions of constraints.txt" * bool(pins)


def torch() -> str:
    """It can be imported, and computes on the GPUs that this machine has."""
    done = subprocess.run([sys.executable, "-c", TORCH], capture_output=True, text=True, timeout=TORCH_SECONDS, cwd="/")
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise Unavailable(f"torch cannot be imported ({last[0]}): {SETUP}")
    version, cuda, works = json.loads(done.stdout.splitlines()[-1])
    num_gpus = len(visible(inventory(), os.environ.get("CUDA_VISIBLE_DEVICES")))
    if num_gpus and not cuda:
        raise Unavailable(
            f"torch {version} has no CUDA, but this machine has {num_gpus} GPUs: run `make clean setup` without "
            "TORCH_INDEX_URL, or hide them with CUDA_VISIBLE_DEVICES="
        )
    if num_gpus and not works:
        raise Unavailable(f"torch {version} for CUDA {cuda} cannot use the GPUs: update NVIDIA's driver")
    return f"torch {version}, {f'CUDA {cuda}' if cuda else 'without CUDA'}"


def gpus() -> str:
    """The driver answers, and no other program uses the GPUs."""
    if trouble := driver_trouble():
        raise Doubt(f"NVIDIA's driver does not answer ({trouble}): load it again, or restart this machine")
    all_gpus, chosen = inventory(), os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible(all_gpus, chosen)
    if not gpus:
        if all_gpus and chosen:
            raise Doubt(f"CUDA_VISIBLE_DEVICES={chosen} names no GPU of this machine: `scamp devices` lists them")
        return "none: studies run on virtual devices"
    if taken := [gpu for gpu in gpus if gpu.other_processes_mib * MIB > 0.02 * gpu.total_mib * MIB]:
        gpu, pids = taken[0], processes_on(taken[0].index)
        raise Doubt(
            f"other programs hold {gpu.other_processes_mib} MiB of GPU {gpu.index}"
            f"{f' (processes {_joined(pids)})' if pids else ''}, which ScaMP does not get: end them"
        )
    if useless := next(filter(None, (why_nothing(gpu, 1) for gpu in gpus)), ""):
        raise Doubt(useless)
    return ", ".join(f"{gpu.name} with {gpu.free_mib} MiB" for gpu in gpus)


def shared_memory() -> str:
    """There is room for the object store of Ray."""
    if not SHARED_MEMORY.is_dir():
        return f"this system has no {SHARED_MEMORY}"
    free = shutil.disk_usage(SHARED_MEMORY).free
    if free < OBJECT_STORE_BYTES:
        raise Doubt(
            f"{SHARED_MEMORY} has only {free // MIB} MiB, so Ray uses a disk: give a container more (--shm-size=2g), "
            "or remove files of programs that have ended"
        )
    return f"{free // MIB} MiB free in {SHARED_MEMORY}"


def open_files() -> str:
    """A process may open enough files."""
    allow_many_files()
    return f"{resource.getrlimit(resource.RLIMIT_NOFILE)[0]} in each process"


def processes() -> str:
    """The user, and a container, may have enough processes and threads."""
    limits = {"pids.max of this container (--pids-limit)": _container_limit()}
    if os.geteuid() != 0:  # Linux does not limit root
        limits["this user (`ulimit -u`)"] = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    for whose, limit in limits.items():
        if 0 <= limit < LEAST_THREADS:
            raise Doubt(
                f"{whose} allows {limit} processes and threads, and a service may need {LEAST_THREADS}: raise it"
            )
    least = min((limit for limit in limits.values() if limit >= 0), default=0)
    return f"up to {least} with their threads" if least else "no limit"


def temporary_files() -> str:
    """Temporary folders can be made, also in /tmp, where Ray has its sockets."""
    for parent in (None, SHORT):
        try:
            remove_folder(make_folder(parent))
        except OSError as error:
            raise Unavailable(
                f"no temporary folder can be made: {with_remedy(error)}; ScaMP needs {SHORT}, and TMPDIR if it is set"
            ) from None
    return f"writable in {SHORT}"


def proxies() -> str:
    """No proxy stands between programs of this machine and the service on it."""
    servers = urllib.request.getproxies_environment()
    hosts = ("localhost", "127.0.0.1")
    missing = [host for host in hosts if not urllib.request.proxy_bypass(host)]
    if missing and ("http" in servers or "all" in servers):
        raise Doubt(f"programs such as curl ask a proxy for {_joined(missing)}: add {','.join(hosts)} to no_proxy")
    return "none for this machine"


def names() -> str:
    """The name of this machine has an address, and localhost is this machine."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
        local = socket.gethostbyname("localhost")
    except OSError as error:
        raise Doubt(f"{name} or localhost has no address ({error}): name both in /etc/hosts") from None
    if not local.startswith("127."):
        raise Doubt(f"localhost is {local}: let it be 127.0.0.1 in /etc/hosts")
    return name


def clock() -> str:
    """It is later than the day on which this version was written."""
    now = time.time()
    if now < (ROOT / "scamp" / "__init__.py").stat().st_mtime - DAY_SECONDS:
        raise Doubt(f"it is {_date(now)} by the clock of this machine, which is wrong: timedatectl set-ntp true")
    return _date(now)


def ray_tokens() -> str:
    """Ray's variables do not turn its tokens off."""
    expect_tokens()
    return "on"


def _requirements() -> list[Requirement]:
    """Packages that ScaMP needs; without ``scamp`` in a checkout, which has it."""
    file = ROOT / "pyproject.toml"
    if file.exists():
        lines = [line for line in tomllib.loads(file.read_text())["project"]["dependencies"] if "scamp==" not in line]
    else:
        lines = importlib.metadata.requires("scamp-server") or []
    return [line for line in map(Requirement, lines) if line.marker is None or line.marker.evaluate()]


def _is_met(line: Requirement, installed: Mapping[NormalizedName, str]) -> bool:
    version = installed.get(canonicalize_name(line.name))
    return version is not None and line.specifier.contains(version, prereleases=True)


def _container_limit() -> int:
    """Most processes and threads of the control group of this process; -1: no limit, or none is known."""
    try:
        group = Path("/proc/self/cgroup").read_text().splitlines()[-1].rpartition(":")[2].strip("/")
        for folder in (Path("/sys/fs/cgroup") / group, Path("/sys/fs/cgroup")):
            if (file := folder / "pids.max").exists() and (text := file.read_text().strip()) != "max":
                return int(text)
    except (OSError, ValueError):
        pass
    return -1


def _listed(lines: list[Requirement]) -> str:
    return _joined(map(str, lines[:3])) + (f" and {len(lines) - 3} more" if len(lines) > 3 else "")


def _joined(words: Iterable[object]) -> str:
    return ", ".join(map(str, words))


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(seconds))
