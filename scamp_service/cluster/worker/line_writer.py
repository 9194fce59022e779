"""The stream that replaces ``sys.stdout`` and ``sys.stderr`` on a rank: its lines go to the log of the trial."""

from __future__ import annotations

import codecs
import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from scamp_service.cluster.worker.report_queue import MAX_LINE, ReportQueue

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class LineWriter(io.TextIOBase):
    """Text stream whose non-empty lines become log lines of the trial that runs, and are lost while there is none.

    It has everything that libraries expect of ``sys.stdout``. What is written to its ``fileno``, as by a child process,
    goes to the log of this process. A process has one stream for all its attempts, because libraries keep the one that
    they find when they are imported; closing it has no effect.
    """

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, reports: ReportQueue | None = None) -> None:
        self._reports = reports
        self._rest = ""
        self._lock = threading.Lock()
        self.buffer = _Encoded(self)

    def fileno(self) -> int:
        """File descriptor of this process's standard error stream."""
        return sys.__stderr__.fileno() if sys.__stderr__ is not None else 2

    def detach(self) -> BinaryIO:
        """``buffer``; both may still be used."""
        return cast(BinaryIO, self.buffer)

    @contextmanager
    def writing_to(self, reports: ReportQueue) -> Iterator[None]:
        """Send what is written in the meantime to these reports."""
        self._reports = reports
        try:
            yield
        finally:
            self.flush()
            self._reports = None

    def writable(self) -> bool:
        """Always True."""
        return True

    def reconfigure(self, **options: Any) -> None:
        """Accept the options of a text file, such as another encoding, which change nothing here."""

    def write(self, text: str) -> int:
        """Log the complete lines of ``text`` and keep the rest; a carriage return also ends a line."""
        with self._lock:
            *lines, self._rest = (self._rest + text.replace("\r", "\n")).split("\n")
            if len(self._rest) > MAX_LINE:
                lines.append(self._rest)
                self._rest = ""
        for line in lines:
            if line.strip():
                self._log(line)
        return len(text)

    def flush(self) -> None:
        """Log the incomplete last line."""
        with self._lock:
            rest, self._rest = self._rest, ""
        if rest.strip():
            self._log(rest)

    def _log(self, line: str) -> None:
        if reports := self._reports:
            reports.log(line)

    def close(self) -> None:
        """Flush, and close nothing: the next attempt writes to the same stream."""
        self.flush()


class _Encoded(io.BufferedIOBase):
    """The ``buffer`` of a ``LineWriter``: takes the same text as bytes. Closing it, as wrappers do, has no effect."""

    def __init__(self, writer: LineWriter) -> None:
        self._writer = writer
        self._decoder = codecs.getincrementaldecoder(LineWriter.encoding)(LineWriter.errors)

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        self._writer.write(self._decoder.decode(bytes(data)))
        return memoryview(data).nbytes

    def flush(self) -> None:
        self._writer.flush()

    def fileno(self) -> int:
        return self._writer.fileno()

    def close(self) -> None:
        self.flush()
