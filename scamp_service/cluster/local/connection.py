"""Connects this process to a Ray cluster: the private one of ``local_ray`` or any other that requires a token."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scamp_service.cluster.local.local_ray import loopback
from scamp_service.errors import Refused, Unavailable
from scamp_service.host import PACKAGES
from scamp_service.settings import ROOT

log = logging.getLogger("scamp.ray")

CONNECT_SECONDS = 10.0


def namespace_of(identity: str) -> str:
    """Ray namespace of the actors that serve the study database with this name."""
    return f"scamp-{identity}"


def connect(address: str, data_dir: Path, namespace: str) -> None:
    """Attach this process to a cluster as a driver. Raises ``Unavailable`` or ``Refused``.

    The cluster of ``LocalRay(…, data_dir)`` is recognised by its address. For any other cluster, Ray's own variables
    must name the token. Its workers receive our packages as ``working_dir``, except in a Ray job, where they already
    have them.
    """
    ours = is_ours(address, data_dir)
    expect_tokens()
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if ours:
        os.environ.update(loopback(data_dir / "ray-token"))
        os.environ.pop("RAY_AUTH_TOKEN", None)  # it would win over the path
    import ray  # reads the environment on import, so not earlier
    from ray.exceptions import RaySystemError

    _refresh(ray, ours)
    _to_our_log()
    in_job = "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ
    code = {} if ours or in_job else _our_packages()
    try:
        with _own_handler(signal.SIGTERM):
            ray.init(
                address=address,
                namespace=namespace,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env=code or None,
            )
    except ray.exceptions.AuthenticationError as error:
        raise Refused(f"the Ray cluster at {address} refused the token: set RAY_AUTH_TOKEN_PATH ({error})") from error
    except (ConnectionError, RuntimeError, RaySystemError) as error:
        raise Unavailable(f"the Ray cluster at {address} cannot be reached: {error}") from error


def expect_tokens() -> None:
    """Raise ``Refused`` if Ray's environment variables turn tokens off."""
    mode = os.environ.get("RAY_AUTH_MODE", "token")
    if mode.lower() != "token":
        raise Refused(f"RAY_AUTH_MODE is {mode!r}: ScaMP uses Ray with tokens only; unset it, or set it to token")


def expect_listener(address: str) -> None:
    """Raise ``Unavailable`` if nobody listens at ``address`` (host:port); other forms are left to Ray."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise Unavailable(
            f"the Ray cluster at {address} cannot be reached ({error}): check --ray-address or RAY_ADDRESS, or unset "
            "both to start a local one"
        ) from error


def _our_packages() -> dict[str, Any]:
    """The runtime environment that copies our packages alone from the checkout, or from where they are installed."""
    others = [f"/{path.name}" for path in ROOT.iterdir() if path.name not in PACKAGES]
    return {"working_dir": str(ROOT), "excludes": ["__pycache__", *sorted(others)]}


@contextmanager
def _own_handler(number: signal.Signals) -> Iterator[None]:
    """Set the handler of a signal again, which Ray replaces: its own aborts the process three seconds later."""
    handler = signal.getsignal(number)
    yield
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(number, handler)


def _to_our_log() -> None:
    """Send Ray's messages to our log: it prints one for each process that ends, and ranks are ended on purpose."""
    from ray._private import worker

    worker.print_to_stdstream = lambda data, ignore_prefix: log.info("Ray: %s", "\n".join(data["lines"]))


def is_ours(address: str, data_dir: Path) -> bool:
    """Whether this is the address of the Ray that ``LocalRay(…, data_dir)`` has started."""
    try:
        return (data_dir / "ray-address").read_text() == address
    except FileNotFoundError:
        return False


def _refresh(ray: Any, ours: bool) -> None:
    """Make Ray read the environment again, in case it was imported earlier."""
    import ray._private.ray_constants as constants
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    constants.ENABLE_RAY_CLUSTER = not ours
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
