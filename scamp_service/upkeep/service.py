"""Checks of the settings, the ports and Ray, of a service that runs, and of what one that was killed has left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx

from estimators.model import MIB
from scamp.addresses import running_server
from scamp_service.cluster.devices.gpus import inventory, visible
from scamp_service.cluster.local.connection import expect_listener
from scamp_service.cluster.local.guardian import SHORT
from scamp_service.cluster.local.local_ray import check_account
from scamp_service.errors import Unavailable
from scamp_service.host import package_versions
from scamp_service.processes.addresses import take_port
from scamp_service.settings import LOOPBACK, Settings
from scamp_service.store.access.users import Users
from scamp_service.temporary import forgotten_folders
from scamp_service.upkeep.finding import Doubt
from scamp_service.upkeep.storage import opened

ANSWER_SECONDS = 3.0
VERSIONS = """
import json, sys
from ray._private import ray_constants
from ray._raylet import GcsClient
client = GcsClient(address=sys.argv[1])
stored = client.internal_kv_get(b"CLUSTER_METADATA", ray_constants.KV_NAMESPACE_CLUSTER, timeout=5)
print(json.dumps(json.loads(stored)))
"""
VERSIONS_SECONDS = 30.0


def service(settings: Settings) -> str:
    """A service that runs answers."""
    url = running_server(settings.data_dir)
    if url is None:
        return "none runs with this data directory"
    try:
        answer = httpx.get(f"{url}/readyz", timeout=ANSWER_SECONDS, trust_env=False)
    except httpx.TransportError as error:
        raise Doubt(
            f"the service at {url} does not answer ({error}): see {settings.data_dir / 'logs' / 'api.log'}"
        ) from None
    if not answer.is_success:
        raise Doubt(f"the service at {url} is not ready ({answer.status_code}): {answer.text.strip()[:300]}")
    return f"runs at {url}"


def leftovers(settings: Settings) -> str:
    """No process and no folder is left of a service that was killed."""
    if running_server(settings.data_dir) is None and (pids := _processes_of(settings.data_dir)):
        ids = " ".join(map(str, pids))
        raise Doubt(f"processes of a killed service with this data directory still run: end them (kill {ids})")
    folders = {folder for parent in (Path(tempfile.gettempdir()), SHORT) for folder in forgotten_folders(parent)}
    if folders:
        parents = ", ".join(sorted({str(folder.parent) for folder in folders}))
        raise Doubt(f"{len(folders)} folders in {parents} are left of killed processes: the next start removes them")
    return "none"


def access(settings: Settings) -> str:
    """Who can reach the service needs a token."""
    settings.expect_access(has_users=_has_users(settings))
    return f"{settings.host}, {'with' if settings.api_token else 'without'} SCAMP_API_TOKEN"


def port(settings: Settings) -> str:
    """The port is free, or that of the service that runs."""
    if url := running_server(settings.data_dir):
        return f"that of {url}"
    return f"{take_port(settings, next_port=False)} on {settings.host} is free"


def notices(settings: Settings) -> str:
    """Receivers of notices can be reached by the rules of the settings."""
    settings.expect_receivers(settings.notify)
    return f"{len(settings.notify)} receivers of all studies"


def autoscaler(settings: Settings) -> str:
    """An autoscaler is only asked where there is one."""
    settings.expect_autoscaler()
    return f"up to {settings.autoscale_devices} devices" if settings.autoscale_devices else "not used"


def ray(settings: Settings) -> str:
    """The cluster of ``SCAMP_RAY_ADDRESS`` answers, and has our versions of Ray and Python."""
    address, ours = settings.ray_address, package_versions()
    if not address:
        return f"Ray {ours['ray']}, started by `scamp serve`"
    expect_listener(address)
    done = subprocess.run(
        [sys.executable, "-c", VERSIONS, address], capture_output=True, text=True, timeout=VERSIONS_SECONDS, cwd="/",
        env={**os.environ, "RAY_AUTH_MODE": "token"},
    )  # fmt: skip
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise Unavailable(
            f"the Ray cluster at {address} does not answer ({last[0]}): set RAY_AUTH_TOKEN_PATH to its token"
        )
    theirs = json.loads(done.stdout.splitlines()[-1])
    for program, own_version, version in (
        ("Ray", ours["ray"], theirs["ray_version"]),
        ("Python", ours["python"], theirs["python_version"]),
    ):
        if version != own_version:
            raise Unavailable(
                f"the cluster at {address} has {program} {version}, and this is {own_version}: install the same"
            )
    return f"Ray {ours['ray']}, at {address}"


def virtual_devices(settings: Settings) -> str:
    """The memory that virtual devices promise is there."""
    if settings.ray_address or visible(inventory(settings.rehearsal_gpus), os.environ.get("CUDA_VISIBLE_DEVICES")):
        return "not used"
    mib = settings.virtual_nodes * sum(map(settings.mib_of_device, range(settings.virtual_devices)))
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // MIB
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // MIB
    if mib > total:
        raise Doubt(
            f"virtual devices have {mib} MiB in all, and this machine {total}: make them fewer or smaller "
            "(SCAMP_VIRTUAL_DEVICES, SCAMP_DEVICE_MIB)"
        )
    return f"{mib} MiB in all; {free} of {total} MiB are free"


def user_code(settings: Settings) -> str:
    """Users' code can run as the user that is set for it."""
    check_account(settings)
    return f"runs as {settings.user_code_user or 'the user of the service'}"


def _has_users(settings: Settings) -> bool:
    if settings.host in LOOPBACK and not settings.trusted_proxies:
        return False  # nothing depends on it
    try:
        with opened(settings) as database:
            return database is not None and database.has_tables() and Users(database).exist()
    except Unavailable:  # another check says why
        return False


def _processes_of(data_dir: Path) -> list[int]:
    """Processes of a service with this data directory, as far as they show their environment."""
    mark, ours = f"SCAMP_DATA_DIR={data_dir}".encode(), (b"scamp_service\0controller", b"-m\0api", b"local.guardian")
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
        except OSError:
            continue
        if mark in environment.split(b"\0") and any(words in command for words in ours):
            pids.append(int(entry.name))
    return sorted(pids)
