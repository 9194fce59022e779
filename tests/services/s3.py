"""A real S3 server (moto's) for tests, whose answers can be slow, refused, cut off or corrupted."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any
from unittest.mock import patch

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

SECRET = "the-secret-key-of-the-operator"
KEY = "AKIAOFTHEOPERATOR1234"
BUCKET = "checkpoints"
METHODS = frozenset({"GET", "PUT", "POST", "DELETE", "HEAD"})


class ObjectStorage:
    """A server with one bucket. ``refuses`` is the status of each answer to ``methods``; 0: it answers as it should.

    ``seconds`` pass before each such answer. ``requests`` counts them by method.
    """

    def __init__(self) -> None:
        self.refuses, self.seconds, self.methods = 0, 0.0, set(METHODS)
        self.requests: dict[str, int] = {}
        self.prefix = uuid.uuid4().hex[:8]
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.files.makedirs(BUCKET, exist_ok=True)  # all servers of a process have one memory

    @property
    def endpoint(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def url(self) -> str:
        """An own folder in the bucket."""
        return f"s3://{BUCKET}/{self.prefix}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which clients find it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    @cached_property
    def files(self) -> Any:
        """A client of fsspec that is always served."""
        import s3fs

        return s3fs.S3FileSystem(
            key=KEY,
            secret=SECRET,
            endpoint_url=self.endpoint,
            config_kwargs={"user_agent_extra": "trusted"},
            skip_instance_cache=True,
            use_listings_cache=False,
        )

    def names(self) -> list[str]:
        """The objects in the own folder, by name."""
        start = f"{BUCKET}/{self.prefix}/"
        return sorted(path.removeprefix(start) for path in self.files.find(start))

    def change(self, name: str, change: Callable[[bytes], bytes]) -> None:
        """Replace an object."""
        path, files = f"{BUCKET}/{self.prefix}/{name}", self.files
        files.pipe_file(path, change(files.cat_file(path)))

    def close(self) -> None:
        """End it."""
        self._server.shutdown()

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Any:
        method = environ["REQUEST_METHOD"]
        if "trusted" not in environ.get("HTTP_USER_AGENT", ""):
            self.requests[method] = self.requests.get(method, 0) + 1
            if method in self.methods:
                time.sleep(self.seconds)
                if self.refuses:
                    code = {403: "AccessDenied", 503: "SlowDown"}.get(self.refuses, "InternalError")
                    body = f"<Error><Code>{code}</Code><Message>{code} for {KEY}</Message></Error>".encode()
                    environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                    start_response(f"{self.refuses} {code}", [("Content-Type", "application/xml")])
                    return [] if method == "HEAD" else [body]
        return self._app(environ, start_response)


@contextmanager
def object_storage() -> Iterator[ObjectStorage]:
    """A server, which the environment of this process names meanwhile."""
    storage = ObjectStorage()
    try:
        with patch.dict(os.environ, storage.environment):
            yield storage
    finally:
        storage.close()
