"""Runs the mirror of this host as a process of its own, which is started again whenever it ends.

Its memory, which holds parts of checkpoints, and its credentials are then none of the controller's.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scamp_service.files import umask_of_ranks
from scamp_service.remote.copies import Copies
from scamp_service.remote.mirror import Mirror
from scamp_service.remote.objects import Objects
from scamp_service.settings import ROOT, Settings
from scamp_service.user_environment import hide_environment
from workloads.training.checkpoints.outbox import FOLDER, LOOK_SECONDS, open_outbox, waiting

log = logging.getLogger("scamp.mirror")

RESTART_SECONDS = 1.0
END_SECONDS = 5.0


@contextmanager
def mirroring(settings: Settings, url: str, last_seconds: float = 0.0) -> Iterator[None]:
    """Copy the checkpoints of this host to and from ``url`` meanwhile; does nothing if that is empty.

    At the end what waits is stored, within ``last_seconds`` unless the storage refuses; the rest by the next mirror.
    """
    if not url:
        yield
        return
    open_outbox(settings.checkpoints)
    stop = threading.Event()
    watcher = threading.Thread(target=_watch, args=(settings, url, stop), name="mirror", daemon=True)
    watcher.start()
    try:
        yield
        ends_at = time.monotonic() + last_seconds
        while time.monotonic() < ends_at and any(not each.why for each in waiting(settings.checkpoints)):
            time.sleep(LOOK_SECONDS)
    finally:
        stop.set()
        watcher.join()


def _watch(settings: Settings, url: str, stop: threading.Event) -> None:
    logs = settings.data_dir / "logs"
    while not stop.is_set():
        try:
            logs.mkdir(mode=0o700, parents=True, exist_ok=True)
            with (logs / "mirror.log").open("ab") as output:
                child = subprocess.Popen(
                    [sys.executable, "-m", __name__, url, str(settings.checkpoints)],
                    cwd=ROOT,
                    stdin=subprocess.PIPE,  # closes when this process ends, which the child notices
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    umask=umask_of_ranks(settings),
                )
        except OSError as error:
            log.warning("the mirror of checkpoints cannot be started now (%s); will try again", error)
            stop.wait(RESTART_SECONDS)
            continue
        (settings.checkpoints / FOLDER / "pid").write_text(str(child.pid))
        while child.poll() is None and not stop.wait(0.2):
            pass
        _end(child)
        stop.wait(RESTART_SECONDS)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    assert child.stdin is not None
    child.stdin.close()


def serve_mirror(url: str, root: Path, stop: threading.Event, *, is_swept: bool = False) -> None:
    """Be the mirror of ``root`` until ``stop``. What others may not read of the environment is hidden."""
    hide_environment()
    Mirror(Copies(Objects(url), root), is_swept).run(stop)


def main() -> None:
    """Be a mirror until the process that started this one ends."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # nothing is lost by it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    serve_mirror(sys.argv[1], Path(sys.argv[2]), stop)


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
