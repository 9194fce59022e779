"""The SDK: the REST API in Python.

Methods return the JSON of the API as dictionaries (see ``docs/api.md``). An error response raises the matching error of
``scamp.errors``. ``connection`` sends the requests, which are repeated while the service restarts.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
import tarfile
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import quote

import httpx

from scamp.accounts import Tokens, Users
from scamp.addresses import DEFAULT_ADDRESS, local_service
from scamp.connection import Connection, JsonObject, staged
from scamp.errors import InvalidInput, NotFound, Unavailable
from scamp.export import columns_of, trial_row
from scamp.installed import installed_module
from scamp.shown_study import ShownStudy, progress_of

if TYPE_CHECKING:
    import pandas


FORMATS = ("csv", "jsonl", "parquet")
"""Formats of a file of trials."""


class Client:
    """A connection to one service. Close it, or use it as a context manager.

    Trials are addressed by their number in the study. Raises ``InvalidInput`` for a malformed address.
    """

    def __init__(self, address: str = DEFAULT_ADDRESS, token: str | None = None, *, timeout: float = 60.0) -> None:
        self._http = Connection(address, token, timeout)
        self.address = self._http.address
        self.users, self.tokens = Users(self._http), Tokens(self._http)

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
        Configurations of OmegaConf (Hydra) count as mappings and lists; they are resolved.
        A repeated request creates only one study. Raises ``InvalidInput``, ``Unavailable``, and ``Conflict`` when
        ``idempotency_key`` was used for another study.
        """
        from scamp.study_file import files_of, read_study
        from scamp.user_code.bundling import bundle_code
        from scamp.user_code.provenance import provenance_headers
        from scamp.user_code.sent_class import bundle_class

        folder = working_dir or (Path(spec).parent if isinstance(spec, Path | str) else Path())
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
        content = _json_of(body)
        headers = {"Content-Type": "application/json", "Idempotency-Key": key, **provenance_headers(folder)}
        try:
            return self._http.change("POST", "/v1/studies", content=content, headers=headers)
        except Unavailable as error:
            if not self._http.was_reached or not isinstance(error.__cause__, httpx.TransportError):
                raise
            raise Unavailable(
                f"{error}; the study may have been created: repeat with the idempotency key {key}, so that there is "
                "only one"
            ) from error

    def check(self, spec: Mapping[str, Any]) -> JsonObject:
        """Check a study without its files and without submitting it; returns its space. Raises ``InvalidInput``."""
        return self._http.request("POST", "/v1/studies:check", json={"spec": dict(spec)})

    def screen(self, spec: Mapping[str, Any], *, code: bytes | None = None, candidates: int = 100) -> JsonObject:
        """Predict which part of a study's space fits on the cluster, from random ``candidates``; nothing is submitted.

        ``code`` is a zip from ``bundle_code``. Raises ``InvalidInput``.
        """
        body = {"spec": dict(spec), **({} if code is None else {"code_zip": base64.b64encode(code).decode()})}
        return self._http.request("POST", f"/v1/studies:screen?candidates={candidates}", json=body)

    def study(self, study_id: int) -> ShownStudy:
        """The study with its summary, a dictionary that notebooks show with a progress bar. Raises ``NotFound``."""
        study = ShownStudy(self._http.request("GET", f"/v1/studies/{study_id}"))
        study.address = f"{self.address}/studies/{study_id}"
        return study

    def studies(
        self,
        *,
        live: bool = False,
        owner: str | None = None,
        project: str | None = None,
        states: Sequence[str] = (),
        tag: str | None = None,
        words: str = "",
        archived: str = "no",
        sort: str = "id",
    ) -> Iterator[JsonObject]:
        """Studies: all, or those that are live, in one of ``states``, of an owner or a project, with a tag, or with
        each of these words in name, tags, note, owner or project. ``archived``: no, only or all. ``sort``: id, name,
        owner, project or state.
        """
        filters = {"live": "true" if live else None, "owner": owner, "project": project, "tag": tag}
        filters |= {"words": words or None, "archived": archived if archived != "no" else None}
        filters |= {"sort": sort if sort != "id" else None}
        params = {key: value for key, value in filters.items() if value is not None}
        return self._http.pages("/v1/studies", {**params, **({"state": _upper(states)} if states else {})})

    def describe(
        self,
        study_id: int,
        *,
        name: str | None = None,
        tags: Sequence[str] | None = None,
        note: str | None = None,
        archived: bool | None = None,
    ) -> JsonObject:
        """Change a study's name, tags or note, or archive it, and return it. Raises ``NotFound``."""
        changes = {"name": name, "tags": None if tags is None else list(tags), "note": note, "archived": archived}
        body = {key: value for key, value in changes.items() if value is not None}
        return self._http.change("PATCH", f"/v1/studies/{study_id}", json=body)

    def usage(self, *, first: str | None = None, last: str | None = None, by: str = "month") -> Sequence[JsonObject]:
        """Device-hours by period (``by``: day, week or month), project and owner, from day ``first`` to ``last``.

        Days are in UTC, such as 2026-03-01. Without them it is this month until now.
        """
        params = {key: value for key, value in (("first", first), ("last", last), ("by", by)) if value is not None}
        return cast(Sequence[JsonObject], self._http.request("GET", "/v1/usage", params=params))

    def stop(self, study_id: int) -> JsonObject:
        """Ask the service to stop a study, and return it; no effect when it has ended."""
        return self._http.change("POST", f"/v1/studies/{study_id}:stop")

    def stop_trial(self, study_id: int, number: int) -> JsonObject:
        """Ask the service to stop one trial, and return it; no effect when it has ended. Raises ``NotFound``."""
        return self._http.change("POST", f"/v1/studies/{study_id}/trials/{number}:stop")

    def change_trial(
        self, study_id: int, number: int, *, paused: bool | None = None, priority: int | None = None
    ) -> JsonObject:
        """Pause or resume one trial, or let it start before others of its study that wait, and return it.

        Raises ``NotFound``, and ``Conflict`` once it has ended.
        """
        changes = {"paused": paused, "priority": priority}
        body = {key: value for key, value in changes.items() if value is not None}
        return self._http.change("PATCH", f"/v1/studies/{study_id}/trials/{number}", json=body)

    def delete_trial(self, study_id: int, number: int) -> None:
        """Delete one trial that has ended, with all that belongs to it; no effect when it is deleted already.

        Raises ``NotFound``, and ``Conflict`` while it has not ended.
        """
        self._http.change("DELETE", f"/v1/studies/{study_id}/trials/{number}")

    def pause(self, study_id: int) -> JsonObject:
        """Stop the running trials of a study, start none, and return it. Raises ``NotFound`` and ``Conflict``."""
        return self._http.change("POST", f"/v1/studies/{study_id}:pause")

    def resume(self, study_id: int) -> JsonObject:
        """Let the trials of a paused study run again, and return it. Raises ``NotFound`` and ``Conflict``."""
        return self._http.change("POST", f"/v1/studies/{study_id}:resume")

    def enqueue(
        self,
        study_id: int,
        *candidates: Mapping[str, Any] | Iterable[Mapping[str, Any]],
        values: Sequence[float | Sequence[float]] | float | None = None,
    ) -> list[int]:
        """Try candidates in a study, in addition to its budget; returns the numbers of their trials.

        Candidates are given one by one, or as lists. Parameters that are left out are random. A completed study runs
        again for them. ``values`` are results that were measured elsewhere, a number for each candidate or one for each
        of its objectives: such candidates are not trained, and their sampler learns from them.

        Raises ``InvalidInput``, ``NotFound``, and ``Conflict`` for one that was stopped, has failed,
        or has reached a limit of its budget.
        """
        lists = ([each] if isinstance(each, Mapping) else each for each in candidates)
        body: JsonObject = {"candidates": [dict(candidate) for candidate in chain.from_iterable(lists)]}
        if values is not None:
            body["values"] = list(values) if isinstance(values, Sequence) else [values]
        headers = {"Content-Type": "application/json", "Idempotency-Key": str(uuid.uuid4())}
        answer = self._http.change("POST", f"/v1/studies/{study_id}/trials", content=_json_of(body), headers=headers)
        return cast(list[int], answer["numbers"])

    def study_file(self, study_id: int) -> str:
        """The study as the YAML that would submit it again. Raises ``NotFound``, and ``Conflict`` if others ran it."""
        return self._http.answer("GET", f"/v1/studies/{study_id}/study.yaml").text

    def provenance(self, study_id: int) -> JsonObject:
        """Where a study comes from: the command, the git commit with ``is_changed``, and the versions of the packages
        that the service had. What is not known is None. Raises ``NotFound``."""
        return self._http.request("GET", f"/v1/studies/{study_id}/provenance")

    def study_code(self, study_id: int, target: Path | str) -> None:
        """Write the files that were sent with a study to ``target``, as a zip. Raises ``NotFound``."""
        self._http.download(f"/v1/studies/{study_id}/files.zip", Path(target))

    def differences(self, *study_ids: int) -> dict[str, list[Any]]:
        """Each option in which the specs of studies differ, such as ``budget.trials``, with its value in each."""
        specs = [_leaves(self.study(study_id)["spec"]) for study_id in study_ids]
        names = dict.fromkeys(name for spec in specs for name in spec if name != "name")
        values = {name: [spec.get(name) for spec in specs] for name in names}
        return {name: row for name, row in values.items() if any(value != row[0] for value in row)}

    def clone(
        self,
        study_id: int,
        *,
        name: str | None = None,
        changes: Mapping[str, Any] | None = None,
        spec: Mapping[str, Any] | None = None,
    ) -> JsonObject:
        """Submit a study again, with the same files, and return the new one.

        ``changes`` are options of it with other values, such as ``{"budget.trials": 40}``; None removes one. ``spec``
        is what is run instead of the study. Raises ``InvalidInput`` and ``NotFound``.
        """
        from scamp.user_code.provenance import copied_headers

        headers = {"Idempotency-Key": str(uuid.uuid4()), **copied_headers(self.provenance(study_id))}
        if changes:
            from scamp.study_file import load, with_options  # here, as YAML takes a while to import

            spec = with_options(load(self.study_file(study_id)) if spec is None else spec, changes)
        if spec is None:
            return self._http.change("POST", f"/v1/studies/{study_id}:clone", json={"name": name}, headers=headers)
        content = _json_of({"spec": {**spec, **({"name": name} if name else {})}, "code_of": study_id})
        headers["Content-Type"] = "application/json"
        return self._http.change("POST", "/v1/studies", content=content, headers=headers)

    def extend(self, study_id: int, *, drop: Sequence[str] = (), **limits: float | Mapping[str, float]) -> JsonObject:
        """Change limits of a study's budget, and return the study.

        ``limits`` are trials, seconds and device_hours in all, the target, and max_concurrent; ``drop`` names those
        that the study is to lose. A completed study runs again. Raises ``InvalidInput``, ``NotFound``, and ``Conflict``
        for one that was stopped, has failed, or would have nothing to do.
        """
        return self._http.change("POST", f"/v1/studies/{study_id}:extend", json={**limits, "drop": list(drop)})

    def prioritize(self, study_id: int, priority: int) -> JsonObject:
        """Give a study another priority, and return the study. Raises ``InvalidInput`` and ``NotFound``."""
        return self._http.change("POST", f"/v1/studies/{study_id}:prioritize", json={"priority": priority})

    def retry(self, study_id: int, *numbers: int) -> list[int]:
        """Let failed trials run again, those with these numbers or else all; returns the numbers of those that do.

        A completed or failed study runs again. Raises ``NotFound``, and ``Conflict`` for trials that have ended
        otherwise, and for a study that was stopped or has reached a limit of its budget.
        """
        answer = self._http.request("POST", f"/v1/studies/{study_id}:retry", json={"numbers": list(numbers) or None})
        return cast(list[int], answer["numbers"])

    def delete(self, study_id: int) -> None:
        """Delete a study that has ended, with all that belongs to it; no effect when it is deleted already.

        Raises ``NotFound``, and ``Conflict`` while it has not ended.
        """
        self._http.change("DELETE", f"/v1/studies/{study_id}")

    def wait(
        self, study_id: int, *, timeout: float | None = None, poll_seconds: float = 0.5, progress: bool = True
    ) -> ShownStudy:
        """Wait until the study has ended, and return it. ``progress`` shows it meanwhile in a notebook or a terminal.

        Raises ``Unavailable`` when that takes longer than ``timeout`` seconds (None: wait without limit).
        """
        began = time.monotonic()
        show: Callable[[ShownStudy], None] | None = None
        while True:
            study = self.study(study_id)
            if show is not None:
                show(study)
            elif progress:
                show = progress_of(study)
            if study["finished_at"] is not None:
                return study
            if timeout is not None and time.monotonic() - began > timeout:
                raise Unavailable(f"study {study_id} is still {study['state']} after {timeout:g} s; wait longer")
            time.sleep(poll_seconds)

    def changes(self, study_id: int) -> Iterator[JsonObject]:
        """Who has submitted and changed a study, the newest change first. Raises ``NotFound``."""
        return self._http.pages(f"/v1/studies/{study_id}/changes", {})

    # --- users ---------------------------------------------------------------------------------------------------

    def me(self) -> JsonObject:
        """Who this client is to the service, and what it may do."""
        return self._http.request("GET", "/v1/me")

    def audit(
        self, *, actor: str | None = None, study_id: int | None = None, limit: int | None = None
    ) -> list[JsonObject]:
        """The newest changes that somebody has asked for, all or at most ``limit``; for admins. The newest is first."""
        filters = {"actor": actor, "study_id": study_id}
        params = {key: value for key, value in filters.items() if value is not None}
        return list(islice(self._http.pages("/v1/audit", params), limit))

    # --- trials --------------------------------------------------------------------------------------------------

    def trials(
        self,
        study_id: int,
        *,
        states: tuple[str, ...] = (),
        where: str = "",
        by: str = "number",
        descending: bool = False,
    ) -> Iterator[JsonObject]:
        """The trials of a study, fetched page by page.

        ``states`` keeps only trials in these states, ``where`` those for which an expression is true, such as
        ``lr < 1e-3 and accuracy > 0.9``. They are sorted by the column ``by``: number, value, params.lr, … Raises
        ``InvalidInput`` for a wrong expression or column.
        """
        path = f"/v1/studies/{study_id}"
        if not where and by == "number" and not descending:
            yield from self._http.pages(f"{path}/trials", {"state": _upper(states)})
            return
        params = {
            "by": by,
            "descending": str(descending).lower(),
            "where": where,
            "state": _upper(states),
        }
        numbers = iter(self._http.request("GET", f"{path}/order", params=params)["number"])
        while part := list(islice(numbers, 100)):
            page = self._http.request("GET", f"{path}/trials", params={"number": part})["items"]
            trials = {trial["number"]: trial for trial in page}
            yield from (trials[number] for number in part if number in trials)

    def trials_text(self, study_id: int, file_format: str = "csv") -> Iterator[str]:
        """Parts of a CSV (``csv``) or of JSON lines (``jsonl``) of the trials of a study."""
        return self._http.text(f"/v1/studies/{study_id}/trials.{file_format}")

    def download_trials(self, study_id: int, target: Path | str, file_format: str | None = None) -> None:
        """Write the trials of a study to ``target`` as csv, jsonl or parquet; by default what its name ends with."""
        file_format = file_format or Path(target).suffix.removeprefix(".")
        if file_format not in FORMATS:
            raise InvalidInput(f"{target}: give a format, or a name that ends with {', '.join(FORMATS)}")
        self._http.download(f"/v1/studies/{study_id}/trials.{file_format}", Path(target))

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
        return self._http.request("GET", f"/v1/studies/{study_id}/trials/{number}")

    def timeline(self, study_id: int, number: int) -> JsonObject | None:
        """One simulated step of the pipeline of a trial; None if its plan has none. Raises ``NotFound``."""
        return self._http.request("GET", f"/v1/studies/{study_id}/trials/{number}/timeline")

    def metrics(self, study_id: int, number: int, *, after: int = -1) -> Iterator[JsonObject]:
        """The evaluations of a trial at steps > ``after``, by step, fetched page by page."""
        return self._http.pages(f"/v1/studies/{study_id}/trials/{number}/metrics", {"after": after})

    def logs(
        self, study_id: int, number: int, *, after: int = 0, limit: int = 1000, search: str = ""
    ) -> list[JsonObject]:
        """At most ``limit`` log lines with id > ``after``; ``after=-1`` returns the last lines. ``search``: only those
        that contain this text, in small or capital letters."""
        path = f"/v1/studies/{study_id}/trials/{number}/logs"
        params = {"after": after, "limit": limit, **({"search": search} if search else {})}
        return cast(list[JsonObject], self._http.request("GET", path, params=params)["items"])

    def files(self, study_id: int, number: int) -> list[JsonObject]:
        """The files that a trial keeps: ``name``, ``num_bytes`` and ``written_at``."""
        return cast(
            "list[JsonObject]",
            self._http.request("GET", f"/v1/studies/{study_id}/trials/{number}/files")["items"],
        )

    def download(self, study_id: int, number: int, name: str, target: Path | str) -> None:
        """Write a file that a trial keeps to ``target``, in place of what is there."""
        self._http.download(f"/v1/studies/{study_id}/trials/{number}/files/{quote(name)}", Path(target))

    def checkpoint(self, study_id: int, number: int, target: Path | str) -> None:
        """Write the trial's last checkpoint to ``target``, as a tar archive."""
        self._http.download(f"/v1/studies/{study_id}/trials/{number}/checkpoint", Path(target))

    def weights(self, study_id: int, number: int | None, target: Path | str, *, raw: bool = False) -> JsonObject:
        """Write the weights by which the trial counts to ``target``, for ``torch.load``: its model's state dictionary.

        Without a ``number`` they are those of the best trial.

        Where the trial averages weights (``ema_decay``, ``swa_start``), these are the averages, as in evaluations; with
        ``raw`` those that train. Returns their ``step``, ``num_tensors``, ``num_bytes`` and ``has_averages``. Raises
        ``InvalidInput`` for a damaged checkpoint.
        """
        purpose = "putting the parts of a checkpoint together"  # torch takes seconds to import
        load_weights = installed_module("workloads.training.checkpoints.checkpoint", purpose).load_weights
        fault_of_storage = installed_module("workloads.training.faults", purpose).StorageFault

        with tempfile.TemporaryDirectory(prefix="scamp-") as directory:
            number = self.best_trained(study_id) if number is None else number
            archive, folder = Path(directory) / "checkpoint.tar", Path(directory) / f"study-{study_id}-trial-{number}"
            self.checkpoint(study_id, number, archive)
            with tarfile.open(archive) as packed:
                _extract(packed, folder)
            archive.unlink()
            try:
                weights = load_weights(folder, raw=raw)
            except fault_of_storage as fault:  # the folder is gone when somebody reads this
                raise InvalidInput(str(fault).replace(f" from {directory}", "").replace(f"{directory}/", "")) from None
        with staged(Path(target)) as part_file:
            weights.write(part_file)
        return {
            "step": weights.step,
            "num_tensors": len(weights.state),
            "num_bytes": weights.num_bytes,
            "has_averages": weights.has_averages,
        }

    def best_trained(self, study_id: int) -> int:
        """Number of the best trial of a study. Raises ``NotFound`` if there is none, or if its result was told."""
        best = self.study(study_id)["best"]
        if best is None:
            raise NotFound(f"study {study_id} has no best trial yet; name one")
        number = int(best["trial"])
        if not self.trial(study_id, number)["attempts"]:
            raise NotFound(f"the result of the best trial, {number}, was told: it was not trained here; name another")
        return number

    def peaks(self, study_id: int) -> Iterator[JsonObject]:
        """Predicted and measured peak of every measured attempt, by trial, fetched page by page."""
        return self._http.pages(f"/v1/studies/{study_id}/peaks", {})

    def importances(self, study_id: int) -> JsonObject:
        """How much each parameter of the study matters to be among its best trials, the most important first."""
        return self._http.request("GET", f"/v1/studies/{study_id}/importances")

    def learned(self, study_id: int) -> list[JsonObject]:
        """The memory correction learned for each family of the study and each layout: bytes to add, and evidence."""
        return cast(list[JsonObject], self._http.request("GET", f"/v1/studies/{study_id}/learned"))

    # --- notices -------------------------------------------------------------------------------------------------

    def deliveries(self, study_id: int | None = None) -> Iterator[JsonObject]:
        """Who was told what by webhook or e-mail, and what came of it, the newest first, fetched page by page.

        With ``study_id`` only deliveries about this study.
        """
        return self._http.pages(_deliveries_of(study_id), {"newest_first": "true"})

    def test_receivers(self, study_id: int | None = None) -> list[JsonObject]:
        """Send a test to each receiver that a study names, or to those of SCAMP_NOTIFY; returns the deliveries.

        The controller sends them in a moment; ``deliveries`` says what came of it. Raises ``NotFound``, and
        ``InvalidInput`` if nobody is named.
        """
        answer = self._http.request("POST", f"{_deliveries_of(study_id)}:test")
        return cast(list[JsonObject], answer)

    # --- cluster and events --------------------------------------------------------------------------------------

    def cluster(self) -> JsonObject:
        """The devices of the cluster, the gangs on each, and the queue."""
        return self._http.request("GET", "/v1/cluster")

    def what_if(self, add: str) -> JsonObject:
        """When the live queue would be done with more devices, such as ``8xA100-40``, compared with now."""
        return self._http.request("GET", "/v1/cluster/what-if", params={"add": add})

    def events(self, after: int | None = None, *, study_id: int | None = None) -> Iterator[JsonObject]:
        """Follow the events of all studies or of one, without end.

        Each event comes once and in order, also when the service restarts. ``after`` replays the events after that id;
        None begins with the next event. Raises ``Unavailable`` when the service cannot be reached at first, or does not
        respond for more than half a minute.
        """
        return self._http.events(after, {} if study_id is None else {"study_id": study_id})


