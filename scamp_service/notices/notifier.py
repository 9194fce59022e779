"""The notifier: a thread of the leading controller that reads new events, stores deliveries and sends them.

It may be killed at any time. Notices and the cursor in the events are one transaction of the leader, so nobody is told
too little; a delivery that was sent but not noted is sent again with the same id. Each address that something is due to
has a thread of its own, so that a slow receiver delays no other, and nothing else at all.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from placement.packing.projects import Quota, person
from scamp_service.errors import Deposed, NotFound, Unavailable
from scamp_service.lifecycle import ENDED_WELL, TrialState
from scamp_service.model import Delivery, Event, Study
from scamp_service.notices.decide import (
    Notice,
    deliveries_of,
    delivery_row,
    devices_idle,
    gangs_idle,
    quota_near,
    study_ended,
    trial_ended,
)
from scamp_service.notices.retries import Answer, Retries
from scamp_service.notices.sending import Means, send
from scamp_service.receivers import Receiver
from scamp_service.settings import Settings
from scamp_service.store.parts.deliveries import new_delivery
from scamp_service.store.store import Store
from scamp_service.study.objectives import Objectives

log = logging.getLogger("scamp.notices")

PAUSE_SECONDS = 1.0
LOOK_SECONDS = 60.0
"""Time from one look for lasting conditions to the next."""
KEEP_SECONDS = 30 * 24 * 3600.0
"""How long a delivery that has ended is kept."""
MOST_AT_ONCE = 16
"""Addresses that are sent to at once."""
NOTE_SECONDS = 5.0
"""Pause before an attempt that could not be noted is noted again."""
END_SECONDS = 2.0
_NOTICED = ENDED_WELL | {TrialState.FAILED}


class Notifier:
    """Tells receivers what happens, from ``start`` to ``close``. ``store`` is fenced by the lease of the leader.

    ``send`` sends one delivery, and ``retries`` says when it is tried again.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        send: Callable[[Delivery, Means], Answer] = send,
        retries: Retries | None = None,
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        self._store, self._settings, self._send = store, settings, send
        self._retries, self._pause = retries or Retries(), pause_seconds
        self._ended = threading.Event()
        self._busy: dict[str, threading.Thread] = {}
        self._cursor = -1
        self._means = Means("")
        self._looks_at = 0.0
        self._idle_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="notifier", daemon=True)

    def start(self) -> None:
        """Begin, in a thread."""
        self._thread.start()

    def close(self) -> None:
        """Begin nothing more. What is being sent is not waited for: the next notifier may send it again."""
        self._ended.set()
        self._thread.join(END_SECONDS)

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self.turn()
            except Deposed:
                return
            except Unavailable as error:
                log.warning("notices wait: %s", error)
            except Exception:  # our own bug; the controller lives on, and the next turn tries again
                log.exception("notices wait")
            self._ended.wait(self._pause)

    def turn(self) -> None:
        """Store what is new, and begin to send what is due."""
        if self._cursor < 0:
            self._cursor, secret = self._store.deliveries.begin()
            settings = self._settings
            self._means = Means(secret, settings.reachable_networks, settings.smtp_url, settings.mail_from)
        self._note_events()
        if time.monotonic() >= self._looks_at:
            self._looks_at = time.monotonic() + LOOK_SECONDS
            self._look()
        self._begin_to_send()

    # --- what is due ------------------------------------------------------------------------------------------------

    def _note_events(self) -> None:
        while not self._ended.is_set():
            events, cursor = self._store.deliveries.new_events(self._cursor)
            if cursor == self._cursor:
                return
            studies: dict[int, Study | None] = {}
            notices = [notice for event in events for notice in self._contained(event, studies)]
            if events:
                self._add(notices, cursor)
            self._cursor = cursor

    def _contained(self, event: Event, studies: dict[int, Study | None]) -> Iterable[Notice]:
        try:
            return self._notices_of(event, studies)
        except (Deposed, Unavailable):
            raise
        except Exception:  # our own bug; other events are told all the same
            log.exception("nobody is told of event %d", event.id)
            return []

    def _notices_of(self, event: Event, studies: dict[int, Study | None]) -> Iterable[Notice]:
        study_id = event.study_id
        if study_id is None or (event.kind == "trial" and event.data["state"] not in _NOTICED):
            return []
        if study_id not in studies:
            studies[study_id] = self._study(study_id)
        study = studies[study_id]
        if study is None:
            return []
        receivers = [*self._settings.notify, *receivers_of(study)]
        if not any(kind.startswith(event.kind) for each in receivers for kind in each.on):
            return []
        store, objectives = self._store, Objectives.of_spec(study.spec)
        best = store.trials.leading(study_id, objectives)
        if event.kind == "study":
            notice = study_ended(event, study, store.counts.states(study_id), best)
            return [notice] if notice else []
        trials = store.trials.with_ids([event.trial_id or 0])
        num_completed = store.counts.states(study_id).get(TrialState.COMPLETED, 0)
        return [
            notice
            for trial in trials
            for notice in trial_ended(
                event, study, trial, best is not None and best.id == trial.id and num_completed > 1
            )
        ]

    def _study(self, study_id: int) -> Study | None:
        """The study; None if it is deleted."""
        try:
            return self._store.studies.get(study_id)
        except NotFound:
            return None

    def _add(self, notices: Sequence[Notice], cursor: int = 0) -> None:
        deliveries: list[Any] = []
        if notices:
            now, stored = self._store.now(), self._store.deliveries
            recent, last = stored.recent(now - 3600), stored.last_about()
            deliveries = list(map(new_delivery, deliveries_of(notices, self._receivers_of, recent, last, now)))
        if deliveries or cursor:
            self._store.deliveries.add(deliveries, cursor)

    def _receivers_of(self, notice: Notice) -> Sequence[Receiver]:
        studies = map(self._study, sorted(notice.concerns))
        return [*self._settings.notify, *(each for study in studies if study for each in receivers_of(study))]

    # --- lasting conditions -----------------------------------------------------------------------------------------

    def _look(self) -> None:
        store, now = self._store, self._store.now()
        store.deliveries.remove_old(now - KEEP_SECONDS)
        live = list(store.studies.live())
        kinds = {kind for each in self._settings.notify for kind in each.on}
        kinds |= {kind for study in live for each in study.spec.get("notify", ()) for kind in each["on"]}
        notices: list[Notice] = []
        if "quota.near" in kinds:
            notices += self._near_quotas(live, now)
        if "devices.idle" in kinds:
            notices += self._idle_devices(now)
        if "trial.idle" in kinds:
            notices += self._idle_gangs(live, now)
        self._add(notices)

    def _near_quotas(self, live: Sequence[Study], now: float) -> list[Notice]:
        quotas: dict[str, Quota] = {name: project.to_project() for name, project in self._settings.projects.items()}
        quotas |= {person(name): quota for name, quota in self._store.users.quotas().items()}
        if not quotas:
            return []
        studies: dict[str, frozenset[int]] = {}
        for study in live:
            for holder in (study.project, person(study.owner)):
                studies[holder] = studies.get(holder, frozenset()) | {study.id}
        return quota_near(quotas, self._store.usage.of_holders(now), studies, now)

    def _idle_devices(self, now: float) -> list[Notice]:
        recorded = self._store.cluster.recorded()
        busy = {device for attempt in self._store.attempts.open() for device in attempt.devices}
        devices = recorded[0].devices if recorded else ()
        idle = [each.device.id for each in devices if not each.closed and each.device.id not in busy]
        waiting = self._store.counts.waiting() if idle else []
        if not waiting:
            self._idle_since = None
            return []
        self._idle_since = self._idle_since or time.monotonic()
        return devices_idle(idle, waiting, time.monotonic() - self._idle_since, now)

    def _idle_gangs(self, live: Sequence[Study], now: float) -> list[Notice]:
        attempts = {attempt.trial_id: attempt for attempt in self._store.attempts.open()}
        studies = {study.id: study for study in live}
        trials = self._store.trials.with_ids(sorted(attempts))
        running = [(studies[t.study_id], t, attempts[t.id]) for t in trials if t.study_id in studies]
        return gangs_idle(running, self._settings.idle_rule, now)

    # --- sending ----------------------------------------------------------------------------------------------------

    def _begin_to_send(self) -> None:
        self._busy = {address: thread for address, thread in self._busy.items() if thread.is_alive()}
        for address in self._store.deliveries.due_addresses(self._store.now()):
            if len(self._busy) >= MOST_AT_ONCE:
                return
            if address not in self._busy:
                thread = threading.Thread(target=self._send_to, args=(address,), name="courier", daemon=True)
                self._busy[address] = thread
                thread.start()

    def _send_to(self, address: str) -> None:
        """Send what is due to one address, until one attempt fails."""
        try:
            while due := self._store.deliveries.due_to(address, self._store.now()):
                for delivery in due:
                    if self._ended.is_set() or not self._is_delivered(delivery):
                        return
        except Deposed:
            return
        except Unavailable as error:
            log.warning("deliveries wait: %s", error)

    def _is_delivered(self, delivery: Delivery) -> bool:
        try:
            answer = self._send(delivery, self._means)
        except Exception as error:  # our own bug; it must not keep this delivery, and others behind it, for ever
            log.exception("delivery %d was not sent", delivery.id)
            answer = Answer(False, f"an error of ScaMP: {type(error).__name__}")
        self._note(delivery, answer)
        if not answer.is_delivered:
            log.warning("%s to %s: %s", delivery.kind, shown(delivery), answer.words)
        return answer.is_delivered

    def _note(self, delivery: Delivery, answer: Answer) -> None:
        """Note an attempt. While that fails, as on a full disk, nothing else is sent to this address."""
        while True:
            try:
                now = self._store.now()
                self._store.deliveries.note(self._retries.after(delivery, answer, now, random.random()))
                return
            except Unavailable as error:
                log.warning("a delivery cannot be noted: %s", error)
                if self._ended.wait(NOTE_SECONDS):
                    return


def receivers_of(study: Study) -> list[Receiver]:
    """The receivers that a study names."""
    return [Receiver.model_validate(each) for each in study.spec.get("notify", ())]


def shown(delivery: Delivery) -> str:
    """The address of a delivery, without what may be a secret."""
    return Receiver.model_validate(delivery.receiver).shown


def add_tests(store: Store, settings: Settings, study: Study | None) -> list[Delivery]:
    """Store a test for each receiver of the settings, or of a study; the notifier sends them in a moment."""
    receivers = receivers_of(study) if study else settings.notify
    of_study = f" of study {study.id} “{study.name}”" if study else ""
    text = f"This is a test of the notices{of_study}: they arrive here."
    now = store.now()
    rows = [
        new_delivery({**delivery_row("test", each, {"text": text}, now), "study_id": study.id if study else None})
        for each in receivers
    ]
    store.deliveries.add(rows)
    return store.deliveries.named([row["webhook_id"] for row in rows])
