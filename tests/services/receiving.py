"""Receivers of notices on this machine: a web server that keeps what it is sent, and a mail server."""

from __future__ import annotations

import contextlib
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Hooks:
    """Requests that have arrived: (headers in lower case, body). ``answer`` decides the status of each."""

    url: str = ""
    requests: list[tuple[dict[str, str], str]] = field(default_factory=list)
    answer: Callable[[], int] = lambda: 204


@contextmanager
def receiving(port: int = 0) -> Iterator[Hooks]:
    """A web server on 127.0.0.1. A status of 302 leads to itself."""
    hooks = Hooks()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            hooks.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(status := hooks.answer())
            if status == 302:
                self.send_header("Location", hooks.url)
            self.send_header("Content-Length", "0")
            with contextlib.suppress(OSError):
                self.end_headers()

        def log_message(self, *words: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        hooks.url = f"http://127.0.0.1:{server.server_port}/hook"
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield hooks
        server.shutdown()


@dataclass
class Mails:
    """Messages that have arrived."""

    url: str = ""
    messages: list[bytes] = field(default_factory=list)


@contextmanager
def mail_server() -> Iterator[Mails]:
    """A server on 127.0.0.1 that takes every message, without TLS."""
    mails = Mails()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self._say("220 here")
            while line := self.rfile.readline().decode().strip():
                match line.split()[0].upper():
                    case "DATA":
                        self._say("354 go on")
                        mails.messages.append(b"".join(iter(self.rfile.readline, b".\r\n")))
                        self._say("250 taken")
                    case "QUIT":
                        self._say("221 bye")
                        return
                    case _:
                        self._say("250 yes")

        def _say(self, line: str) -> None:
            self.wfile.write(f"{line}\r\n".encode())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        mails.url = f"smtp://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield mails
        server.shutdown()
