"""Takes in studies without holding up anything else: own threads, bounded queues, and 503 when these are full.

A user's files are imported in a child process, one study at a time, which may take a minute. Pages, health checks and
studies without files never wait for that.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from starlette.exceptions import HTTPException

from api.access.allowed import expect
from api.submission import MAX_SPEC_BYTES, parse_submission
from placement.model import Cluster
from scamp_service.access.model import EVERYTHING, Access, Role
from scamp_service.model import Study
from scamp_service.settings import Settings
from scamp_service.sizing.submission_check import check_workload
from scamp_service.sizing.tracing.trace_process import TraceProcess
from scamp_service.sizing.user_workload import with_space
from scamp_service.store.parts.part import no_study
from scamp_service.store.store import Store
from scamp_service.study.spec import StudySpec
from scamp_service.study.user_code.bundling import with_files
from scamp_service.study.user_code.checking import check_code

MOST_SUBMISSIONS = 64
MOST_UPLOADS = 16
"""Bodies larger than 1 MiB that are read or wait at once. Each takes up to 150 MiB while its files are unpacked."""
MOST_IMPORTS = 8
"""Studies whose files are imported or wait for that; the last one waits for some seconds, at most for minutes."""
RETRY_SECONDS = 5
_Answer = TypeVar("_Answer")


class Admission:
    """The studies that are being submitted. Used from the event loop; its own threads do the work."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store, self._settings = store, settings
        self._parsers = ThreadPoolExecutor(2, "submission")
        self._importer = ThreadPoolExecutor(1, "import")
        self._process = TraceProcess()
        self._closed = False
        self.num_under_way = {"submissions": 0, "uploads": 0, "imports": 0}
        self._under_way: dict[str, tuple[bytes, asyncio.Future[Study]]] = {}

    @contextmanager
    def room_for(self, declared: str | None) -> Iterator[None]:
        """Hold room for a body with this Content-Length (None: unknown). Raises ``HTTPException`` 503."""
        small = declared is not None and declared.isdecimal() and int(declared[:20]) <= MAX_SPEC_BYTES
        with self._place("submissions", MOST_SUBMISSIONS):
            if small:
                yield
                return
            with self._place("uploads", MOST_UPLOADS):
                yield

    async def submit(
        self, body: bytes, content_type: str, key: str | None, store: Store, access: Access = EVERYTHING
    ) -> Study:
        """The study of this body of JSON or a form, created in ``store`` unless its idempotency key is known.

        A request that is repeated while the first is under way waits for the same answer. Raises ``ScampError``, and
        ``HTTPException`` 413 and 503.
        """
        if key is None:
            return await self._submit(body, content_type, None, store, access)
        same = self._under_way.get(key)
        if same is not None and same[0] == body:
            return await asyncio.shield(same[1])
        task = asyncio.ensure_future(self._submit(body, content_type, key, store, access))
        if same is None:
            self._under_way[key] = (body, task)
            task.add_done_callback(lambda _: self._under_way.pop(key))
        return await asyncio.shield(task)

    async def parsed(self, body: bytes, content_type: str, access: Access) -> tuple[StudySpec, bytes | None]:
        """The study and the zip of its files in a body that ``access`` may submit. Raises as ``submit`` does."""
        return await self._in(self._parsers, lambda: self._parse(body, content_type, access))

    def close(self) -> None:
        """End the import that is running, and forget those that wait."""
        self._closed = True
        self._parsers.shutdown(wait=False, cancel_futures=True)
        self._importer.shutdown(wait=False, cancel_futures=True)
        self._process.kill()

    async def _submit(self, body: bytes, content_type: str, key: str | None, store: Store, access: Access) -> Study:
        spec, code = await self.parsed(body, content_type, access)
        self._settings.expect_priority(spec.project, spec.priority)
        store.users.expect_priority(access.name, spec.priority)
        self._settings.expect_receivers(spec.notify)
        sha256 = None if code is None else await self._in(self._parsers, lambda: hashlib.sha256(code).hexdigest())
        if key is not None and spec.space:
            study = await self._in(self._parsers, lambda: self._earlier_study(spec, sha256, key))
            if study is not None:
                return study
        if code is None:
            warnings = check_workload(spec, None)
        else:
            with self._place("imports", MOST_IMPORTS):
                spec, warnings = await self._in(self._importer, partial(self._import, spec, code))
        return await self._in(self._parsers, lambda: _create(store, spec, code, key, warnings))

    def _parse(self, body: bytes, content_type: str, access: Access) -> tuple[StudySpec, bytes | None]:
        """(study, zip of the user's files or None), both checked as far as they can be without running a file."""
        submission = parse_submission(body, content_type)
        spec, code = submission.spec, submission.code
        expect(access, Role.EDITOR, spec.project)
        if submission.code_of is not None:
            self._expect_readable(submission.code_of, access)
        if submission.code_of is not None and (sha256 := self._store.studies.get(submission.code_of).code) is not None:
            code = with_files(self._store.blobs.get(sha256), code)
        check_code(spec.workload, code, sampler=spec.search.sampler.name)
        return spec, code

    def _import(self, spec: StudySpec, code: bytes) -> tuple[StudySpec, list[str]]:
        self._process = TraceProcess()
        if self._closed:
            return spec, []
        spec = with_space(spec, code, self._process)
        return spec, check_workload(spec, code, self._process)

    def _earlier_study(self, spec: StudySpec, sha256: str | None, key: str) -> Study | None:
        return self._store.studies.of_key(spec.as_given(), sha256, key)

    def _expect_readable(self, study_id: int, access: Access) -> None:
        if not (access.sees_all or access.may(Role.VIEWER, self._store.studies.project(study_id))):
            raise no_study(study_id)

    async def _in(self, threads: ThreadPoolExecutor, work: Callable[[], _Answer]) -> _Answer:
        return await asyncio.get_running_loop().run_in_executor(threads, work)

    @contextmanager
    def _place(self, kind: str, most: int) -> Iterator[None]:
        if self.num_under_way[kind] >= most:
            detail = f"{most} {kind} are under way already; send the same request again in a few seconds"
            raise HTTPException(503, detail, {"Retry-After": str(RETRY_SECONDS)})
        self.num_under_way[kind] += 1
        try:
            yield
        finally:
            self.num_under_way[kind] -= 1


def _create(store: Store, spec: StudySpec, code: bytes | None, key: str | None, warnings: list[str]) -> Study:
    return store.studies.create(
        spec.to_json(),
        request=spec.as_given(),
        code=store.blobs.put(code) if code is not None else None,
        idempotency_key=key,
        warnings=[*warnings, *_absent_kinds(store, spec.kinds)],
        now=time.time(),
    )


def _absent_kinds(store: Store, kinds: Sequence[str]) -> list[str]:
    """A warning that no present device is of the kinds to which a study is bound; none before devices are known."""
    recorded = store.cluster.recorded()
    cluster = Cluster(tuple(row.device for row in recorded[0].devices) if recorded else ())
    if not cluster.devices or cluster.of_kinds(frozenset(kinds)).devices:
        return []
    return [f"{cluster.why_none_of(kinds)}: its candidates are INFEASIBLE"]
