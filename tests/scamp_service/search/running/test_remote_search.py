"""Samplers in processes of their own: the same candidates, and an end whatever they do."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scamp_service.lifecycle import TrialState
from scamp_service.search.proposals import Search
from scamp_service.search.proposer import Proposal, SearchEnded
from scamp_service.search.running.remote_search import RemoteSearch, SamplerFailed
from scamp_service.search.running.threads import ThreadProposer
from scamp_service.study.spaces.constraints import ParameterConstraints
from scamp_service.study.spec import StudySpec
from tests.scamp_service.search.studies import CONDITIONAL, GRID, Trial, course, study
from tests.waiting import until

SAMPLERS = """
import os, time
import optuna

ready = optuna.samplers.TPESampler(seed=1, n_startup_trials=3)

def nsga(seed):
    print("noise on stdout")
    return optuna.samplers.NSGAIISampler(seed=seed, population_size=4)

def hangs(seed):
    while True:
        pass

def raises(seed):
    raise KeyError("no such thing, " + os.environ.get("SCAMP_API_TOKEN", "no token"))

def dies(seed):
    os.kill(os.getpid(), 9)

def aborts(seed):
    os.abort()

def large(seed):
    bytearray(2**30)

"""


def code() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("own.py", SAMPLERS)
    return buffer.getvalue()


def spec_of_sampler(name: str, space: dict[str, Any] = GRID) -> StudySpec:
    return study(space, f"own.py:{name}")


@contextmanager
def remote(spec: StudySpec, **more: Any) -> Iterator[RemoteSearch]:
    search = RemoteSearch(spec, code(), **more)
    try:
        yield search
    finally:
        search.close()


def history() -> list[Trial]:
    return list({trial.number: trial for trial in course(16, seed=1, space=CONDITIONAL)}.values())


def test_a_built_in_sampler_proposes_the_same_in_a_process() -> None:
    spec, trials = study(CONDITIONAL, "tpe", fixed={"batch": 8}, start_with=[{"width": 8}]), history()
    with remote(spec) as search:
        assert search.propose(trials[:12], 12, 2) == Search(spec).propose(trials[:12], 12, 2)
        assert search.propose(trials[12:], 16, 2) == Search(spec).propose(trials, 16, 2), "it remembers the first ones"


@pytest.mark.full
def test_a_sampler_in_a_process_gets_all_objectives_of_a_trial() -> None:
    first_objective, other = ({"metric": metric, "direction": "minimize"} for metric in ("m", "n"))
    spec = study(GRID, "own.py:nsga", objective=first_objective, objectives=[first_objective, other])
    with remote(spec) as search:
        (params,) = search.propose([], 0, 1)
        ended = [Trial(0, params, TrialState.COMPLETED, 10, 0.5, (0.5, 2.0))]
        proposals = [search.propose(ended if number == 1 else [], number, 1) for number in range(1, 3)]
    assert all(len(candidates) == 1 for candidates in proposals)


@pytest.mark.full
@pytest.mark.parametrize("name", ["ready", "nsga"])
def test_a_sampler_of_the_user_continues_with_the_same_candidates_after_a_restart(name: str) -> None:
    spec, trials = spec_of_sampler(name, CONDITIONAL), history()
    with remote(spec) as search:
        first = search.propose(trials[:12], 12, 1)
        several = search.propose(trials[12:], 16, 3)
    with remote(spec) as search:
        assert search.propose(trials, 16, 3) == several
    assert len({str(proposal) for proposal in [*first, *several]}) == 4, "each trial has random numbers of its own"


@pytest.mark.sample
@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("raises", SamplerFailed, "KeyError: 'no such thing, no token'"),
        ("dies", RuntimeError, "the process of the sampler was killed by signal 9; it may hold 512 MiB"),
        ("aborts", RuntimeError, "the process of the sampler was killed by signal 6; it may hold 512 MiB"),
        ("large", SamplerFailed, "the sampler failed: it needs more than the 512 MiB that its process may hold: "),
        ("hangs", TimeoutError, "the sampler has not answered for 3 s, and was ended"),
    ],
)
def test_whatever_a_sampler_does_is_one_error_and_leaves_no_process(
    name: str, error: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCAMP_API_TOKEN", "secret")
    with remote(spec_of_sampler(name), limit_seconds=3.0 if name == "hangs" else 60.0, memory_bytes=2**29) as search:
        with pytest.raises(error) as caught:
            search.propose((), 0, 1)
        assert words in str(caught.value)
        assert search._child.poll() is not None or error is SamplerFailed


def test_answers_are_not_trusted_and_an_impossible_constraint_is_the_reason_here_too() -> None:
    spec = study(GRID, "random", constraints=["b > 5"], fixed={"batch": 8})
    with remote(spec) as search:
        good = {"a": "x", "b": 5, "c": 0.1, "batch": 8}
        search._constraints = ParameterConstraints(["b > 1"])
        assert search._checked([{**good, "batch": 8}], 1) == [good]
        for wrong in ({**good, "a": "z"}, {**good, "b": 1}, {**good, "more": 1}, {"a": "x"}, None, [good]):
            with pytest.raises(SamplerFailed, match="not a candidate of the space"):
                search._checked([wrong], 1)
        for answer in (None, [good, good], {"a": 1}):
            with pytest.raises(SamplerFailed, match="did not answer with candidates"):
                search._checked(answer, 1)
        with pytest.raises(SearchEnded, match="the constraints reject every candidate"):
            search.propose((), 0, 1)


@pytest.mark.full
def test_a_sampler_that_hangs_is_ended_when_its_study_is_forgotten() -> None:
    proposer = ThreadProposer(code_of=lambda study_id: code())
    proposer.request(1, spec_of_sampler("hangs"), (), 0, 1)
    proposer.request(2, spec_of_sampler("ready"), (), 0, 2)
    until(lambda: isinstance(proposer.requests()[2].answer, Proposal), "a proposal")
    (job,) = proposer._running
    assert isinstance(job.search, RemoteSearch)
    workers = _children(job.search._child.pid)
    assert workers and proposer.requests()[1].answer is None
    proposer.forget_ended([2])
    until(
        lambda: not proposer._running and not any(Path(f"/proc/{pid}").exists() for pid in workers),
        "the end of the processes",
    )
    assert proposer.remembers(2)
    proposer.close()
    assert not proposer.remembers(2)


def _children(pid: int) -> list[int]:
    """Processes whose parent is this one."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
            if parent == pid or (parent == os.getpid() and int(entry.name) == pid):
                pids.append(int(entry.name))
    return pids