def _extract(packed: tarfile.TarFile, folder: Path) -> None:
    """Write the plain files of an archive below ``folder``: Python 3.11.0 to 3.11.3 know no filters.

    Raises ``InvalidInput`` for anything else in it.
    """
    for member in packed:
        path = PurePosixPath(member.name)
        content = packed.extractfile(member) if member.isfile() else None
        if content is None or path.is_absolute() or ".." in path.parts:
            raise InvalidInput(f"{member.name[:100]!r} has no place in a checkpoint, so its weights are not read")
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            shutil.copyfileobj(content, file)


def _json_of(body: JsonObject) -> str:
    """A study that is to be submitted, as JSON. Raises ``InvalidInput``."""
    try:
        return json.dumps(body, allow_nan=False, default=_resolved)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the request cannot be written as JSON: {error}") from None


def _resolved(node: Any) -> Any:
    """The plain value of a configuration of OmegaConf, which whoever passes one has imported."""
    omegaconf = sys.modules.get("omegaconf")
    if omegaconf is None or not omegaconf.OmegaConf.is_config(node):
        raise TypeError(f"{type(node).__name__} has no form in JSON")
    try:
        return omegaconf.OmegaConf.to_container(node, resolve=True, throw_on_missing=True, enum_to_str=True)
    except omegaconf.errors.OmegaConfBaseException as error:
        raise ValueError(str(error).splitlines()[0]) from None


def _upper(states: Iterable[str]) -> list[str]:
    """States as the API writes them."""
    return [state.upper() for state in states]


def _leaves(value: Any, name: str = "") -> dict[str, Any]:
    """Dotted name → value of everything in nested mappings."""
    if not isinstance(value, Mapping) or not value:
        return {name: value}
    prefix = f"{name}." if name else ""
    return {key: leaf for part, inner in value.items() for key, leaf in _leaves(inner, f"{prefix}{part}").items()}


def _deliveries_of(study_id: int | None) -> str:
    return "/v1/deliveries" if study_id is None else f"/v1/studies/{study_id}/deliveries"


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
