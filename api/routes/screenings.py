"""Screens spaces of studies that are being written, one at a time, each in a process that nothing else waits for."""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.exceptions import HTTPException

from scamp_service.errors import InvalidInput
from scamp_service.settings import ROOT, Settings
from scamp_service.simulation.forecast import recorded_cluster
from scamp_service.sizing.estimate import target
from scamp_service.store.store import Store
from scamp_service.study.spec import StudySpec

MOST_WAITING = 8
MOST_SECONDS = 300.0
LOOK_SECONDS = 0.5
"""How often it is checked whether somebody still waits for the answer."""
COMMAND = (sys.executable, "-m", "scamp_service.sizing.screen.drafted")


class Screenings:
    """The screenings that run or wait. Used from the event loop."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store, self._settings = store, settings
        self._turn, self._num = asyncio.Lock(), 0

    async def screen(
        self, spec: StudySpec, code: bytes | None, num_candidates: int, is_gone: Callable[[], Awaitable[bool]]
    ) -> dict[str, Any]:
        """Counts of the candidates that fit on the cluster (``drafted.counted``), and its devices.

        Without a cluster these are virtual devices. It ends early once the client ``is_gone``. Raises ``InvalidInput``,
        and ``HTTPException`` 503.
        """
        if self._num >= MOST_WAITING:
            raise HTTPException(503, "other spaces are being screened; ask again in a minute", {"Retry-After": "60"})
        cluster = recorded_cluster(self._store)
        if not cluster.devices:
            cluster, _ = target(self._settings, None, None, None)
        self._num += 1
        try:
            async with self._turn:
                question = pickle.dumps((spec, code, cluster, num_candidates, self._settings.data_dir))
                answer = await _ran(question, is_gone)
        finally:
            self._num -= 1
        if "error" in answer:
            raise InvalidInput(answer["error"])
        largest = max(cluster.devices, key=lambda device: device.capacity_mib)
        return answer | {"num_devices": len(cluster.devices), "largest_mib": largest.capacity_mib}


async def _ran(question: bytes, is_gone: Callable[[], Awaitable[bool]]) -> dict[str, Any]:
    """The answer of a new process, which is killed when that takes too long or nobody waits for it any more."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*COMMAND, stdin=pipe, stdout=pipe, cwd=ROOT)
    communication, clock = asyncio.ensure_future(process.communicate(question)), asyncio.get_running_loop()
    latest = clock.time() + MOST_SECONDS
    try:
        while not (await asyncio.wait({communication}, timeout=LOOK_SECONDS))[0]:
            if clock.time() > latest or await is_gone():
                raise HTTPException(
                    503, f"the screening was ended after {MOST_SECONDS:.0f} s; `scamp screen` may take longer"
                )
    finally:
        if process.returncode is None:
            process.kill()
    output, _ = await communication
    if process.returncode:
        raise HTTPException(503, "the screening has failed; the log of the service says why")
    answer: dict[str, Any] = json.loads(output.splitlines()[-1])
    return answer
