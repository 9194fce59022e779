"""The event stream: complete, in order, shared by all clients, and bounded for the slow ones. Over real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from api import sse
from api.sse import EventHub
from scamp_service.errors import Unavailable
from scamp_service.model import Event
from scamp_service.store.recorded_cluster import RecordedCluster
from scamp_service.store.store import Store
from tests.services.serving import InProcess, fill, free_port, full_spec, report, served, settings_in
from tests.waiting import PATIENCE_SECONDS, until

HTTP = httpx.Client(verify=False, trust_env=False)  # no TLS here, and its set-up takes long


@pytest.fixture(scope="module", autouse=True)
def _close() -> Iterator[None]:
    yield
    HTTP.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[str, Store]]:
    with served(settings_in(tmp_path, port=free_port())) as served_api:
        yield served_api


def follow(
    url: str, count: int, query: str = "", when_open: Callable[[], object] = lambda: None, **headers: str
) -> list[dict[str, Any]]:
    """The first ``count`` events of a stream, each with the stream's own id and kind checked against its data.

    ``when_open`` is called once the stream has said where it begins.
    """
    events: list[dict[str, Any]] = []
    is_open = False
    fields: dict[str, str] = {}
    with HTTP.stream("GET", f"{url}/v1/events{query}", headers=headers, timeout=PATIENCE_SECONDS) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            name, _, value = line.partition(": ")
            fields[name] = value
            if not line:
                if not is_open:
                    is_open = True
                    when_open()
                if "data" in fields:
                    event = json.loads(fields["data"])
                    assert (str(event["id"]), event["kind"]) == (fields["id"], fields["event"])
                    events.append(event)
                    if len(events) == count:
                        return events
                fields = {}
    raise AssertionError(f"the stream ended after {len(events)} events")


def in_threads(work: Callable[[], Any], count: int) -> list[Any]:
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(work())) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    return results


def create(store: Store) -> int:
    return store.studies.create(full_spec(), now=time.time()).id


def test_what_came_after_an_event_is_replayed_and_the_rest_follows_live(service: tuple[str, Store]) -> None:
    url, store = service
    for _ in range(5):
        create(store)
    assert [event["id"] for event in follow(url, 4, "?after=2", lambda: create(store))] == [3, 4, 5, 6]


def test_last_event_id_is_stronger_than_the_address_for_it_is_of_a_reconnect(service: tuple[str, Store]) -> None:
    url, store = service
    for _ in range(4):
        create(store)
    assert [event["id"] for event in follow(url, 1, "?after=0", lambda: None, **{"Last-Event-ID": "3"})] == [4]


def test_without_a_position_only_new_events_are_sent(service: tuple[str, Store]) -> None:
    url, store = service
    create(store)
    assert follow(url, 1, when_open=lambda: create(store))[0]["id"] == 2


def test_a_stream_may_be_of_one_study(service: tuple[str, Store]) -> None:
    url, store = service
    create(store)
    study = fill(store)
    create(store)
    events = follow(url, 5, f"?after=0&study_id={study.id}")
    assert {event["study_id"] for event in events} == {study.id}

    def news() -> None:
        create(store)
        report(store, store.trials.page(study.id)[1].id, [10])

    [event] = follow(url, 1, f"?study_id={study.id}", news)
    assert (event["kind"], event["data"]["step"]) == ("metrics", 10)


def test_a_wrong_position_is_refused(api: InProcess) -> None:
    for value in ("x", "-1", "1.5", "9" * 30, "9" * 5000, "\u0664".encode(), "0" * 5000):
        answer = api.get("/v1/events", headers={"Last-Event-ID": value})
        assert answer.status_code == 422 and "Last-Event-ID" in answer.json()["detail"]
    assert api.get("/v1/events?after=-1").status_code == 422


def test_a_client_of_a_lost_database_goes_on_with_this_one(service: tuple[str, Store]) -> None:
    url, store = service
    create(store)
    events = follow(url, 1, when_open=lambda: create(store), **{"Last-Event-ID": "5000"})
    assert [event["id"] for event in events] == [2]


def test_many_clients_are_served_by_one_poller_and_each_event_is_encoded_once(
    service: tuple[str, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, store = service
    polls: list[float] = []
    encoded: list[int] = []
    events, encode = store.events.page, sse.encode

    def counted_events(**options: Any) -> Any:
        polls.append(time.monotonic())
        return events(**options)

    def counted_encode(event: Event, project: str) -> sse.Encoded:
        encoded.append(event.id)
        return encode(event, project)

    monkeypatch.setattr(store.events, "page", counted_events)
    monkeypatch.setattr(sse, "encode", counted_encode)
    began = time.monotonic()
    all_listen = threading.Barrier(21)

    def write() -> None:
        all_listen.wait()
        for _ in range(10):
            create(store)

    writer = threading.Thread(target=write)
    writer.start()
    ids_of_clients = in_threads(lambda: [event["id"] for event in follow(url, 10, when_open=all_listen.wait)], 20)
    writer.join()
    assert ids_of_clients == [list(range(1, 11))] * 20
    assert encoded == list(range(1, 11))
    assert len(polls) <= (time.monotonic() - began) / sse.PERIOD_SECONDS + 2


def test_nobody_polls_when_nobody_listens(service: tuple[str, Store], monkeypatch: pytest.MonkeyPatch) -> None:
    url, store = service
    create(store)
    follow(url, 1, "?after=0")
    num_clients = num_clients_of(url)
    until(lambda: num_clients() == 0, "no client")
    polls: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(store.events, "page", lambda **_: polls.append(1))
        time.sleep(4 * sse.PERIOD_SECONDS)
    assert polls == []
    assert [event["id"] for event in follow(url, 1, "?after=0")] == [1]  # and it begins again


def test_a_client_that_takes_nothing_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "STALLED_SECONDS", 0.5)
    settings = settings_in(tmp_path, port=free_port())
    with served(settings) as (url, store):
        for number in range(60):  # 12 MB of events: more than the system buffers
            store.cluster.record(RecordedCluster("ready", f"{number}" + "x" * 200_000), now=number)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", settings.port))
            client.sendall(b"GET /v1/events?after=0 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            received = len(client.recv(1))  # from here on it is a client
            num_clients = num_clients_of(url)
            until(lambda: num_clients() == 0, "no client")
            client.settimeout(PATIENCE_SECONDS)
            with suppress(ConnectionResetError):
                while chunk := client.recv(2**16):
                    received += len(chunk)
            assert received < 12_000_000


def num_clients_of(url: str) -> Callable[[], float]:
    def read() -> float:
        text = HTTP.get(f"{url}/metrics").text
        [line] = [line for line in text.splitlines() if line.startswith("scamp_api_event_clients ")]
        return float(line.split()[1])

    return read


def test_a_client_that_leaves_is_forgotten(service: tuple[str, Store], monkeypatch: pytest.MonkeyPatch) -> None:
    url, store = service
    create(store)
    follow(url, 1, "?after=0")
    num_clients = num_clients_of(url)
    until(lambda: num_clients() == 0, "no client")


def test_a_chunk_that_is_not_taken_in_time_ends_the_stream(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sse, "STALLED_SECONDS", 0.1)

    async def never(_: object) -> None:
        await asyncio.Event().wait()

    async def run() -> None:
        hub = EventHub(store.events, store.studies)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await sse.EventStream(hub.follow(None, None)).stream_response(never)
        assert hub.num_clients == 0

    asyncio.run(run())
    assert "read nothing for 0.1 s and was dropped" in caplog.text


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(settings_in(tmp_path).url)
    yield store
    store.close()


async def take(stream: AsyncGenerator[bytes], count: int) -> list[int]:
    ids: list[int] = []
    while len(ids) < count:
        async with asyncio.timeout(PATIENCE_SECONDS):
            chunk = await anext(stream)
        ids += [json.loads(line[6:])["id"] for line in chunk.decode().splitlines() if line.startswith("data: ")]
    return ids


def test_a_client_behind_what_is_kept_is_served_from_the_database_without_a_gap(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "KEPT", 7)
    monkeypatch.setattr(sse, "PAGE", 3)
    monkeypatch.setattr(sse, "REPLAY_PAGE", 3)

    async def run() -> None:
        hub = EventHub(store.events, store.studies)
        first, slow = hub.follow(0, None), hub.follow(0, None)
        assert await take(first, 0) == []
        await anext(first), await anext(slow)
        for _ in range(30):
            create(store)
        assert await take(first, 30) == list(range(1, 31))
        assert await take(slow, 30) == list(range(1, 31))
        await first.aclose()
        await slow.aclose()

    asyncio.run(run())


def test_a_quiet_stream_is_kept_alive_by_comments_that_carry_the_position(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "KEEPALIVE_SECONDS", 0.2)
    create(store)

    async def run() -> None:
        stream = EventHub(store.events, store.studies).follow(None, None)
        assert b"id: 1\n" in await anext(stream)
        assert await anext(stream) == b": keepalive\nid: 1\n\n"
        await stream.aclose()

    asyncio.run(run())


def test_a_database_that_is_away_delays_events_and_loses_none(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    events, away = store.events.page, True

    def sometimes(**options: Any) -> Any:
        if away:
            raise Unavailable("away")
        return events(**options)

    async def run() -> None:
        nonlocal away
        stream = EventHub(store.events, store.studies).follow(None, None)
        await anext(stream)
        monkeypatch.setattr(store.events, "page", sometimes)
        create(store)
        await asyncio.sleep(0.4)
        away = False
        assert await take(stream, 1) == [1]
        await stream.aclose()

    asyncio.run(run())


def test_a_poller_that_fails_ends_the_streams_so_that_clients_come_again(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(**_: Any) -> None:
        raise RuntimeError("a bug")

    async def run() -> None:
        hub = EventHub(store.events, store.studies)
        stream = hub.follow(None, None)
        await anext(stream)
        with monkeypatch.context() as patched:
            patched.setattr(store.events, "page", broken)
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert [chunk async for chunk in stream] == []
        again = hub.follow(0, None)
        create(store)
        assert await take(again, 1) == [1]
        await again.aclose()

    asyncio.run(run())
    assert "a bug" in caplog.text


def test_closing_the_hub_ends_every_stream(store: Store) -> None:
    async def run() -> None:
        hub = EventHub(store.events, store.studies)
        stream = hub.follow(None, None)
        await anext(stream)
        asyncio.get_running_loop().call_later(0.2, hub.close)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert [chunk async for chunk in stream] == []

    asyncio.run(run())


def test_so_many_clients_may_follow_and_no_more(api: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.sse.MOST_CLIENTS", 0)
    answer = api.get("/v1/events")
    assert answer.status_code == 503 and "retry-after" in answer.headers
    assert "clients follow events already" in answer.json()["detail"]
