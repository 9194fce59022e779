"""The requests of the SDK: repeated while a service restarts, without changing anything twice.

An error response raises the matching error of ``scamp.errors``. A service that cannot be reached, or does not answer in
time, raises ``Unavailable``. ``client`` says what can be asked for.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
from httpx_sse import connect_sse

from scamp.addresses import DEFAULT_ADDRESS
from scamp.errors import Conflict, Forbidden, InvalidInput, NotFound, Refused, ScampError, Unavailable

PAGE = 500
RETRY_SECONDS = 0.3
PATIENCE_SECONDS = 30.0
"""How long requests are retried after the last response, while the service restarts or the network is down."""
SLOW_SECONDS = 600.0
"""How long a change is waited for while the service answers other requests: it imports and traces users' code."""
ALIVE_SECONDS = 10.0
"""How long a service may take to say that it is alive."""
SILENCE_SECONDS = 40.0
"""An event stream that is silent for this long is considered dead; the service sends a comment every 15 s."""

JsonObject = dict[str, Any]
_BY_STATUS: Mapping[int, type[ScampError]] = {
    401: Refused,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    429: Unavailable,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}

_CUT = (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError, httpx.ReadTimeout)
"""Failures of a connection that was open: a service was there, and may have received the request."""


class _Busy(Unavailable):
    """The service answers that the same request may be sent again after ``seconds``."""

    def __init__(self, detail: str, seconds: float) -> None:
        super().__init__(detail)
        self.seconds = seconds


