"""Measures how soon the API answers while 45 studies whose files take seconds to import are submitted at once."""

from __future__ import annotations

import base64
import io
import json
import statistics
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from api.__main__ import server_for
from scamp_service.processes.supervise import free_port
from scamp_service.settings import Settings

NUM_UPLOADS = 45
IMPORT_SECONDS = 3
PATHS = ("/healthz", "/")
_SOURCE = f"""
import time
time.sleep({IMPORT_SECONDS})
from workloads.protocol import Workload

class Mine(Workload):
    num_train = num_eval = 1
    build_model = train_batch = eval_batch = loss = evaluate = None
"""


def healthz_under_uploads(seconds: float = 12.0) -> dict[str, float]:
    """95th percentile in milliseconds of ``/healthz`` and ``/``, the slower of the two, and how the uploads ended."""
    with TemporaryDirectory() as folder, _served(Path(folder)) as url, ThreadPoolExecutor(NUM_UPLOADS) as uploads:
        answers = [uploads.submit(_submit, url, number) for number in range(NUM_UPLOADS)]
        times = {path: _times(url + path, seconds / len(PATHS)) for path in PATHS}
    statuses = [answer.result() for answer in answers]
    p95 = max(statistics.quantiles(each, n=20)[-1] for each in times.values())
    return {
        "healthz_under_uploads_ms": round(1000 * p95, 1),
        "uploads_created": statuses.count(201),
        "uploads_told_to_retry": statuses.count(503),
    }


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


if __name__ == "__main__":
    print(json.dumps(healthz_under_uploads()))
