"""Runs the sampler of one study in a process of its own: samplers of users, and those that are slow or large.

The process can be ended at any time, and is ended when it takes too long. It gets the spec, the user's files and the
trials, and its candidates are checked: nothing that it answers is trusted.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from scamp_service.search.earlier import to_json
from scamp_service.search.history import Observation, Past, PastTrial
from scamp_service.search.proposer import SearchEnded
from scamp_service.study.spaces.constraints import ParameterConstraints
from scamp_service.study.spaces.slots import is_candidate, slots_of
from scamp_service.study.spec import StudySpec
from scamp_service.study.values import Params
from scamp_service.temporary import make_folder, remove_folder
from scamp_service.user_process import start_for_user

COMMAND = [sys.executable, "-m", "scamp_service.search.running.sampler_server"]
LIMIT_SECONDS = 600.0
"""Most seconds of one proposal."""
MOST_ANSWER_BYTES = 2**26
MEMORY_BYTES = 4 * 2**30
"""Most private memory of the process, so that a sampler cannot take what trials need."""


class SamplerFailed(SearchEnded):
    """A sampler in a process of its own raised an error, or proposed what is not a candidate."""


class RemoteSearch:
    """Proposes the candidates of one study from a process of its own, which remembers the trials that it was given.

    ``code`` is the zip of the user's files, and ``earlier`` are trials of earlier studies. ``close`` may be called from
    any thread.
    """

    regret: float | None = None
    """As in ``Search``."""
    parents: Sequence[int | None] = ()
    """No sampler that runs in a process gives its candidates parents."""
    reasons: Sequence[str] = ()
    """As in ``Search``: nothing."""

    def __init__(
        self,
        spec: StudySpec,
        code: bytes | None,
        earlier: Sequence[Observation] = (),
        *,
        limit_seconds: float = LIMIT_SECONDS,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self._spec, self._limit_seconds, self._memory_bytes = spec, limit_seconds, memory_bytes
        self._slots, self._constraints = slots_of(spec.space), ParameterConstraints(spec.constraints)
        self._lock, self._is_closed = threading.Lock(), False
        self._folder, self._unread = make_folder(), b""
        self._child, self._lent = start_for_user(COMMAND)
        files: Mapping[str, str] = {}
        if code is not None:
            zipped, unpacked = self._folder / "code.zip", self._folder / "code"
            zipped.write_bytes(code)
            if self._lent is not None:
                zipped, unpacked = self._lent.copy(zipped), self._lent.unpacked / "code"
            files = {"code_zip": str(zipped), "code_dir": str(unpacked)}
        self._first: Mapping[str, Any] | None = {
            "spec": spec.to_json(),
            "earlier": to_json(earlier),
            "memory_bytes": memory_bytes,
            **files,
        }

    def propose(self, history: Iterable[Past], first_number: int, count: int, picks: int = 1) -> list[Params]:
        """Parameters of proposals, as ``proposals.Search.propose`` returns them.

        Raises ``SamplerFailed`` for an error of the sampler, ``SearchEnded`` when it has no candidates,
        ``TimeoutError`` when it takes too long, and ``RuntimeError`` when its process is lost. Afterwards this search
        is of no use.
        """
        request = {
            "changed": [asdict(PastTrial.of(past)) for past in history],
            "first_number": first_number,
            "count": count,
        }
        request["picks"] = picks
        first, self._first = self._first, None
        deadline = time.monotonic() + self._limit_seconds
        try:
            for message in (first, request):
                if message is not None:
                    self._send(message)
            answer = self._answer(deadline)
        except BaseException:
            self.close()
            raise
        if "ended" in answer:
            raise SearchEnded(str(answer["ended"])[:1000])
        if "error" in answer:
            raise SamplerFailed(f"the sampler failed: {str(answer['error'])[:1000]}")
        regret = answer.get("regret")
        self.regret = float(regret) if isinstance(regret, int | float) else None
        return self._checked(answer.get("candidates"), max(count, picks))

    def close(self) -> None:
        """End the process. A thread that waits for its answer gets an error."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._child.kill()
        with suppress(BrokenPipeError), self._child:  # closes the pipes and waits
            pass
        if self._lent is not None:
            self._lent.remove()
        remove_folder(self._folder)

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(message).encode() + b"\n")
            self._child.stdin.flush()
        except (OSError, ValueError) as error:  # ValueError: the pipe was closed by ``close``
            raise RuntimeError(f"the process of the sampler {self._how_it_ended()}") from error

    def _answer(self, deadline: float) -> dict[str, Any]:
        stream = self._child.stdout
        assert stream is not None
        while b"\n" not in self._unread:
            try:
                ready, _, _ = select.select([stream], [], [], max(0.0, min(1.0, deadline - time.monotonic())))
                data = os.read(stream.fileno(), 65536) if ready else b""
            except (OSError, ValueError):  # closed by ``close``
                raise RuntimeError("the process of the sampler was ended") from None
            if (ready and not data) or len(self._unread) > MOST_ANSWER_BYTES:
                raise RuntimeError(f"the process of the sampler {self._how_it_ended()}")
            if not ready and time.monotonic() >= deadline:
                raise TimeoutError(f"the sampler has not answered for {self._limit_seconds:.0f} s, and was ended")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise RuntimeError("the process of the sampler gave an answer that is not JSON")
        return answer

    def _how_it_ended(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            status = self._child.wait(1.0)
            number = -status if status < 0 else status - 128  # of its own process, or of the worker in it
            if number <= 0:
                return f"ended with status {status}"
            is_memory = number in (signal.SIGABRT, signal.SIGKILL)  # as far as a signal can tell
            limit = f"; it may hold {self._memory_bytes >> 20} MiB" if is_memory else ""
            return f"was killed by signal {number}{limit}"
        return "closed its pipes"

    def _checked(self, candidates: Any, count: int) -> list[Params]:
        """The candidates of an answer, each with what is fixed. Raises ``SamplerFailed``."""
        if not isinstance(candidates, list) or len(candidates) > count:
            raise SamplerFailed("the sampler's process did not answer with candidates")
        return [self._candidate(candidate) for candidate in candidates]

    def _candidate(self, params: Any) -> Params:
        spec = self._spec
        is_valid = (
            isinstance(params, dict)
            and params.keys() <= spec.space.keys() | spec.fixed.keys()
            and is_candidate(self._slots, params)
            and not self._constraints.broken(params)
        )
        if not is_valid:
            raise SamplerFailed(f"the sampler proposed what is not a candidate of the space: {str(params)[:200]}")
        return {**spec.fixed, **params}
