"""The process of one study's sampler: ``python -m scamp_service.search.running.sampler_server``.

It reads lines of JSON on stdin: first the spec and the user's files, then requests with the trials that have changed;
and answers each request with a line. A second process does the work, so that it ends with ours however its code hangs.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

_PR_SET_PDEATHSIG = 1
_SIGNAL = 128
"""Exit status of our process for a worker that was killed by signal n, less n, as of a shell."""


def main() -> None:
    """Serve until stdin ends."""
    parent = os.getpid()
    worker = os.fork()
    if worker == 0:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            _serve()
        os._exit(0)
    _watch(worker)


def _watch(worker: int) -> None:
    """Wait until the worker ends, or end it when nobody writes to stdin any more."""
    pipe = select.poll()
    pipe.register(0, 0)  # reports only that the other end was closed
    while not pipe.poll(200):
        ended, status = os.waitpid(worker, os.WNOHANG)
        if ended:
            os._exit(_SIGNAL + os.WTERMSIG(status) if os.WIFSIGNALED(status) else 1)
    os.kill(worker, signal.SIGKILL)
    os._exit(0)


def _serve() -> None:
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what users' code prints must not look like an answer
    for answer in _answers(requests):
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def _answers(requests: IO[bytes]) -> Iterator[Mapping[str, Any]]:
    from scamp_service.search.history import PastTrial
    from scamp_service.search.proposer import SearchEnded

    setup, search = json.loads(next(requests)), None
    _limit_memory(setup["memory_bytes"])
    for line in requests:
        request = json.loads(line)
        try:
            search = _search(setup) if search is None else search
            changed = [PastTrial.from_json(row) for row in request["changed"]]
            candidates = search.propose(changed, request["first_number"], request["count"], request["picks"])
            yield {"candidates": json.loads(json.dumps(candidates, allow_nan=False)), "regret": search.regret}
        except SearchEnded as error:
            yield {"ended": str(error)}
        except BaseException as error:  # also SystemExit and KeyboardInterrupt that a user's code raises
            yield {"error": _words(error, setup)}


def _limit_memory(num_bytes: int) -> None:
    """Let allocations beyond ``num_bytes`` of private memory fail, so that a sampler cannot take that of others."""
    if sys.platform == "linux":
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        most = num_bytes if hard == resource.RLIM_INFINITY else min(num_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _search(setup: Mapping[str, Any]) -> Any:
    from scamp_service.search.earlier import from_json
    from scamp_service.search.proposals import Search
    from scamp_service.search.samplers.user_sampler import UserSampler
    from scamp_service.study.sampler_options import FileOptions
    from scamp_service.study.spec import StudySpec

    spec = StudySpec.model_validate(setup["spec"])
    sampler, earlier = spec.search.sampler, from_json(setup["earlier"])
    if not isinstance(sampler, FileOptions):
        return Search(spec, None, earlier)
    from workloads.files.archive import unpack_code
    from workloads.loading import load_attribute

    code_dir = Path(setup["code_dir"])
    unpack_code(Path(setup["code_zip"]).read_bytes(), code_dir)
    attribute = load_attribute(sampler.name, code_dir)
    return Search(spec, lambda spec: UserSampler(spec, attribute), earlier)


def _words(error: BaseException, setup: Mapping[str, Any]) -> str:
    from workloads.refusals import WorkloadError, explain

    if isinstance(error, WorkloadError) or "code_dir" not in setup:
        words = str(error) if isinstance(error, WorkloadError) else f"{type(error).__name__}: {error}"
    else:
        words = explain(error, Path(setup["code_dir"]))
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):  # the words of torch
        return f"it needs more than the {setup['memory_bytes'] >> 20} MiB that its process may hold: {words}"
    return words


if __name__ == "__main__":
    main()
