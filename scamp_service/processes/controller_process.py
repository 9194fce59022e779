"""Runs the controller with its store, sizer and executor: as a process of ``scamp serve``, or within ``scamp run``.

It makes no decisions.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

from placement.planning.planner import choose
from scamp_service.cluster.local_ray import LocalRay
from scamp_service.cluster.ray_executor import RayExecutor
from scamp_service.control.controller import Controller
from scamp_service.errors import Unavailable
from scamp_service.lifecycle import LIVE_STUDIES, StudyState
from scamp_service.processes.supervise import lock_data_dir, ray_address_file
from scamp_service.settings import Settings
from scamp_service.sizing.calibration import kind_of
from scamp_service.sizing.sizer import Planner, ProcessSizer
from scamp_service.store.store import Store
from scamp_service.study.spec import StudySpec

log = logging.getLogger("scamp.local")

TICK_SECONDS = 0.1
CLUSTER_SECONDS = 1.0
"""How often the state of the cluster is written, for the API to read."""
END_SECONDS = 8.0
"""How long a controller process may take to end. If its Ray has already died, a clean end would take a minute."""


def serve_controller(settings: Settings) -> None:
    """Run the controller until SIGTERM or SIGINT, then end every rank."""
    stop = threading.Event()

    def end() -> None:
        stop.set()
        last_resort = threading.Timer(END_SECONDS, os._exit, [1])
        last_resort.daemon = True
        last_resort.start()

    _on_signal(sys.exit)  # until there is something to clean up
    with ExitStack() as stack:
        store = Store(settings.url)
        stack.callback(store.close)
        tick = stack.enter_context(controlling(settings, store))
        _on_signal(end)
        while not stop.wait(TICK_SECONDS):
            tick()


def run_study(
    settings: Settings,
    spec: StudySpec,
    code: bytes | None,
    watch: Callable[[Store, int], None],
    *,
    planner: Planner = choose,
    redraw_seconds: float = 0.25,
) -> tuple[Store, int]:
    """Run one study to its end in this process.

    It uses the Ray cluster at ``settings.ray_address``, or else starts a local one. ``watch(store, study_id)`` is
    called a few times a second. Ctrl-C stops the study. Returns the open store and the study's id. Raises ``Conflict``
    when a service or another run uses the data directory.
    """
    with ExitStack() as stack:
        stack.enter_context(lock_data_dir(settings.data_dir))
        store = Store(settings.url)
        sha = store.put_blob(code) if code else None
        study = store.create_study(spec.to_json(), code=sha, now=time.time())
        if not settings.ray_address:
            ray_address_file(settings.data_dir).unlink(missing_ok=True)
            ray = LocalRay(settings, settings.data_dir)
            stack.callback(ray.stop)
            threading.Thread(target=ray.start, daemon=True).start()
        tick = stack.enter_context(controlling(settings, store, planner))
        interrupted = threading.Event()
        _on_signal(interrupted.set)
        redrawn = 0.0
        while store.study(study.id).state in LIVE_STUDIES or store.open_attempts():
            tick()
            if interrupted.is_set():
                interrupted.clear()
                store.move_study(
                    study.id, [StudyState.RUNNING], StudyState.STOPPING, reason="interrupted", now=time.time()
                )
            if time.monotonic() - redrawn > redraw_seconds:
                redrawn = time.monotonic()
                watch(store, study.id)
            time.sleep(TICK_SECONDS)
        watch(store, study.id)
    return store, study.id


@contextmanager
def controlling(settings: Settings, store: Store, planner: Planner = choose) -> Iterator[Callable[[], None]]:
    """Wait for Ray, connect to it, and yield the function that runs one tick. On exit every rank is ended.

    Raises ``Unavailable`` when Ray does not start in time.
    """
    with ExitStack() as stack:
        # Created first, so that it warms up while Ray starts.
        sizer = ProcessSizer(
            store, settings.data_dir / "profiles", planner=planner, kind_of=partial(kind_of, settings.data_dir)
        )
        stack.callback(sizer.close)
        if not settings.ray_address:
            settings = settings.model_copy(update={"ray_address": _wait_for_ray(settings.data_dir)})
        executor = RayExecutor(settings, settings.url, settings.data_dir / "checkpoints")
        controller = Controller(
            store,
            executor,
            sizer,
            max_gangs_per_device=settings.max_gangs_per_device,
            lease_seconds=settings.lease_seconds,
        )
        stack.callback(controller.resign)
        stack.callback(executor.shutdown)
        recorded = 0.0

        def tick() -> None:
            nonlocal recorded
            try:
                controller.tick()
                if time.monotonic() - recorded > CLUSTER_SECONDS:
                    recorded = time.monotonic()
                    store.record_cluster(executor.describe(), now=time.time())
            except Unavailable as error:
                log.warning("%s; will try again", error)

        yield tick


def _wait_for_ray(data_dir: Path, seconds: float = 120.0) -> str:
    """Wait for the local cluster of this data directory to start, and return its address."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if address := ray_address_file(data_dir).read_text().strip():
                return address
        except FileNotFoundError:
            time.sleep(0.1)
    raise Unavailable(f"the local Ray did not start within {seconds:.0f} s; see {data_dir / 'logs' / 'ray.log'}")


def ray_address_of_environment() -> str:
    """The value of RAY_ADDRESS, which ``ray job submit`` or the user sets; empty without one."""
    return os.environ.get("RAY_ADDRESS", "")


def _on_signal(act: Callable[[], None]) -> None:
    def handle(number: int, frame: FrameType | None) -> None:
        act()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
