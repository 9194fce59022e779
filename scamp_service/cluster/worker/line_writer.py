"""The stream that replaces ``sys.stdout`` and ``sys.stderr`` on a rank: its lines go to the log of the trial."""

from __future__ import annotations

import codecs
import io
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from scamp_service.cluster.worker.report_queue import MAX_LINE, ReportQueue

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class LineWriter(io.TextIOBase):
    """Text stream whose non-empty lines become log lines of the trial that writes them, and are lost if none does.

    It has everything that libraries expect of ``sys.stdout``. What is written to its ``fileno``, as by a child process,
    goes to the log of this process. A process has one stream for all its attempts, because libraries keep the one that
    they find when they are imported; closing it has no effect.
    """

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, reports: ReportQueue | None = None) -> None:
        self._first = _Lines(reports)
        self._of_thread: dict[int, _Lines] = {}
        self._replaced: list[AbstractContextManager[Any]] = []
        self._lock = threading.RLock()
        self.buffer = _Encoded(self)

    def fileno(self) -> int:
        """File descriptor of this process's standard error stream."""
        return sys.__stderr__.fileno() if sys.__stderr__ is not None else 2

    def detach(self) -> BinaryIO:
        """``buffer``; both may still be used."""
        return cast(BinaryIO, self.buffer)

    @contextmanager
    def writing_to(self, reports: ReportQueue) -> Iterator[None]:
        """Be ``sys.stdout`` and ``sys.stderr`` meanwhile, and send what this thread writes to these reports.

        What other threads write goes to those of the attempt that began first, of those that still run.
        """
        thread = threading.get_ident()
        with self._lock:
            if not self._of_thread:
                self._replaced = [redirect_stdout(self), redirect_stderr(self)]
                for redirected in self._replaced:
                    redirected.__enter__()
            self._of_thread[thread] = _Lines(reports)
        try:
            yield
        finally:
            with self._lock:
                self.flush()
                del self._of_thread[thread]
                if not self._of_thread:
                    for redirected in reversed(self._replaced):
                        redirected.__exit__(None, None, None)

    @property
    def _lines(self) -> _Lines:
        with self._lock:
            mine = self._of_thread.get(threading.get_ident())
            return mine or next(iter(self._of_thread.values()), self._first)

    def writable(self) -> bool:
        """Always True."""
        return True

    def reconfigure(self, **options: Any) -> None:
        """Accept the options of a text file, such as another encoding, which change nothing here."""

    def write(self, text: str) -> int:
        """Log the complete lines of ``text`` and keep the rest; a carriage return also ends a line."""
        lines = self._lines
        with self._lock:
            *complete, lines.rest = (lines.rest + text.replace("\r", "\n")).split("\n")
            if len(lines.rest) > MAX_LINE:
                complete.append(lines.rest)
                lines.rest = ""
        for line in complete:
            lines.log(line)
        return len(text)

    def flush(self) -> None:
        """Log the incomplete last line."""
        lines = self._lines
        with self._lock:
            rest, lines.rest = lines.rest, ""
        lines.log(rest)

    def close(self) -> None:
        """Flush, and close nothing: the next attempt writes to the same stream."""
        self.flush()


@dataclass(slots=True)
class _Lines:
    """Where lines go, and the last one as long as it is not complete."""

    reports: ReportQueue | None
    rest: str = ""

    def log(self, line: str) -> None:
        if self.reports is not None and line.strip():
            self.reports.log(line)


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
