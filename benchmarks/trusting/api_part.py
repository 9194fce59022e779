"""Measures how soon the API answers while 45 studies are submitted at once, slowly."""

from __future__ import annotations

import base64
import io
import socket
import statistics
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from api.__main__ import server_for
from scamp_service.processes.addresses import free_port
from scamp_service.settings import Settings

NUM_UPLOADS = 45
IMPORT_SECONDS = 3
PATHS = ("/healthz", "/")
TITLE = "The API while studies are uploaded"
HEADER = ("/healthz ms", "/ ms", "created", "told to retry", "case")
ABOUT = f"""\
95th percentile of the time to an answer, while {NUM_UPLOADS} clients submit a study each, whose files take
{IMPORT_SECONDS} s to import, or whose bodies arrive slowly. The API runs in the process that measures."""
_SOURCE = f"""
import time
time.sleep({IMPORT_SECONDS})
from workloads.protocol import Workload

class Mine(Workload):
    num_train = num_eval = 1
    build_model = train_batch = eval_batch = loss = evaluate = None
"""


@dataclass(frozen=True, slots=True)
class Result:
    """95th percentiles in milliseconds, and how many uploads were accepted or refused for now."""

    healthz_ms: float
    page_ms: float
    created: int
    retried: int

    def row(self) -> list[str]:
        return [f"{self.healthz_ms:.0f}", f"{self.page_ms:.0f}", str(self.created), str(self.retried)]


def cases(quick: bool, seed: int) -> Sequence[str]:
    return list(UPLOADS)[1:] if quick else list(UPLOADS)


def measure(case: str, seconds: float) -> Result:
    """Ask for both pages in turn while the uploads are under way; ``seconds`` is not used."""
    with TemporaryDirectory() as folder, _served(Path(folder)) as url, ThreadPoolExecutor(NUM_UPLOADS) as uploads:
        answers = [uploads.submit(UPLOADS[case], url, number) for number in range(NUM_UPLOADS)]
        healthz_ms, page_ms = (1000 * p95(_times(url + path, 6.0)) for path in PATHS)
    statuses = [answer.result() for answer in answers]
    return Result(healthz_ms, page_ms, statuses.count(201), statuses.count(503))


def figures(results: Sequence[Result]) -> dict[str, float]:
    return {"healthz_under_uploads_ms": max(max(result.healthz_ms, result.page_ms) for result in results)}


def p95(times: Sequence[float]) -> float:
    """The 95th percentile."""
    return statistics.quantiles(times, n=20)[-1] if len(times) > 1 else max(times)


def _drip(url: str, number: int) -> int:
    """Send a body so slowly that it does not arrive meanwhile; 0: no answer."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as sender:
        head = f"POST /v1/studies HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        sender.sendall(f"{head}Content-Length: 3000000\r\n\r\n".encode())
        for _ in range(60):
            try:
                sender.sendall(b" " * 1000)
            except OSError:
                return 503  # refused before its end
            time.sleep(0.2)
    return 0


def _submit(url: str, number: int) -> int:
    spec = {
        "name": f"upload {number}",
        "workload": "net.py:Mine",
        "objective": {"metric": "loss"},
        "space": {"lr": {"low": 0.1, "high": 1.0}},
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("net.py", _SOURCE)
    body = {"spec": spec, "code_zip": base64.b64encode(packed.getvalue()).decode()}
    return httpx.post(f"{url}/v1/studies", json=body, timeout=600).status_code


def _times(address: str, seconds: float) -> list[float]:
    times: list[float] = []
    end = time.monotonic() + seconds
    with httpx.Client(timeout=60) as client:
        while time.monotonic() < end:
            began = time.monotonic()
            client.get(address).raise_for_status()
            times.append(time.monotonic() - began)
            time.sleep(0.02)
    return times


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    port = free_port("127.0.0.1", 8792)
    server = server_for(Settings(data_dir=folder, port=port))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


UPLOADS: Mapping[str, Callable[[str, int], int]] = {
    f"{NUM_UPLOADS} studies whose files take {IMPORT_SECONDS} s to import": _submit,
    f"{NUM_UPLOADS} bodies that arrive slowly": _drip,
}
