"""Server-sent events: one poller reads the database ten times a second for all clients, and encodes each event once.

A client is a position in the sequence of events. It reads the events kept in memory, or the database page by page when
it is further behind. Nothing is buffered per client, and a client that stops reading is dropped.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial

from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.concurrency import run_in_threadpool
from starlette.types import Message, Send

from scamp_service.errors import Unavailable
from scamp_service.model import Event, Json
from scamp_service.store.parts.events import Events
from scamp_service.store.parts.studies import Studies

log = logging.getLogger("scamp.api")

PERIOD_SECONDS = 0.1
KEEPALIVE_SECONDS = 15.0
STALLED_SECONDS = 30.0
PAGE = 1000
REPLAY_PAGE = 200
MOST_CLIENTS = 500
CHUNK_BYTES = 2**18
KEPT = 20_000
RETRY_MS = 1000


@dataclass(frozen=True, slots=True)
class Encoded:
    """An event as the bytes of the stream."""

    id: int
    study_id: int | None
    data: bytes
    project: str = ""
    public: bytes = b""
    """Its part for those who may not read its project."""


class EventHub:
    """Feeds all event streams of a process. Its poller runs only while there are clients."""

    def __init__(self, events: Events, studies: Studies) -> None:
        self._events, self._studies = events, studies
        self._projects: dict[int, str] = {}  # of studies
        self._kept: list[Encoded] = []
        self._kept_from = 0  # _kept has every event after this one, up to _head
        self._head = 0
        self._news = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None
        self._closed = False
        self._threads = ThreadPoolExecutor(2, "events")  # one for the poller, one for replays
        self._replays = asyncio.Semaphore(1)
        self.num_clients = 0

    def check_room(self) -> None:
        """Raise ``Unavailable`` when ``MOST_CLIENTS`` clients follow events already."""
        if self.num_clients >= MOST_CLIENTS:
            raise Unavailable(f"{MOST_CLIENTS} clients follow events already; close some, or try again later")

    async def follow(
        self, after: int | None, study_id: int | None, projects: Collection[str] | None = None
    ) -> AsyncGenerator[bytes]:
        """Yield chunks of the stream with the events after ``after`` (None: from now on), until the hub closes.

        Only those of a study, and about studies in these ``projects``, where they are not None.
        """
        self.num_clients += 1
        try:
            if self._poller is None:
                await self._start()
            position = self._head if after is None else await self._existing(after)
            # An id without data moves the browser's Last-Event-ID, so that a reconnect loses nothing.
            yield format_sse_event(id=str(position), retry=RETRY_MS, comment="ScaMP")
            sent = time.monotonic()
            while self._poller is not None:
                news = self._news
                chunk, position = await self._read(position, study_id, projects)
                if chunk:
                    yield chunk
                elif time.monotonic() - sent >= KEEPALIVE_SECONDS:
                    yield format_sse_event(id=str(position), comment="keepalive")
                else:
                    if position >= self._head:
                        await _wait(news, KEEPALIVE_SECONDS - (time.monotonic() - sent))
                    continue
                sent = time.monotonic()
        finally:
            self.num_clients -= 1
            if not self.num_clients:
                self._stop()

    def close(self) -> None:
        """End every stream. Clients reconnect to the next process that serves."""
        self._closed = True
        self._stop()
        self._wake_streams()

    async def _start(self) -> None:
        head = await run_in_threadpool(self._events.last_id)
        if self._poller is None and not self._closed:  # another client may have come first
            self._kept, self._kept_from, self._head = [], head, head
            self._poller = asyncio.create_task(self._poll())
            self._poller.add_done_callback(self._poller_ended)

    def _poller_ended(self, poller: asyncio.Task[None]) -> None:
        """Log a crash of the poller and end the streams, so that the clients reconnect."""
        if not poller.cancelled() and self._poller is poller:
            log.error("the event poller failed", exc_info=poller.exception())
            self._poller = None
            self._wake_streams()

    async def _existing(self, after: int) -> int:
        """Position to start from. A client ahead of the last event comes from another database, so at the end."""
        if after <= self._head:
            return after
        return min(after, await run_in_threadpool(self._events.last_id))

    def _stop(self) -> None:
        if self._poller is not None:
            self._poller.cancel()
            self._poller = None

    async def _poll(self) -> None:
        while True:
            began = time.monotonic()
            try:
                events = await self._in_thread(partial(self._encoded, self._head, PAGE, None))
            except Unavailable as error:
                log.warning("events are delayed: %s", error)
                events = []
            if events:
                self._kept += events
                self._head = events[-1].id
                if len(self._kept) > KEPT:
                    surplus = len(self._kept) - KEPT
                    self._kept_from = self._kept[surplus - 1].id
                    del self._kept[:surplus]
                self._wake_streams()
            await asyncio.sleep(max(0.0, PERIOD_SECONDS - (time.monotonic() - began)))

    def _wake_streams(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _encoded(self, after: int, limit: int, study_id: int | None) -> list[Encoded]:
        """The next events, encoded; in a thread, because a page of them takes milliseconds."""
        return [
            encode(event, self._project_of(event.study_id))
            for event in self._events.page(after=after, limit=limit, study_id=study_id)
        ]

    def _project_of(self, study_id: int | None) -> str:
        if study_id is None:
            return ""
        if study_id not in self._projects:
            if len(self._projects) >= KEPT:
                self._projects.clear()
            self._projects[study_id] = self._studies.project(study_id)
        return self._projects[study_id]

    async def _in_thread(self, work: Callable[[], list[Encoded]]) -> list[Encoded]:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _read(self, position: int, study_id: int | None, projects: Collection[str] | None) -> tuple[bytes, int]:
        """(next chunk after ``position``, position after that chunk); the chunk is empty when there are no events."""
        if position >= self._kept_from:
            start = bisect_right(self._kept, position, key=lambda event: event.id)
            page = _within_a_chunk(self._kept[start : start + PAGE])
            chunk = b"".join(_shown(event, projects) for event in page if study_id in (None, event.study_id))
            return chunk, page[-1].id if page else position
        head = self._kept_from
        async with self._replays:  # one page at a time, in turn, so that many replays cannot occupy the processor
            events = await self._in_thread(partial(self._encoded, position, REPLAY_PAGE, study_id))
        behind = [event for event in events if event.id <= head]
        page = _within_a_chunk(behind)
        is_last = len(behind) < REPLAY_PAGE and len(page) == len(behind)
        chunk = b"".join(_shown(event, projects) for event in page)
        return chunk, head if is_last else page[-1].id


class EventStream(EventSourceResponse):
    """A stream that drops a client that has not read a chunk for ``STALLED_SECONDS``."""

    def __init__(self, chunks: AsyncGenerator[bytes]) -> None:
        super().__init__(chunks, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._chunks = chunks

    async def stream_response(self, send: Send) -> None:
        """Send all chunks, then close their source."""

        async def in_time(message: Message) -> None:
            async with asyncio.timeout(STALLED_SECONDS):
                await send(message)

        try:
            await super().stream_response(in_time)
        except TimeoutError:
            log.warning("a client of the event stream read nothing for %g s and was dropped", STALLED_SECONDS)
        finally:
            await self._chunks.aclose()


def encode(event: Event, project: str = "") -> Encoded:
    """The event in the format of server-sent events, with its row id as id and its kind as event name."""
    row = asdict(event)
    data, public = _framed(event, row), b""
    if event.study_id is None:  # of the cluster; errors of the controller may name studies
        public = _framed(event, {**row, "data": {**row["data"], "controller": {}}})
    return Encoded(event.id, event.study_id, data, project, public)


def _framed(event: Event, data: Json) -> bytes:
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return format_sse_event(data_str=text, event=event.kind, id=str(event.id))


def _shown(event: Encoded, projects: Collection[str] | None) -> bytes:
    return event.data if projects is None or event.project in projects else event.public


def _within_a_chunk(events: list[Encoded]) -> list[Encoded]:
    """First events that fit into ``CHUNK_BYTES``, at least one: a chunk stays in memory until the client reads it."""
    left = CHUNK_BYTES
    for count, event in enumerate(events):
        left -= len(event.data)
        if left < 0:
            return events[: max(1, count)]
    return events


async def _wait(news: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await news.wait()
    except TimeoutError:
        pass
