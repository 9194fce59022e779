"""The SDK: the REST API in Python, with retries that cannot submit twice and an event stream that reconnects by itself.

Methods return the JSON of the API as dictionaries (see ``docs/api.md``). An error response raises the matching error of
``scamp.errors``. A service that cannot be reached, or does not answer in time, raises ``Unavailable``.
"""

from __future__ import annotations

import base64
import json
import os
import tarfile
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import quote, urlsplit

import httpx
from httpx_sse import connect_sse

from scamp.addresses import DEFAULT_ADDRESS, local_service
from scamp.errors import Conflict, InvalidInput, NotFound, Refused, ScampError, Unavailable
from scamp.installed import installed_module
from scamp.study_file import files_of, read_study
from scamp.user_code.bundling import bundle_code
from scamp.user_code.sent_class import bundle_class

if TYPE_CHECKING:
    import pandas

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
    403: Refused,
    404: NotFound,
    409: Conflict,
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


class Client:
    """A connection to one service. Close it, or use it as a context manager.

    Trials are addressed by their number in the study. Raises ``InvalidInput`` for a malformed address.
    """

    def __init__(self, address: str = DEFAULT_ADDRESS, token: str | None = None, *, timeout: float = 60.0) -> None:
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to the service."""
        self._http.close()

    # --- studies -------------------------------------------------------------------------------------------------

    def submit(
        self,
        spec: Mapping[str, Any] | Path | str,
        *,
        workload: type | None = None,
        code: bytes | None = None,
        working_dir: Path | None = None,
        idempotency_key: str | None = None,
    ) -> JsonObject:
        """Create a study from a mapping or from the path of a YAML file, and return it.

        With a YAML file, the workload file that it names is uploaded too. ``code`` is a zip from ``bundle_code``.
        ``workload`` is a class that has no file, such as one of a notebook; ``spec`` is then a mapping without one.
        A repeated request creates only one study. Raises ``InvalidInput``, ``Unavailable``, and ``Conflict`` when
        ``idempotency_key`` was used for another study.
        """
        if isinstance(spec, Path | str):
            file, spec = Path(spec), read_study(Path(spec))
            if code is None and (files := files_of(spec)):
                code = bundle_code(file, files[0], working_dir, files[1:])
        if workload is not None:
            if code is not None or "workload" in spec:
                raise InvalidInput("the workload is given twice: pass the class, or name it in the study, but not both")
            name, code = bundle_class(workload)
            spec = {**spec, "workload": name}
        body: JsonObject = {"spec": spec}
        if code is not None:
            body["code_zip"] = base64.b64encode(code).decode()
        key = idempotency_key or str(uuid.uuid4())
        try:
            content = json.dumps(body, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"the study cannot be written as JSON: {error}") from None
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        try:
            return self._change("POST", "/v1/studies", content=content, headers=headers)
        except Unavailable as error:
            if self._heard_at is None or not isinstance(error.__cause__, httpx.TransportError):
                raise
            raise Unavailable(
                f"{error}; the study may have been created: repeat with the idempotency key {key}, so that there is "
                "only one"
            ) from error

    def study(self, study_id: int) -> JsonObject:
        """The study with its summary. Raises ``NotFound``."""
        return self._request("GET", f"/v1/studies/{study_id}")

    def studies(self, *, live: bool = False) -> Iterator[JsonObject]:
        """All studies by ascending id, or only the live ones. Fetched page by page."""
        return self._pages("/v1/studies", {"live": "true"} if live else {})

    def stop(self, study_id: int) -> JsonObject:
        """Ask the service to stop a study, and return it; no effect when it has ended."""
        return self._change("POST", f"/v1/studies/{study_id}:stop")

    def pause(self, study_id: int) -> JsonObject:
        """Stop the running trials of a study, start none, and return it. Raises ``NotFound`` and ``Conflict``."""
        return self._change("POST", f"/v1/studies/{study_id}:pause")

    def resume(self, study_id: int) -> JsonObject:
        """Let the trials of a paused study run again, and return it. Raises ``NotFound`` and ``Conflict``."""
        return self._change("POST", f"/v1/studies/{study_id}:resume")

    def enqueue(self, study_id: int, *candidates: Mapping[str, Any]) -> list[int]:
        """Try candidates in a study, in addition to its budget; returns the numbers of their trials.

        A completed study runs again for them. Parameters that are left out are random. Raises ``InvalidInput``,
        ``NotFound``, and ``Conflict`` for one that was stopped, has failed, or has reached a limit of its budget.
        """
        body, headers = (
            {"candidates": [dict(candidate) for candidate in candidates]},
            {"Idempotency-Key": str(uuid.uuid4())},
        )
        answer = self._change("POST", f"/v1/studies/{study_id}/trials", json=body, headers=headers)
        return cast(list[int], answer["numbers"])

    def study_file(self, study_id: int) -> str:
        """The study as the YAML that would submit it again. Raises ``NotFound``, and ``Conflict`` if others ran it."""
        return self._answer("GET", f"/v1/studies/{study_id}/study.yaml").text

    def clone(self, study_id: int, *, name: str | None = None, spec: Mapping[str, Any] | None = None) -> JsonObject:
        """Submit a study again, with the same files, and return the new one. ``spec``: what is run instead."""
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        if spec is None:
            return self._change("POST", f"/v1/studies/{study_id}:clone", json={"name": name}, headers=headers)
        body = {"spec": {**spec, **({"name": name} if name else {})}, "code_of": study_id}
        return self._change("POST", "/v1/studies", json=body, headers=headers)

    def extend(self, study_id: int, *, drop: Sequence[str] = (), **limits: float | Mapping[str, float]) -> JsonObject:
        """Change limits of a study's budget, and return the study.

        ``limits`` are ``trials``, ``seconds`` and ``device_hours`` in all, the ``target``, and ``max_concurrent``;
        ``drop`` names those that the study is to lose. A completed study runs again. Raises ``InvalidInput``,
        ``NotFound``, and ``Conflict`` for one that was stopped, has failed, or would have nothing to do.
        """
        return self._change("POST", f"/v1/studies/{study_id}:extend", json={**limits, "drop": list(drop)})

    def prioritize(self, study_id: int, priority: int) -> JsonObject:
        """Give a study another priority, and return the study. Raises ``InvalidInput`` and ``NotFound``."""
        return self._change("POST", f"/v1/studies/{study_id}:prioritize", json={"priority": priority})

    def retry(self, study_id: int, *numbers: int) -> list[int]:
        """Let failed trials run again, those with these numbers or else all; returns the numbers of those that do.

        A completed or failed study runs again. Raises ``NotFound``, and ``Conflict`` for trials that have ended
        otherwise, and for a study that was stopped or has reached a limit of its budget.
        """
        answer = self._request("POST", f"/v1/studies/{study_id}:retry", json={"numbers": list(numbers) or None})
        return cast(list[int], answer["numbers"])

    def delete(self, study_id: int) -> None:
        """Delete a study that has ended, with all that belongs to it; no effect when it is deleted already.

        Raises ``NotFound``, and ``Conflict`` while it has not ended.
        """
        self._change("DELETE", f"/v1/studies/{study_id}")

    def wait(self, study_id: int, *, timeout: float | None = None, poll_seconds: float = 0.5) -> JsonObject:
        """Wait until the study has ended, and return it.

        Raises ``Unavailable`` when that takes longer than ``timeout`` seconds (None: wait without limit).
        """
        began = time.monotonic()
        while (study := self.study(study_id))["finished_at"] is None:
            if timeout is not None and time.monotonic() - began > timeout:
                raise Unavailable(f"study {study_id} is still {study['state']} after {timeout:g} s; wait longer")
            time.sleep(poll_seconds)
        return study

    # --- trials --------------------------------------------------------------------------------------------------

    def trials(self, study_id: int, *, states: tuple[str, ...] = ()) -> Iterator[JsonObject]:
        """The trials of a study by number, fetched page by page; ``states`` keeps only trials in these states."""
        return self._pages(f"/v1/studies/{study_id}/trials", {"state": list(states)})

    def trials_csv(self, study_id: int) -> Iterator[str]:
        """Parts of a CSV of the trials of a study, which may also have values that are not finite."""
        try:
            with self._http.stream("GET", f"/v1/studies/{study_id}/trials.csv") as answer:
                if not answer.is_success:
                    answer.read()
                    raise _error_of(answer)
                yield from answer.iter_text()
        except httpx.TransportError as error:
            raise self._unavailable(error) from error

    def trials_frame(self, study_id: int) -> pandas.DataFrame:
        """The trials of a study as a data frame by number: a column for each field, each parameter (``params.lr``)
        and each metric (``metrics.accuracy``).

        Times are UTC. Needs pandas.
        """
        import pandas  # imported here: it takes a second

        rows = [trial_row(trial) for trial in self.trials(study_id)]
        frame = pandas.DataFrame(rows, columns=columns_of(rows))
        if "number" in frame:
            frame = frame.set_index("number")
        for name in frame:
            if str(name).endswith("_at"):
                frame[name] = pandas.to_datetime(frame[name], unit="s", utc=True)
        return frame

    def trial(self, study_id: int, number: int) -> JsonObject:
        """One trial with its attempts. Raises ``NotFound``."""
        return self._request("GET", f"/v1/studies/{study_id}/trials/{number}")

    def timeline(self, study_id: int, number: int) -> JsonObject | None:
        """One simulated step of the pipeline of a trial; None if its plan has none. Raises ``NotFound``."""
        return self._request("GET", f"/v1/studies/{study_id}/trials/{number}/timeline")

    def metrics(self, study_id: int, number: int, *, after: int = -1) -> Iterator[JsonObject]:
        """The evaluations of a trial at steps > ``after``, by step, fetched page by page."""
        return self._pages(f"/v1/studies/{study_id}/trials/{number}/metrics", {"after": after})

    def logs(self, study_id: int, number: int, *, after: int = 0, limit: int = 1000) -> list[JsonObject]:
        """At most ``limit`` log lines with id > ``after``; ``after=-1`` returns the last lines."""
        path = f"/v1/studies/{study_id}/trials/{number}/logs"
        return cast(list[JsonObject], self._request("GET", path, params={"after": after, "limit": limit})["items"])

    def files(self, study_id: int, number: int) -> list[JsonObject]:
        """The files that a trial keeps: ``name``, ``num_bytes`` and ``written_at``."""
        return cast("list[JsonObject]", self._request("GET", f"/v1/studies/{study_id}/trials/{number}/files")["items"])

    def download(self, study_id: int, number: int, name: str, target: Path) -> None:
        """Write a file that a trial keeps to ``target``, in place of what is there."""
        self._download(f"/v1/studies/{study_id}/trials/{number}/files/{quote(name)}", target)

    def checkpoint(self, study_id: int, number: int, target: Path) -> None:
        """Write the trial's last checkpoint to ``target``, as a tar archive."""
        self._download(f"/v1/studies/{study_id}/trials/{number}/checkpoint", target)

    def weights(self, study_id: int, number: int, target: Path, *, raw: bool = False) -> JsonObject:
        """Write the weights by which the trial counts to ``target``, for ``torch.load``: its model's state dictionary.

        Where the trial averages weights (``ema_decay``, ``swa_start``), these are the averages, as in evaluations; with
        ``raw`` those that train. Returns their ``step``, ``num_tensors``, ``num_bytes`` and ``has_averages``. Raises
        ``InvalidInput`` for a damaged checkpoint.
        """
        purpose = "putting the parts of a checkpoint together"  # torch takes seconds to import
        load_weights = installed_module("workloads.training.checkpoints.checkpoint", purpose).load_weights
        fault_of_storage = installed_module("workloads.training.faults", purpose).StorageFault

        with tempfile.TemporaryDirectory(prefix="scamp-") as directory:
            archive, folder = Path(directory) / "checkpoint.tar", Path(directory) / f"study-{study_id}-trial-{number}"
            self.checkpoint(study_id, number, archive)
            with tarfile.open(archive) as packed:
                packed.extractall(folder, filter="data")
            archive.unlink()
            try:
                weights = load_weights(folder, raw=raw)
            except fault_of_storage as fault:  # the folder is gone when somebody reads this
                raise InvalidInput(str(fault).replace(f" from {directory}", "").replace(f"{directory}/", "")) from None
        with _staged(target) as staged:
            weights.write(staged)
        return {
            "step": weights.step,
            "num_tensors": len(weights.state),
            "num_bytes": weights.num_bytes,
            "has_averages": weights.has_averages,
        }

    def peaks(self, study_id: int) -> Iterator[JsonObject]:
        """Predicted and measured peak of every measured attempt, by trial, fetched page by page."""
        return self._pages(f"/v1/studies/{study_id}/peaks", {})

    def importances(self, study_id: int) -> JsonObject:
        """How much each parameter of the study matters to be among its best trials, the most important first."""
        return self._request("GET", f"/v1/studies/{study_id}/importances")

    def learned(self, study_id: int) -> list[JsonObject]:
        """The memory correction learned for each family of the study and each layout: bytes to add, and evidence."""
        return cast(list[JsonObject], self._request("GET", f"/v1/studies/{study_id}/learned"))

    # --- cluster and events --------------------------------------------------------------------------------------

    def cluster(self) -> JsonObject:
        """The devices of the cluster, the gangs on each, and the queue."""
        return self._request("GET", "/v1/cluster")

    def what_if(self, add: str) -> JsonObject:
        """When the live queue would be done with more devices, such as ``8xA100-40``, compared with now."""
        return self._request("GET", "/v1/cluster/what-if", params={"add": add})

    def events(self, after: int | None = None, *, study_id: int | None = None) -> Iterator[JsonObject]:
        """Follow the events of all studies or of one, without end.

        Each event comes once and in order, also when the service restarts. ``after`` replays the events after that id;
        None begins with the next event. Raises ``Unavailable`` when the service cannot be reached at first, or does not
        respond for more than half a minute.
        """
        params = {} if study_id is None else {"study_id": study_id}
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

    # --- requests ------------------------------------------------------------------------------------------------

    def _pages(self, path: str, params: Mapping[str, Any]) -> Iterator[JsonObject]:
        params = {**params, "limit": PAGE}
        while True:
            page = self._request("GET", path, params=params)
            yield from page["items"]
            if page["next"] is None:
                return
            params["after"] = page["next"]

    def _change(self, method: str, path: str, **options: Any) -> JsonObject:
        """Send a request that changes something, for half a minute while the service is busy or restarts, and for ten
        minutes while it is slow but alive.

        The service does only once what is asked for several times.
        """
        began = time.monotonic()
        while True:
            try:
                return self._request(method, path, **options)
            except Unavailable as error:
                is_slow = isinstance(error.__cause__, httpx.ReadTimeout)
                if not (is_slow or isinstance(error, _Busy)):
                    raise
                patience = SLOW_SECONDS if is_slow and self._is_alive() else PATIENCE_SECONDS
                if time.monotonic() - began > patience:
                    raise
                time.sleep(error.seconds if isinstance(error, _Busy) else RETRY_SECONDS)

    def _is_alive(self) -> bool:
        try:
            return self._http.get("/healthz", timeout=ALIVE_SECONDS).is_success
        except httpx.TransportError:
            return False

    def _request(self, method: str, path: str, **options: Any) -> JsonObject:
        answer = self._answer(method, path, **options)
        if answer.status_code == 204:
            return {}
        try:
            return cast(JsonObject, answer.json())
        except ValueError:
            raise Unavailable(f"{self.address} does not answer like ScaMP; check the address") from None

    def _answer(self, method: str, path: str, **options: Any) -> httpx.Response:
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

    def _download(self, path: str, target: Path) -> None:
        """Write an answer to a file, which appears only once it is complete."""
        try:
            with _staged(target) as staged, self._http.stream("GET", path) as answer:
                if not answer.is_success:
                    answer.read()
                    raise _error_of(answer)
                with staged.open("wb") as file:
                    for part in answer.iter_bytes():
                        file.write(part)
        except httpx.TransportError as error:
            raise self._unavailable(error) from error

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


