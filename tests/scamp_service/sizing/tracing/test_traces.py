"""A trace is made once and cached, whatever the disk does."""

from __future__ import annotations

import lzma
import os
import resource
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from estimators.model import Candidate, Layout
from scamp_service.files import write_atomically
from scamp_service.sizing.tracing import traces
from scamp_service.sizing.tracing.trace_process import TraceFailed, TraceProcess
from scamp_service.sizing.tracing.traces import TraceCache, Tracer
from tests.sizing import MemoryBlobs

SMALL = Candidate("vit_digits", None, {"depth": 1, "width": 16, "batch": 8})


@pytest.fixture(scope="module")
def process(warm_traces: None) -> Iterator[TraceProcess]:
    started = TraceProcess()
    yield started
    started.end()


@pytest.mark.full
def test_a_trace_is_made_once_and_outlives_the_process_that_asked(process: TraceProcess, tmp_path: Path) -> None:
    trace = Tracer(MemoryBlobs(), tmp_path, 60).trace(process, SMALL, Layout())
    assert trace.batch == 8 and trace.num_params > 0
    assert Tracer(MemoryBlobs(), tmp_path, 60).cached(SMALL, Layout()) == trace
    assert Tracer(MemoryBlobs(), tmp_path, 60).cached(SMALL, Layout(recompute=True)) is None
    assert Tracer(MemoryBlobs(), tmp_path, 60, on_cuda=True).cached(SMALL, Layout()) is None


@pytest.mark.full
def test_a_damaged_file_counts_as_absent_and_is_replaced(process: TraceProcess, tmp_path: Path) -> None:
    trace = Tracer(MemoryBlobs(), tmp_path, 60).trace(process, SMALL, Layout())
    (file,) = tmp_path.rglob("*.xz")
    content = file.read_bytes()
    for damaged in (content[:-9], b"", b"null", lzma.compress(b"null"), lzma.compress(b'{"batch": 64}')):
        file.write_bytes(damaged)
        assert TraceCache(tmp_path / "traces").get(file.stem) is None
    assert Tracer(MemoryBlobs(), tmp_path, 60).trace(process, SMALL, Layout()) == trace
    assert file.read_bytes() == content


def test_memory_holds_the_traces_used_last_and_use_renews_their_files(
    process: TraceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "MOST_IN_MEMORY", 2)
    trace = Tracer(MemoryBlobs(), tmp_path, 60).trace(process, SMALL, Layout())
    (file,) = tmp_path.rglob("*.xz")
    now, answer = [0.0], asdict(trace)
    cache = TraceCache(tmp_path / "traces", clock=lambda: now[0])

    def age_of(file: Path) -> int:
        return int(time.time() - file.stat().st_mtime)

    os.utime(file, (0, 0))
    assert cache.get(file.stem) == trace and age_of(file) < 60, "a day without restart of the service begins"
    os.utime(file, (0, 0))
    assert cache.get(file.stem) == trace and age_of(file) > 60, "not at every use"
    now[0] += traces.RENEWAL_SECONDS
    assert cache.get(file.stem) == trace and age_of(file) < 60
    for name in ("aa", "bb"):
        cache.put(name, answer)
    for lost in (file, tmp_path / "traces" / "aa" / "aa.xz"):
        lost.unlink()
    assert cache.get(file.stem) is None, "it was used longest ago"
    assert cache.get("aa") == trace, "its file is gone, memory has it"
    cache.put("cc", answer)
    assert cache.get("aa") == trace and cache.get("cc") == trace


def test_a_trace_that_the_disk_refuses_is_still_a_trace(process: TraceProcess, tmp_path: Path) -> None:
    (tmp_path / "traces").write_text("a file is in the way of the folder")
    tracer = Tracer(MemoryBlobs(), tmp_path, 60)
    assert tracer.trace(process, SMALL, Layout()) == tracer.cached(SMALL, Layout())


def test_a_file_that_the_disk_refuses_leaves_nothing_behind(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_atomically(tmp_path / "file", bytes(5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def test_what_failed_is_not_remembered(process: TraceProcess, tmp_path: Path) -> None:
    tracer, wrong = Tracer(MemoryBlobs(), tmp_path, 60), Candidate("vit_digits", None, {"patch": 3})
    with pytest.raises(TraceFailed, match="patch must be 1, 2 or 4") as failed:
        tracer.trace(process, wrong, Layout())
    assert failed.value.infeasible and tracer.cached(wrong, Layout()) is None
    assert not tracer.cache.has_any()


def test_a_key_tells_apart_all_that_changes_a_trace(tmp_path: Path) -> None:
    cache = TraceCache(tmp_path)
    params = {"lr": 0.1, "weight_decay": 0.1, "width": 8}
    keys = {
        cache.key(Candidate("a", None, params), Layout()),
        cache.key(Candidate("b", None, params), Layout()),
        cache.key(Candidate("a", "code", params), Layout()),
        cache.key(Candidate("a", None, {**params, "width": 9}), Layout()),
        cache.key(Candidate("a", None, {**params, "weight_decay": 0.0}), Layout()),
        cache.key(Candidate("a", None, params), Layout(dp_shard=2)),
        cache.key(Candidate("a", None, params), Layout(recompute=True)),
    }
    assert len(keys) == 7
    assert cache.key(Candidate("a", None, {**params, "lr": 0.2, "weight_decay": 0.3}), Layout()) in keys
