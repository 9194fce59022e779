"""The two processes of ``hooks_part``: one sends webhooks as a controller does, one receives them badly."""

from __future__ import annotations

import json
import logging
import os
import random
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from standardwebhooks import Webhook

from scamp_service.control.leadership import Leadership
from scamp_service.lifecycle import CONTROLLER_LEASE
from scamp_service.notices import sending
from scamp_service.notices.notifier import Notifier
from scamp_service.notices.retries import Retries
from scamp_service.receivers import Receiver
from scamp_service.settings import Settings
from scamp_service.store.store import Store

RETRIES = Retries(first_seconds=0.1, factor=1.5, longest_seconds=1.0, most_attempts=1000)
SECONDS = 1.0
"""How long an attempt waits for an answer here, so that a case takes minutes."""


def notify(url: str, hook: str) -> None:
    """Lead, and tell the receiver at ``hook`` of every study that ends, until this process is killed."""
    sending.SECONDS = SECONDS
    logging.disable(logging.WARNING)  # each request that was answered badly
    store = Store(url)
    leadership = Leadership(store.leases, 5.0, wall_clock=store.now)
    while (lease := leadership.keep()) is None:
        time.sleep(0.02)
    settings = Settings(notify=[Receiver(webhook=hook)], notify_networks="127.0.0.1")
    fenced = store.fenced(CONTROLLER_LEASE, lease)
    Notifier(fenced, settings, retries=RETRIES, pause_seconds=0.05).start()
    while leadership.keep():
        time.sleep(0.2)


def receive(port: int, log: Path, secret: str, seed: int) -> None:
    """Write the id and the study of each webhook with a good signature to ``log``, until this process is killed."""
    drawn = random.Random(seed)
    webhook = Webhook(secret)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body, mood = self.rfile.read(int(self.headers["content-length"])), drawn.random()
            if mood < 0.1:
                self._answer(500)
                return
            event: Any = webhook.verify(body, dict(self.headers))
            with log.open("ab") as stream:  # one write, so that lines of two requests do not mix
                stream.write(f"{json.dumps([self.headers['webhook-id'], event['data']['study']['id']])}\n".encode())
                stream.flush()
                os.fsync(stream.fileno())
            if mood < 0.2:
                self._answer(500)
            elif mood < 0.3:
                self.close_connection = True
            elif mood < 0.33:
                time.sleep(2 * SECONDS)
            else:
                self._answer(204)

        def _answer(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *words: Any) -> None:
            pass

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
