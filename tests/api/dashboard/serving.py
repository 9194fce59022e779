"""The application in a thread, and what tests read off its pages."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from playwright.sync_api import FloatRect, Page, expect

from api.app import create_app
from scamp_service.settings import Settings
from tests.waiting import PATIENCE_SECONDS


@contextmanager
def serving(settings: Settings, port: int = 0) -> Iterator[str]:
    """The real application on a free port of this machine, in a thread."""
    listener = socket.create_server(("127.0.0.1", port))
    config = uvicorn.Config(create_app(settings), log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE_SECONDS)
        listener.close()


def trial_numbers(page: Page) -> list[int]:
    return [int(number) for number in page.locator("#trials tr.row td:first-child").all_text_contents()]


def plot_in(page: Page, chart: str) -> FloatRect:
    """Where the plot of a chart is, once it stays there: a page that is being drawn moves charts, and replaces them."""
    page.locator(chart).scroll_into_view_if_needed()
    expect(page.locator(f"{chart} canvas")).to_be_visible()
    before: FloatRect | None = None
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        box = page.locator(f"{chart} .u-over").bounding_box()
        if box is not None and box == before:
            return box
        assert time.monotonic() < deadline, f"{chart} does not come to rest"
        before = box
        page.wait_for_timeout(50)
