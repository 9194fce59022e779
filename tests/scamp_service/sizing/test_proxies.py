"""Proxies of a user's candidates, in a process of their own."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from scamp_service.sizing.proxies import ProxyValues
from scamp_service.sizing.tracing.trace_pool import TracePool
from tests.sizing import USER, MemoryBlobs


def test_values_are_kept_and_a_candidate_that_cannot_be_built_has_none(
    tmp_path: Path, warm_traces: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs, buffer = MemoryBlobs(), io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("mine.py", USER)
    code = blobs.put(buffer.getvalue())
    candidates = [{"width": 8}, {"width": 7}, {"width": 64}]
    proxies = ProxyValues(blobs, tmp_path)
    values_of = {name: proxies.values(name, "mine.py:Mine", code, candidates) for name in ("parameters", "grad_norm")}
    proxies.close()
    for narrow, refused, wide in values_of.values():
        assert refused is None and narrow and wide
    assert (narrow := values_of["parameters"][0]) and (wide := values_of["parameters"][2]) and narrow < wide
    monkeypatch.setattr(TracePool, "submit", lambda self, work: type("Done", (), {"result": lambda _: work(None)})())
    restarted = ProxyValues(blobs, tmp_path)
    assert restarted.values("grad_norm", "mine.py:Mine", code, candidates) == values_of["grad_norm"]
    restarted.close()
