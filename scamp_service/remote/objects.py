"""Object storage as a few operations on names below one URL, by fsspec. Errors never hold credentials.

Credentials come from the environment, as each file system of fsspec reads them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from scamp_service.errors import InvalidInput, Unavailable

LIBRARIES = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs"}
"""Kinds of URLs, and the library for them."""
_OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {"config_kwargs": {"connect_timeout": 10, "read_timeout": 60, "retries": {"max_attempts": 2}}}
}
_SECRET = re.compile(r"KEY|SECRET|TOKEN|PASSWORD|SIGNATURE|CREDENTIAL|CONNECTION_STRING", re.IGNORECASE)
_MOST_CHARACTERS = 300


class Objects:
    """Objects below ``url``. Every method raises ``Unavailable`` when the storage does not do what it is asked."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def __truediv__(self, name: str) -> Objects:
        """Those below ``name``."""
        return Objects(f"{self.url}/{name}")

    def read(self, name: str) -> bytes | None:
        """The bytes of an object; None if there is none."""
        with self._explained("read"):
            try:
                data: bytes = self._files.cat_file(self._path(name))
            except FileNotFoundError:
                self._expect_place()
                return None
            return data

    def write(self, name: str, data: bytes) -> None:
        """Write an object as a whole: readers see it as it was, or as it is now."""
        with self._explained("written to"):
            self._files.pipe_file(self._path(name), data)

    def upload(self, descriptor: int, name: str) -> None:
        """Write an object from an open file, in parts if it is large; it appears once it is whole."""
        with self._explained("written to"):
            self._files.put_file(f"/dev/fd/{descriptor}", self._path(name))

    def download(self, name: str, descriptor: int) -> bool:
        """Write an object into an open file; False if there is no such object."""
        with self._explained("read"):
            try:
                self._files.get_file(self._path(name), f"/dev/fd/{descriptor}")
            except FileNotFoundError:
                return False
            return True

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Bytes of all objects below ``folder``, by their names below it."""
        with self._explained("listed"):
            self._files.invalidate_cache()
            start = self._path(folder).rstrip("/") + "/"
            entries = self._files.find(start, detail=True)
            return {path.removeprefix(start): int(about["size"]) for path, about in entries.items() if path != start}

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""
        with self._explained("changed"):
            try:
                self._files.rm_file(self._path(name))
            except FileNotFoundError:
                return

    def remove_all(self, folder: str) -> None:
        """Remove all objects below ``folder``."""
        for name in self.sizes(folder):
            self.remove(f"{folder}/{name}")

    def expect_library(self) -> None:
        """Raise ``InvalidInput`` unless the library for these URLs is here."""
        assert self._opened

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs

        kind = self.url.partition("://")[0]
        try:
            files, path = url_to_fs(
                self.url, skip_instance_cache=True, use_listings_cache=False, **_OPTIONS.get(kind, {})
            )
        except ImportError:
            raise InvalidInput(
                f"SCAMP_CHECKPOINT_DIR is {self.url}, for which a library is missing: "
                f"install {LIBRARIES.get(kind, 'the one of fsspec')} with pip on every host"
            ) from None
        return files, str(path).rstrip("/")

    @property
    def _files(self) -> Any:
        return self._opened[0]

    def _path(self, name: str) -> str:
        return f"{self._opened[1]}/{name}" if name else self._opened[1]

    def _expect_place(self) -> None:
        """Raise ``FileNotFoundError`` if there is no such bucket: no object in it is missing by chance."""
        bucket = self._opened[1].partition("/")[0]
        if not self._files.exists(bucket):
            raise FileNotFoundError(f"there is no bucket {bucket}")

    @contextmanager
    def _explained(self, task: str) -> Iterator[None]:
        try:
            yield
        except (InvalidInput, Unavailable):
            raise
        except Exception as error:  # each library has errors of its own
            raise Unavailable(f"the object storage {self.url} cannot be {task}: {in_words(error)}") from None


def in_words(error: Exception) -> str:
    """An error of a library, with what to do about it where that is known, and without secrets of the environment."""
    text = " ".join(str(error).split())
    for name, value in os.environ.items():
        if _SECRET.search(name) and len(value) >= 4:
            text = text.replace(value, "…")
    text = re.sub(r"\b(AKIA|ASIA)[A-Z0-9]{12,}", "…", text)[:_MOST_CHARACTERS] or type(error).__name__
    remedy = next((words for kinds, words in _REMEDIES if kinds & _kinds(error)), "")
    return f"{text}: {remedy}" if remedy else text


def _kinds(error: Exception) -> set[str]:
    return {each.__name__ for each in type(error).__mro__}


_REMEDIES = (
    (
        {"NoCredentialsError", "PartialCredentialsError", "NoAuthTokenError"},
        "give this host credentials in the usual way, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role",
    ),
    ({"PermissionError"}, "let these credentials list, read, write and delete objects there"),
    ({"FileNotFoundError"}, "create the bucket, or correct SCAMP_CHECKPOINT_DIR"),
    (
        {"EndpointConnectionError", "ConnectTimeoutError", "ConnectionError", "TimeoutError", "ClientConnectorError"},
        "check the network, and AWS_ENDPOINT_URL where the storage is not that of AWS",
    ),
)
