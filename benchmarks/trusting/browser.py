"""One headless Chromium, driven by its DevTools protocol over two pipes, so that no package for browsers is needed.

https://chromedevtools.github.io/devtools-protocol: messages are JSON, each ended by a NUL.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

ANSWER_SECONDS = 60.0
OPTIONS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--disable-gpu",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--window-size=1280,900",
)

# Chromium reads commands from file 3 and writes answers to file 4. (Not every shell can redirect files above 9.)
_EXEC = "import os, sys; [os.dup2(int(sys.argv[n]), n + 2) for n in (1, 2)]; os.execv(sys.argv[3], sys.argv[3:])"


def find_chromium() -> str | None:
    """Path of the installed Chromium or Chrome; None if there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for path in map(shutil.which, names) if path), None)


class Page:
    """One page of a running Chromium."""

    def __init__(self, commands: int, answers: int) -> None:
        """``commands`` and ``answers`` are file descriptors of the pipes to and from Chromium."""
        self._commands, self._answers = commands, answers
        self._last_id, self._unread = 0, b""
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Performance"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a command. Raises ``RuntimeError`` with the words of Chromium if it fails."""
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_SECONDS
        while (answer := self._next(deadline)).get("id") != self._last_id:
            pass  # an event
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error'].get('message')}")
        result: dict[str, Any] = answer["result"]
        return result

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page, which must be JSON."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails'].get('text')}")
        return answer["result"].get("value")

    def wait_for(self, expression: str, seconds: float) -> Any:
        """The value of an expression once it is neither null nor false. Raises ``TimeoutError``."""
        deadline = time.monotonic() + seconds
        while not (result := self.value(expression)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the page did not come to {expression} within {seconds:g} s")
            time.sleep(0.1)
        return result

    def metrics(self) -> Mapping[str, float]:
        """Counters of the page, such as ``TaskDuration``: seconds that its main thread has worked."""
        return {metric["name"]: metric["value"] for metric in self.call("Performance.getMetrics")["metrics"]}

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"Chromium did not answer within {ANSWER_SECONDS:g} s")
            part = os.read(self._answers, 2**20)
            if not part:
                raise RuntimeError("Chromium has ended")
            self._unread += part
        message, _, self._unread = self._unread.partition(b"\0")
        event: dict[str, Any] = json.loads(message)
        return event


@contextmanager
def opened(chromium: str) -> Iterator[Page]:
    """A page of a new Chromium with a profile of its own, which ends with the block."""
    commands_read, commands_write = os.pipe()
    answers_read, answers_write = os.pipe()
    options = [*OPTIONS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]  # as root there is no sandbox
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        pipes = (str(commands_read), str(answers_write))
        command = [sys.executable, "-c", _EXEC, *pipes, chromium, *options, f"--user-data-dir={profile}", "about:blank"]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, pass_fds=(commands_read, answers_write), **quiet)  # type: ignore[call-overload]
        os.close(commands_read)
        os.close(answers_write)
        try:
            yield Page(commands_write, answers_read)
        finally:
            os.close(commands_write)  # a Chromium that is driven over a pipe ends when that closes
            os.close(answers_read)
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()
