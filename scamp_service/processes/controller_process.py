"""Runs the controller with its store, sizer and executor: as a process of ``scamp serve``, or within ``scamp run``.

It makes no decisions.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType

from placement.packing.policies import policy_named
from scamp_service.cluster.devices.gpus import expect_rehearsal
from scamp_service.cluster.driver.ray_executor import RayExecutor, Term
from scamp_service.cluster.local.connection import expect_listener
from scamp_service.cluster.local.local_ray import LocalRay, check_account
from scamp_service.control.contained import ContainedErrors
from scamp_service.control.controller import Controller
from scamp_service.control.decide.snapshot import Packing
from scamp_service.control.leadership import LeaderElection, Leadership
from scamp_service.errors import Deposed, Unavailable
from scamp_service.files import keep_private
from scamp_service.host import allow_many_files, package_versions
from scamp_service.lifecycle import CONTROLLER_LEASE, LIVE_STUDIES, StudyState
from scamp_service.model import Json, Lease
from scamp_service.notices.notifier import Notifier
from scamp_service.processes.calibrator import Calibrator
from scamp_service.processes.cycles import Cycles
from scamp_service.processes.earlier_studies import earlier_of
from scamp_service.processes.keeper import Keeper
from scamp_service.processes.news import News
from scamp_service.processes.supervise import end_ray, lock_data_dir, ray_address_file, try_to_start
from scamp_service.processes.sweeper import Remover, Sweeper
from scamp_service.remote.copies import copies_of, expect_storage
from scamp_service.remote.process import mirroring
from scamp_service.search.running.threads import ThreadProposer
from scamp_service.settings import Settings
from scamp_service.sizing.calibration import device_kind_of, device_kinds_of, speed_words
from scamp_service.sizing.proxies import ProxyValues
from scamp_service.sizing.sizer import ProcessSizer
from scamp_service.store.database import expect_shared_database
from scamp_service.store.parts.cluster import Cluster
from scamp_service.store.parts.studies import Studies
from scamp_service.store.recorded_cluster import ContainedError, RecordedController
from scamp_service.store.store import Store
from scamp_service.study.spec import StudySpec
from scamp_service.study.values import Params
from scamp_service.temporary import remove_forgotten

CLUSTER_SECONDS = 1.0
"""How often the state of the cluster is written, for the API to read."""
MOST_CYCLES = 4
"""Cycles at once: to end an attempt, to give its devices to the next trial, and to find that nothing else follows."""
START_TRIES = 3
"""Times that a run tries to start its Ray."""
STORE_SECONDS = 600.0
"""How long a run waits at its end for its last checkpoints to be stored in object storage."""
TELL_SECONDS = 15.0
"""How long a run waits at its end for those who are told of it."""
END_SECONDS = 3.0
"""How long a controller process may take to end, beside the time in which trials may write a checkpoint. If its Ray has
already died, a clean end would take a minute."""


def serve_controller(settings: Settings) -> None:
    """Run the controller until SIGTERM or SIGINT, then end every rank of a Ray that ends with it; others continue."""
    stop = threading.Event()

    def end() -> None:
        stop.set()
        last_resort = threading.Timer(END_SECONDS + settings.stop_seconds, os._exit, [1])
        last_resort.daemon = True
        last_resort.start()

    _on_signal(sys.exit)  # until there is something to clean up
    with ExitStack() as stack:
        store = Store(settings.url)
        stack.callback(store.close)
        news = News()
        outlives = bool(settings.ray_address) and not settings.ray_ends
        tick = stack.enter_context(controlling(settings, store, news=news, outlives=outlives))
        _on_signal(end)
        while not stop.is_set():
            tick()
            news.wait()


def run_study(
    settings: Settings,
    spec: StudySpec,
    code: bytes | None,
    watch: Callable[[Store, int], None],
    *,
    warnings: Sequence[str] = (),
    provenance: Json | None = None,
    redraw_seconds: float = 0.25,
) -> tuple[Store, int]:
    """Run one study to its end in this process.

    It uses the Ray cluster at ``settings.ray_address``, or else starts a local one. ``watch(store, study_id)`` is
    called a few times a second. ``warnings`` and ``provenance`` are stored with the study. Ctrl-C stops the study, and
    a second one this process. Returns the open store and the study's id. Raises ``Conflict`` when a service or another
    run uses the data directory, ``Refused`` when users' code cannot run as the user that is set for it, and
    ``Unavailable`` when Ray cannot be reached or the local one dies.
    """
    allow_many_files()
    check_account(settings)
    expect_shared_database(settings.url)
    settings.expect_autoscaler()
    expect_rehearsal(settings.rehearsal_gpus)
    settings.expect_receivers([*settings.notify, *spec.notify])
    expect_storage(settings)
    expect_listener(settings.ray_address)
    with ExitStack() as stack:
        stack.enter_context(lock_data_dir(settings.data_dir))
        keep_private(settings)
        remove_forgotten()
        store = Store(settings.url)
        sha = store.blobs.put(code) if code else None
        study = store.studies.create(spec.to_json(), code=sha, warnings=warnings, now=time.time())
        store.studies.note_provenance(study.id, {**(provenance or {}), "packages": package_versions()})
        ray, starting = (None, None) if settings.ray_address else _start_ray(settings, stack)
        news = News()
        tick = stack.enter_context(
            controlling(settings, store, news=news, starting=starting, last_seconds=STORE_SECONDS)
        )
        interrupts = _Interrupts(store.studies, study.id)
        redrawn = 0.0
        while store.studies.get(study.id).state in LIVE_STUDIES or store.attempts.open():
            tick()
            if ray is not None and ray.address and not ray.alive():
                _leave(stack)
                raise Unavailable(
                    f"the local Ray has died; see {settings.data_dir / 'logs' / 'ray.log'}. Nothing is lost: "
                    f"`scamp serve` continues study {study.id} from its last checkpoints"
                )
            if interrupts.is_second():
                _leave(stack)
                raise KeyboardInterrupt
            if time.monotonic() - redrawn > redraw_seconds:
                redrawn = time.monotonic()
                watch(store, study.id)
            news.wait()
        watch(store, study.id)
        if spec.notify or settings.notify:
            _tell(store, tick)
    return store, study.id


def _tell(store: Store, tick: Callable[[], None]) -> None:
    """Wait, but not long, until everybody was told; what is left is sent once a service runs."""
    deadline = time.monotonic() + TELL_SECONDS
    while store.deliveries.is_behind() and time.monotonic() < deadline:
        tick()
        time.sleep(0.1)


def _start_ray(settings: Settings, stack: ExitStack) -> tuple[LocalRay, threading.Thread]:
    """Start a local Ray, in a thread; ``stack`` stops it."""
    ray_address_file(settings.data_dir).unlink(missing_ok=True)
    ray = LocalRay(settings, settings.data_dir)
    starting = threading.Thread(target=try_to_start, args=(ray, START_TRIES), daemon=True)
    stack.callback(end_ray, ray, starting)
    starting.start()
    return ray, starting


class _Interrupts:
    """Stops the study at the first SIGINT or SIGTERM from its creation on."""

    def __init__(self, studies: Studies, study_id: int) -> None:
        self._studies, self._study_id = studies, study_id
        self._arrived = threading.Event()
        _on_signal(self._arrived.set)

    def is_second(self) -> bool:
        """Stop the study if a signal has arrived; true if it was already being stopped, as when Ray is away."""
        if not self._arrived.is_set():
            return False
        self._arrived.clear()
        if self._studies.get(self._study_id).state is StudyState.STOPPING:
            return True
        self._studies.move(
            self._study_id, [StudyState.RUNNING], StudyState.STOPPING, reason="interrupted", now=time.time()
        )
        return False


_left: list[ExitStack] = []


def _leave(stack: ExitStack) -> None:
    """Let this process end without what its contexts would do: to disconnect from a dead Ray takes a minute.

    For the others this looks like SIGKILL: the kernel ends its children, and the next controller continues the studies.
    """
    _left.append(stack.pop_all())

    def end() -> None:
        sys.stdout.flush()
        os._exit(1)

    atexit.register(end)  # the last to be registered runs first: Ray has one that waits


@contextmanager
def controlling(
    settings: Settings,
    store: Store,
    *,
    news: News,
    outlives: bool = False,
    starting: threading.Thread | None = None,
    last_seconds: float = 0.0,
) -> Iterator[Callable[[], None]]:
    """Wait for Ray, and yield the function that runs one tick.

    Checkpoints that wait for object storage at the end have ``last_seconds``.

    On exit every rank is ended, unless the cluster ``outlives`` this process and another controller is to find them.
    ``news.tell`` is called whenever the next tick should not wait. Raises ``Unavailable`` when the thread that is
    ``starting`` Ray has ended without one; the supervisor, which tries for ever, ends a controller that waits too long.
    """
    with ExitStack() as stack:
        # Created first, so that it warms up while Ray starts.
        sizer = ProcessSizer(
            store.blobs,
            settings.data_dir / "profiles",
            kind_of=partial(device_kind_of, settings.data_dir),
            kinds_of=partial(device_kinds_of, settings.data_dir),
            has_news=news.tell,
        )
        stack.callback(sizer.close)
        # On a cluster of others this machine may not be the one that trains.
        is_own = settings.self_calibration and not settings.ray_address
        calibrator = Calibrator(settings.data_dir) if is_own else None
        if calibrator is not None:
            stack.callback(calibrator.end)
        if not settings.ray_address:
            settings = settings.model_copy(update={"ray_address": _wait_for_ray(settings.data_dir, starting)})
        copies = copies_of(settings, store.identity)
        stack.enter_context(mirroring(settings, copies.objects.url if copies else "", last_seconds))
        remover = Remover(copies)
        leadership = Leadership(store.leases, settings.lease_seconds, wall_clock=store.now)
        stack.callback(leadership.resign)
        keeper = stack.enter_context(Keeper(leadership, settings.lease_seconds))
        election = LeaderElection(
            leadership,
            lambda lease: _Leader(settings, store, _Workers(sizer, remover, calibrator), leadership, lease, news),
        )
        stack.callback(election.close if outlives else election.end)  # first of all, while the keeper renews the lease
        cycles = Cycles(election)

        def tick() -> None:
            keeper.turns()  # also while cycles pause: to be restarted would not help
            cycles.run()

        yield tick


@dataclass(frozen=True, slots=True)
class _Workers:
    """The threads and processes that continue from one term to the next."""

    sizer: ProcessSizer
    remover: Remover
    calibrator: Calibrator | None


class _Leader:
    """The controller and the executor of one term."""

    def __init__(
        self, settings: Settings, store: Store, workers: _Workers, leadership: Leadership, lease: Lease, news: News
    ) -> None:
        self._store = store.fenced(CONTROLLER_LEASE, lease)
        self._process = RecordedController(socket.gethostname(), os.getpid(), since=time.time())
        self._errors = ContainedErrors(_known_errors(store.cluster))
        self._executor = RayExecutor(
            settings,
            settings.url,
            settings.checkpoints,
            Term(store.identity(), lease.term, leadership.is_certain),
            has_news=news.tell,
        )
        self._proxies = ProxyValues(store.blobs, settings.data_dir / "profiles")
        self._proposer = ThreadProposer(
            code_of=partial(_code_of, store),
            earlier_of=partial(earlier_of, store),
            score_of=partial(_scores_of, store, self._proxies),
            has_news=news.tell,
        )
        self._controller = Controller(
            self._store,
            self._executor,
            workers.sizer,
            self._proposer,
            packing=Packing(
                policy_named(settings.policy),
                settings.max_gangs_per_device,
                {name: project.to_project() for name, project in settings.projects.items()},
                settings.autoscale_devices if self._executor.can_scale else 0,
                settings.idle_rule if settings.idle_pauses else None,
            ),
            errors=self._errors,
        )
        self._sweeper = Sweeper(self._store, settings, workers.remover)
        self._notifier = Notifier(self._store, settings)
        self._notifier.start()
        self._calibrator, self._data_dir, self._news = workers.calibrator, settings.data_dir, news
        self._recorded = 0.0

    def tick(self) -> None:
        try:
            self._run_cycles()
            self._executor.want_devices(self._controller.num_devices_wanted)
            self._sweeper.tick()
            self._measure()
        except Deposed:
            raise
        except Exception as error:
            self._errors.add("finish a cycle", error, 0, time.time())
            raise
        finally:
            self._record()

    def _run_cycles(self) -> None:
        """Run cycles until nothing follows from the last one, so that devices do not wait for the next tick."""
        for _ in range(MOST_CYCLES):
            self._controller.tick()
            if not self._controller.has_changed:
                return
        self._news.tell()

    def _measure(self) -> None:
        """Let the CPU be measured while nothing runs on it, if virtual devices are parts of it."""
        cluster = self._executor.cluster()
        if self._calibrator is not None and cluster.devices and not cluster.has_gpus:
            self._calibrator.tick(self._controller.is_idle)

    def _end_measurement(self) -> None:
        if self._calibrator is not None:
            self._calibrator.end()

    def _speed(self) -> str:
        """How well the speed of the devices is known, in words."""
        cluster = self._executor.cluster()
        if not cluster.devices:
            return ""
        if words := speed_words(device_kind_of(self._data_dir, cluster)):
            return words
        if self._calibrator is None or cluster.has_gpus:
            return "not known; “scamp calibrate” on such a machine measures it"
        return f"not known; {self._calibrator.words}"

    def _record(self) -> None:
        """Write the state of the cluster and of this controller, for the API to read."""
        if time.monotonic() - self._recorded > CLUSTER_SECONDS:
            self._recorded = time.monotonic()
            controller = replace(self._process, errors=self._errors.recent)
            state = replace(self._executor.describe(), speed=self._speed(), controller=controller)
            self._store.cluster.record(state, now=time.time())

    def close(self) -> None:
        self._notifier.close()
        self._end_measurement()
        self._proposer.close()
        self._proxies.close()
        self._executor.close()

    def end(self) -> None:
        self._notifier.close()
        self._end_measurement()
        self._proposer.close()
        self._proxies.close()
        self._executor.stop_all()
        with contextlib.suppress(Unavailable, Deposed):
            self._controller.record_stops()
        self._executor.shutdown()


def _known_errors(cluster: Cluster) -> Sequence[ContainedError]:
    """The errors that the controller before this one has recorded."""
    recorded = cluster.recorded()
    return recorded[0].controller.errors if recorded and recorded[0].controller else ()


def _wait_for_ray(data_dir: Path, starting: threading.Thread | None) -> str:
    """Wait for the local cluster of this data directory to start, and return its address."""
    is_coming = True
    while is_coming:
        is_coming = starting is None or starting.is_alive()
        with contextlib.suppress(FileNotFoundError):
            if address := ray_address_file(data_dir).read_text().strip():
                return address
        time.sleep(0.1)
    raise Unavailable(f"the local Ray did not start; see {data_dir / 'logs' / 'ray.log'}")


def ray_address_of_environment() -> str:
    """The value of RAY_ADDRESS, which ``ray job submit`` or the user sets; empty without one."""
    return os.environ.get("RAY_ADDRESS", "")


def _on_signal(act: Callable[[], None]) -> None:
    def handle(number: int, frame: FrameType | None) -> None:
        act()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)


def _scores_of(
    store: Store, proxies: ProxyValues, study_id: int, spec: StudySpec, candidates: Sequence[Params]
) -> Sequence[float | None]:
    """The proxy of a study's filter for each candidate."""
    assert spec.search.filter is not None
    code = store.studies.get(study_id).code
    return proxies.values(spec.search.filter.proxy, spec.workload, code, candidates, spec.search.seed)


def _code_of(store: Store, study_id: int) -> bytes | None:
    """The zip of the user's files of a study; None for one without."""
    sha256 = store.studies.get(study_id).code
    return None if sha256 is None else store.blobs.get(sha256)