def submit(
    spec: Mapping[str, Any] | Path | str,
    *,
    workload: type | None = None,
    working_dir: Path | None = None,
    address: str = "",
    token: str = "",
) -> JsonObject:
    """Submit a study and return it, as ``Client.submit`` does; its ``id`` is the number for all further calls.

    The service is that of ``address``, of SCAMP_ADDRESS, or the one on this machine, in this order. ``token`` is by
    default SCAMP_API_TOKEN. Raises ``InvalidInput`` and ``Unavailable``.
    """
    address = address or os.environ.get("SCAMP_ADDRESS") or local_service().url
    with Client(address, token or os.environ.get("SCAMP_API_TOKEN")) as client:
        return client.submit(spec, workload=workload, working_dir=working_dir)


@contextmanager
def _staged(target: Path) -> Iterator[Path]:
    """The path of a file that takes the place of ``target`` once it is complete."""
    staged = target.with_name(f".{target.name}-{uuid.uuid4().hex}.part")
    try:
        yield staged
        staged.replace(target)
    finally:
        staged.unlink(missing_ok=True)


_FIRST = ("number", "state", "value")
_GROUPS = ("values.", "params.", "metrics.")
_LEFT_OUT = ("id", "study_id", "plan", *_FIRST, "values", "params", "metrics")


