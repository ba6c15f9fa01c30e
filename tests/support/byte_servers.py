"""Servers on loopback that do to a client, byte by byte, what a test says."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

PAGE = b"<html><body>hello</body></html>"


def answer(body: bytes = PAGE, *fields: str, status: str = "200 OK") -> bytes:
    """Return an ordinary response of HTTP/1.1 with a length."""
    lines = [f"HTTP/1.1 {status}", "Content-Type: text/html", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *fields, "", ""]).encode() + body


class Peer:
    """The server's end of one connection.

    Attributes:
        server: whose connection it is.
        number: 0 for the first connection that the server accepted.
    """

    def __init__(
        self, server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.number = server.connections
        self.server = server
        self._reader = reader
        self._writer = writer

    async def request(self) -> bytes | None:
        """Read one request, body included; None when the client hung up instead."""
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            body = await self._reader.readexactly(int(length)) if length else b""
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        self.server.requests.append(head + body)
        return head + body

    async def send(self, data: bytes) -> bool:
        """Send *data*; return False when the client hung up."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except ConnectionError:
            return False
        return not self._writer.transport.is_closing()

    async def gone(self) -> None:
        """Wait until the client closes the connection."""
        try:
            while await self._reader.read(65_536):
                pass
        except ConnectionError:
            pass

    @property
    def client(self) -> str:
        """The client's address."""
        return str(self._writer.get_extra_info("peername")[0])


Talk = Callable[[Peer], Awaitable[None]]


def answering(*answers: bytes) -> Talk:
    """Answer every request on every connection with the next of *answers*, then the last again."""
    left = list(answers)

    async def talk(peer: Peer) -> None:
        while await peer.request() is not None:
            await peer.send(left.pop(0) if len(left) > 1 else left[0])

    return talk


def answering_once(*pieces: bytes, pause: float = 0.0) -> Talk:
    """Send *pieces* after the first request of a connection, *pause* seconds apart, and close."""

    async def talk(peer: Peer) -> None:
        await peer.request()
        for piece in pieces:
            await peer.send(piece)
            await asyncio.sleep(pause)

    return talk


async def begin_connections() -> None:
    """Let the tasks begin that serve accepted connections, before a server is closed.

    Asyncio leaves a connection open whose server is closed before the task begins.
    """
    for _ in range(5):
        await asyncio.sleep(0)


class RawServer:
    """Accepts connections on *host* and lets *talk* do the rest; closes each when *talk* returns.

    Attributes:
        connections: accepted so far.
        requests: whole requests received, in order.
        open: connections that are open now.
        names: server names that clients asked for over TLS.
    """

    def __init__(
        self,
        talk: Talk,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._talk = talk
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.host = host
        self.port = port
        self.connections = 0
        self.open = 0
        self.requests: list[bytes] = []
        self.names: list[str | None] = []
        if tls is not None:
            tls.sni_callback = self._note_name

    def url(self, path: str = "/", host: str = "example.test") -> str:
        """Return a URL of this server under the name *host*."""
        return f"http{'s' if self._tls else ''}://{host}:{self.port}{path}"

    def _note_name(self, _: ssl.SSLObject, name: str | None, __: ssl.SSLContext) -> None:
        self.names.append(name)

    async def __aenter__(self) -> RawServer:
        self._server = await asyncio.start_server(
            self._accept, self.host, self.port, ssl=self._tls, backlog=1024
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await begin_connections()
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()  # a client that reads nothing would keep it open
        await asyncio.sleep(0)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._writers.add(writer)
        peer = Peer(self, reader, writer)
        self.connections += 1
        self.open += 1
        try:
            await self._talk(peer)
        except asyncio.CancelledError:
            pass  # the test is over; a cancelled handler would be reported as an error
        finally:
            self.open -= 1
            writer.transport.abort() if writer.transport.is_closing() else writer.close()


def tls_context(directory: Path, *names: str) -> ssl.SSLContext:
    """Return a server context with a certificate for *names* that nobody signed but itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0])])
    start = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=36_500))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(n) for n in names]), False)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ) + certificate.public_bytes(serialization.Encoding.PEM)
    path = directory / "server.pem"
    path.write_bytes(pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context
