"""A reverse proxy that ends TLS, for tests: like nginx it sends a ``Host`` of its own and tells what it was asked."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.waiting import PATIENCE_SECONDS

CHUNK_BYTES = 65536


def certificate(folder: Path, name: str) -> Path:
    """A file with a key and a certificate for ``name``, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    pem = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = folder / "certificate.pem"
    file.write_bytes(private + pem.public_bytes(serialization.Encoding.PEM))
    return file


class TlsProxy:
    """Serves ``https://127.0.0.1:port`` from ``http://127.0.0.1:upstream``, with one request per connection.

    ``received`` are the heads of the requests as a browser sent them, ``sent`` as they were passed on.
    """

    def __init__(self, upstream: int, certificate: Path) -> None:
        self._upstream = upstream
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.received: list[str] = []
        self.sent: list[str] = []
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []

    @contextlib.contextmanager
    def serving(self) -> Iterator[TlsProxy]:
        """Serve until the block ends."""
        accepting = threading.Thread(target=self._accept)
        accepting.start()
        try:
            yield self
        finally:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            accepting.join(PATIENCE_SECONDS)
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            for thread in self._threads:
                thread.join(PATIENCE_SECONDS)

    def _accept(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(plain)
            thread = threading.Thread(target=self._serve, args=(plain,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, plain: socket.socket) -> None:
        with plain, contextlib.suppress(OSError):  # the browser closes a connection whenever it likes
            browser = self._context.wrap_socket(plain, server_side=True)
            self._open.append(browser)
            with browser, socket.create_connection(("127.0.0.1", self._upstream)) as upstream:
                self._open.append(upstream)
                head, rest = _read_head(browser)
                if not head:
                    return
                upstream.sendall(self._forwarded(head).encode("latin-1") + rest)
                answer = threading.Thread(target=_copy, args=(upstream, browser))
                answer.start()
                _copy(browser, upstream)
                answer.join()

    def _forwarded(self, head: str) -> str:
        """The head for ScaMP: as nginx does by default, ``Host`` names the upstream."""
        self.received.append(head)
        first, *lines = head.split("\r\n")
        host = next(line.partition(":")[2].strip() for line in lines if line.lower().startswith("host:"))
        kept = [line for line in lines if not line.lower().startswith(("host:", "connection:"))]
        ours = [f"Host: 127.0.0.1:{self._upstream}", "Connection: close", "X-Forwarded-Proto: https"]
        ours += [f"X-Forwarded-Host: {host}", "X-Forwarded-For: 192.0.2.7"]
        self.sent.append("\r\n".join([first, *ours, *kept]))
        return self.sent[-1] + "\r\n\r\n"


def _read_head(connection: socket.socket) -> tuple[str, bytes]:
    """Head of the request without its empty line, and what has arrived of the body."""
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = connection.recv(CHUNK_BYTES)
        if not chunk:
            return "", b""
        data += chunk
    head, _, rest = data.partition(b"\r\n\r\n")
    return head.decode("latin-1"), rest


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Pass on what arrives, until one side closes."""
    with contextlib.suppress(OSError):
        while chunk := source.recv(CHUNK_BYTES):
            target.sendall(chunk)
    for side in (source, target):
        with contextlib.suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)