def trial_row(trial: Mapping[str, Any]) -> JsonObject:
    """A trial of the API as one flat row: number, state, values, parameters and metrics, and then the rest.

    Its parameters are ``params.NAME``, of blocks ``params.layers.0.width``, its metrics ``metrics.NAME``. The plan is
    left out but for its words. Several objectives are ``values.0``, ``values.1``, … in their order.
    """
    values = trial.get("values") or ()
    return {
        **{name: trial.get(name) for name in _FIRST},
        **({f"values.{index}": value for index, value in enumerate(values)} if len(values) > 1 else {}),
        **_flat("params", trial["params"]),
        **{f"metrics.{name}": value for name, value in trial.get("metrics", {}).items()},
        **{name: value for name, value in trial.items() if name not in _LEFT_OUT},
    }


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every column that any of these rows of ``trial_row`` has, in its order."""
    columns = dict.fromkeys(name for row in rows for name in row)

    def group(name: str) -> int:
        return next((place for place, start in enumerate(_GROUPS) if name.startswith(start)), len(_GROUPS))

    return [*_FIRST, *sorted((name for name in columns if name not in _FIRST), key=group)] if columns else []


def _flat(name: str, value: Any) -> JsonObject:
    if isinstance(value, Mapping):
        return {key: leaf for part, inner in value.items() for key, leaf in _flat(f"{name}.{part}", inner).items()}
    if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        return {key: leaf for index, inner in enumerate(value) for key, leaf in _flat(f"{name}.{index}", inner).items()}
    return {name: value}


def _error_of(answer: httpx.Response) -> ScampError:
    """The error of ``scamp.errors`` that matches an error response."""
    try:
        detail = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        detail = f"the service answered {answer.status_code} {answer.reason_phrase}; check the address"
    seconds = answer.headers.get("retry-after", "")
    if answer.status_code == 503 and seconds.isdecimal():
        return _Busy(detail, min(float(seconds), PATIENCE_SECONDS))
    kind = _BY_STATUS.get(answer.status_code)
    if kind is None:
        kind = InvalidInput if 400 <= answer.status_code < 500 else Unavailable
    return kind(detail)