class Connection:
    """A connection to one service. Raises ``InvalidInput`` for a malformed address."""

    def __init__(self, address: str, token: str | None, timeout: float) -> None:
        self.address = address.rstrip("/")
        try:
            parts = urlsplit(self.address)
            is_address = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
            httpx.URL(self.address)
        except (ValueError, httpx.InvalidURL):
            is_address = False
        if not is_address:
            raise InvalidInput(f"{address!r} is not the address of a service; write it like {DEFAULT_ADDRESS}")
        headers = {"Accept": "application/json", "User-Agent": "scamp"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._heard_at: float | None = None
        local = parts.hostname in ("127.0.0.1", "localhost", "::1")
        self._http = httpx.Client(
            base_url=self.address,
            headers=headers,
            timeout=timeout,
            trust_env=not local,  # a proxy from the environment cannot reach this machine's loopback
            verify=parts.scheme == "https",  # loading certificates takes 0.1 s, so only for TLS
        )

    def close(self) -> None:
        """Close the connections to the service."""
        self._http.close()

    @property
    def was_reached(self) -> bool:
        """Whether the service has answered before, or may have received a request."""
        return self._heard_at is not None

    def request(self, method: str, path: str, **options: Any) -> JsonObject:
        """The JSON of an answer."""
        answer = self.answer(method, path, **options)
        if answer.status_code == 204:
            return {}
        try:
            return cast(JsonObject, answer.json())
        except ValueError:
            raise Unavailable(f"{self.address} does not answer like ScaMP; check the address") from None

    def change(self, method: str, path: str, **options: Any) -> JsonObject:
        """Send a request that changes something, for half a minute while the service is busy or restarts, and for ten
        minutes while it is slow but alive.

        The service does only once what is asked for several times.
        """
        began = time.monotonic()
        while True:
            try:
                return self.request(method, path, **options)
            except Unavailable as error:
                is_slow = isinstance(error.__cause__, httpx.ReadTimeout)
                if not (is_slow or isinstance(error, _Busy)):
                    raise
                patience = SLOW_SECONDS if is_slow and self._is_alive() else PATIENCE_SECONDS
                if time.monotonic() - began > patience:
                    raise
                time.sleep(error.seconds if isinstance(error, _Busy) else RETRY_SECONDS)

    def pages(self, path: str, params: Mapping[str, Any]) -> Iterator[JsonObject]:
        """The items of a list, fetched page by page."""
        params = {**params, "limit": PAGE}
        while True:
            page = self.request("GET", path, params=params)
            yield from page["items"]
            if page["next"] is None:
                return
            params["after"] = page["next"]

    def text(self, path: str) -> Iterator[str]:
        """Parts of the text of an answer."""
        try:
            with self._stream(path) as answer:
                yield from answer.iter_text()
        except httpx.TransportError as error:
            raise self._unavailable(error) from error

    def download(self, path: str, target: Path) -> None:
        """Write an answer to a file, which appears only once it is complete."""
        try:
            with staged(target) as part_file, self._stream(path) as answer, part_file.open("wb") as file:
                for part in answer.iter_bytes():
                    file.write(part)
        except httpx.TransportError as error:
            raise self._unavailable(error) from error

    def events(self, after: int | None, params: Mapping[str, Any]) -> Iterator[JsonObject]:
        """Follow events without end: see ``Client.events``."""
        while True:
            headers = {} if after is None else {"Last-Event-ID": str(after)}
            timeout = httpx.Timeout(10.0, read=SILENCE_SECONDS)
            try:
                with connect_sse(
                    self._http, "GET", "/v1/events", params=params, headers=headers, timeout=timeout
                ) as source:
                    if not source.response.is_success:
                        source.response.read()
                        raise _error_of(source.response)
                    for event in source.iter_sse():
                        self._heard_at = time.monotonic()
                        after = int(event.id) if event.id.isdecimal() else after
                        if event.data:  # an event without data only moves the id, or is a keep-alive
                            yield json.loads(event.data)
            except (httpx.TransportError, Unavailable) as error:
                if not self._may_come_back():
                    raise self._unavailable(error) from error
            time.sleep(RETRY_SECONDS)

    def answer(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request, and repeat it for a while when a service that was there before is briefly unreachable.

        Every request of the API is safe to repeat.
        """
        while True:
            try:
                answer = self._http.request(method, path, **options)
                break
            except httpx.TransportError as error:
                if self._heard_at is None and isinstance(error, _CUT):
                    self._heard_at = time.monotonic()
                if isinstance(error, httpx.TimeoutException) or not self._may_come_back():
                    raise self._unavailable(error) from error
                time.sleep(RETRY_SECONDS)
        self._heard_at = time.monotonic()
        if not answer.is_success:
            raise _error_of(answer)
        return answer

    @contextmanager
    def _stream(self, path: str) -> Iterator[httpx.Response]:
        with self._http.stream("GET", path) as answer:
            if not answer.is_success:
                answer.read()
                raise _error_of(answer)
            yield answer

    def _is_alive(self) -> bool:
        try:
            return self._http.get("/healthz", timeout=ALIVE_SECONDS).is_success
        except httpx.TransportError:
            return False

    def _may_come_back(self) -> bool:
        return self._heard_at is not None and time.monotonic() - self._heard_at < PATIENCE_SECONDS

    def _unavailable(self, error: Exception) -> Unavailable:
        if isinstance(error, Unavailable):
            return error
        if isinstance(error, httpx.ReadTimeout):
            return Unavailable(
                f"ScaMP at {self.address} is slow: it has not answered in time; `scamp list` shows whether it answers "
                "at all"
            )
        why = str(error) or type(error).__name__
        return Unavailable(f"ScaMP cannot be reached at {self.address} ({why}); start it with `scamp serve`")


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """The path of a file that takes the place of ``target`` once it is complete."""
    if not target.parent.is_dir():
        raise InvalidInput(f"there is no folder {target.parent} for {target.name}: make it first")
    part_file = target.with_name(f".{target.name}-{uuid.uuid4().hex}.part")
    try:
        yield part_file
        part_file.replace(target)
    finally:
        part_file.unlink(missing_ok=True)


def _error_of(answer: httpx.Response) -> ScampError:
    """The error of ``scamp.errors`` that matches an error response."""
    try:
        detail = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        detail = f"the service answered {answer.status_code} {answer.reason_phrase}; check the address"
    seconds = answer.headers.get("retry-after", "")
    if answer.status_code in (429, 503) and seconds.isdecimal():
        return _Busy(detail, min(float(seconds), PATIENCE_SECONDS))
    kind = _BY_STATUS.get(answer.status_code)
    if kind is None:
        kind = InvalidInput if 400 <= answer.status_code < 500 else Unavailable
    return kind(detail)
