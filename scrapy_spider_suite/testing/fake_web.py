"""The in-vitro web, in one event loop of this process, or in a process of its own.

A socket on 0.0.0.0 would let the network in, so each loopback address has its own, all on one port;
on macOS each "address" is a port of 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import os
import queue
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from threading import Thread
from typing import Any, NamedTuple, TypeVar

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.testing import http, trap_sites
from scrapy_spider_suite.testing.arrivals import Arrival, ArrivalLog, QueryLog, read_arrivals
from scrapy_spider_suite.testing.config import FakeWebConfig, Ready, counted
from scrapy_spider_suite.testing.name_server import SERVED, NameServer, Zone
from scrapy_spider_suite.testing.synthetic_site import FolderSite, SyntheticSite, SyntheticWeb

MOST_ADDRESSES = 254 * 256 * 240
ONLY = "127.0.0.1"
BACKLOG = 1024

_TRIES = 20


class LoopbackEndpoint(NamedTuple):
    address: str
    port: int


def address_text(number: int) -> str:
    """Return address *number*: 127.8.0.1, …; last parts 0 and 255 are left out."""
    block, last = divmod(number, 254)
    return f"127.{8 + block // 256}.{block % 256}.{last + 1}"


def has_many_addresses() -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address_text(0), 0))
        except OSError:
            return False
    return True


def files_allowed(wanted: int) -> int:
    """Raise the limit of open files towards *wanted*; return the limit."""
    try:
        import resource
    except ImportError:  # not a Unix: the C library's limit does not bind sockets
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
        except (OSError, ValueError):  # macOS refuses more than its kernel's own limit
            return soft
        soft = max(soft, most)
    return wanted if soft == resource.RLIM_INFINITY else soft


class LoopbackListeners:
    """Bound sockets at *endpoints*; the first *listening* ones listen, the rest refuse."""

    def __init__(self, count: int, port: int, *, listening: int, one_address: bool) -> None:
        self.sockets: list[socket.socket] = []
        for attempt in range(_TRIES):
            try:
                self._bind(count, port, listening, one_address=one_address)
                break
            except OSError as error:
                self.close()
                taken = error.errno == errno.EADDRINUSE
                if taken and port == 0 and attempt < _TRIES - 1:
                    continue
                where = f"port {port} of loopback addresses"
                if one_address:
                    where = f"ports from {port} on"
                why = f"cannot listen on all {count} ({error.strerror})"
                if taken:
                    why = f"one of {count} is taken; choose another port, or 0 for any"
                raise SettingsError(f"{where}: {why}") from None
        self.endpoints = [LoopbackEndpoint(*each.getsockname()[:2]) for each in self.sockets]

    @property
    def ports(self) -> Sequence[int]:
        ports = [each.port for each in self.endpoints]
        return ports[:1] if len(set(ports)) == 1 else ports

    def close(self) -> None:
        for each in self.sockets:
            each.close()
        self.sockets.clear()

    def _bind(self, count: int, port: int, listening: int, *, one_address: bool) -> None:
        for number in range(count):
            if one_address:
                address, at = ONLY, port + number if port else 0
            else:  # all on the port that the first one has
                address = address_text(number)
                at = self.sockets[0].getsockname()[1] if self.sockets else port
            self.sockets.append(_bound(address, at, number < listening))


def _bound(address: str, port: int, listening: bool) -> socket.socket:
    each = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        each.setblocking(False)
        if listening:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        each.bind((address, port))
        if listening:
            each.listen(BACKLOG)
    except OSError:
        each.close()
        raise
    return each


REFUSED, HANGING = "refused.test", "hang.test"
MISDIRECTED = 421


def extra_endpoints(config: FakeWebConfig) -> int:
    count = 2 + len(config.sites)
    if config.hostile:
        from scrapy_spider_suite.testing.hostile_site import BEHAVIOURS

        count += len(BEHAVIOURS) + 1
    if config.traps:
        count += len(trap_sites.NAMES) + len(trap_sites.ordinary_hosts())
    return count


class PlainSite:
    def answer(self, request: http.Request) -> http.ServerReply:
        if request.path not in ("/", "/1.html", "/2.html"):
            return http.make_reply(404, "no such page\n")
        return http.make_reply(200, "<a href='/1.html'>1</a> <a href='/2.html'>2</a>\n", http.HTML)


class HostTable:
    """All hosts. *endpoints*: the synthetic pool, `extra_endpoints`, a refusing, a hanging one."""

    def __init__(
        self, config: FakeWebConfig, web: SyntheticWeb, endpoints: Sequence[LoopbackEndpoint]
    ) -> None:
        places = iter(endpoints)

        def take(count: int) -> list[LoopbackEndpoint]:
            return list(islice(places, count))

        self._config = config
        self._web = web
        self._pool = take(config.addresses)
        self._synthetic = SyntheticSite(web)
        ours = take(2)
        self.serving = [place.address for place in ours]
        self._sites: dict[str, http.HostSite] = dict.fromkeys(SERVED, PlainSite())
        self._places = dict.fromkeys(SERVED, ours[0])
        for name, folder in config.sites.items():
            self._sites[name] = FolderSite(folder, config.latency)
            (self._places[name],) = take(1)
        if config.hostile:
            self._add_hostile(config, take)
        self._traps: Sequence[LoopbackEndpoint] = ()
        if config.traps:
            self._traps = take(len(trap_sites.NAMES))
            for host in trap_sites.trap_hosts():
                self._sites[host] = trap_sites.TrapSite(self.base, config.seed)
            for host in trap_sites.ordinary_hosts():
                self._sites[host] = trap_sites.OrdinarySite(config.seed)
                (self._places[host],) = take(1)
        self._places[REFUSED], self._places[HANGING] = take(2)

    def _add_hostile(
        self, config: FakeWebConfig, take: Callable[[int], list[LoopbackEndpoint]]
    ) -> None:
        from scrapy_spider_suite.testing import hostile_site as site

        hostile = site.HostileSite(
            self.base, pace=config.hostile_pace, seconds=config.hostile_seconds
        )
        places = take(len(site.BEHAVIOURS) + 1)
        for host in site.hostile_hosts():
            self._sites[host] = hostile
            self._places[host] = places[site.address_number(host)]

    def endpoint(self, host: str) -> LoopbackEndpoint:
        """Where *host* is. Raises LookupError, as all methods do."""
        place = self._places.get(host)
        if place is not None:
            return place
        if self._traps and host.endswith("-trap.test"):
            return self._traps[trap_sites.trap_number(host)]
        return self._pool[self._web.address_index(self._web.host_index(host))]

    def address(self, host: str) -> str:
        return self.endpoint(host).address

    def base(self, host: str) -> str:
        """Return scheme, name and port of *host*. Raises LookupError."""
        return self._config.origin(host, self.endpoint(host).port)

    def route(self, request: http.Request) -> http.ServerReply:
        site = self._sites.get(request.host, self._synthetic)
        if self._traps and request.host.endswith(".farm-trap.test"):
            site = self._sites["farm-trap.test"]
        try:
            reply = http.encode_reply(site.answer(request), request, self._config.coded)
            return http.set_cookie(reply, request, self._config.cookies)
        except LookupError:
            return http.make_reply(MISDIRECTED, f"no host is called {request.host[:200]!r}\n")


T = TypeVar("T")


def new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class LoopThread:
    def __init__(self) -> None:
        self._loop = new_loop()
        self._thread = Thread(target=self._loop.run_forever, name="fakeweb", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


_FLUSH_SECONDS = 0.5
_FILES_WANTED = 20_000


class FakeWeb:
    """A running in-vitro web: ``async with`` in the caller's loop, ``with`` in its own thread."""

    def __init__(self, config: FakeWebConfig, *, in_memory: bool = True) -> None:
        self.config = config
        self.ready: Ready
        self.web: SyntheticWeb
        self._in_memory = in_memory
        self._closing = contextlib.AsyncExitStack()
        self._thread: LoopThread | None = None

    async def start(self) -> Ready:
        """Bind everything. Raises `SettingsError`: a taken port, too few files, a bad log."""
        async with contextlib.AsyncExitStack() as closing:
            closing.push_async_callback(_settle)
            listeners, config, notes = self._bind()
            closing.callback(listeners.close)
            self.log = ArrivalLog(_writable("log", config.log), in_memory=self._in_memory)
            closing.callback(self.log.close)
            self.queries = QueryLog(_writable("dns_log", config.dns_log))
            closing.callback(self.queries.close)
            ports = tuple(listeners.ports[: config.addresses])
            self.web = SyntheticWeb(config, ports)
            self.directory = HostTable(config, self.web, listeners.endpoints)
            dns_port = await self._serve_names(closing, config)
            await self._serve_pages(closing, config, listeners)
            self.ready = self._describe(config, ports, dns_port, listeners.endpoints, notes)
            self._write_seeds(config.seeds_file)
            self._closing = closing.pop_all()
        return self.ready

    async def stop(self) -> None:
        await self._closing.aclose()

    async def __aenter__(self) -> FakeWeb:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    def __enter__(self) -> FakeWeb:
        self._thread = LoopThread()
        try:
            self._thread.call(self.start())
        except BaseException:
            self._thread.close()
            self._thread = None
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._thread is not None:
            self._thread.call(self.stop())
            self._thread.close()
            self._thread = None

    @property
    def arrivals(self) -> list[Arrival]:
        if self._thread is not None:
            # The client may have its answer while the thread has yet to write down that it has.
            self._thread.call(_settle())
        return list(self.log.records)

    @property
    def open_connections(self) -> int:
        return len(self._reception.open)

    def url(self, host: str, path: str = "/") -> str:
        return self.directory.base(host) + path

    def _bind(self) -> tuple[LoopbackListeners, FakeWebConfig, list[str]]:
        config, notes = self.config, []
        one_address = config.one_address or not has_many_addresses()
        if one_address:
            notes.append(
                "loopback has one address: each of the addresses is a port of 127.0.0.1, so "
                "politeness by address cannot be seen"
            )
        extra = extra_endpoints(config) + 2
        count = min(config.addresses, max(1, config.hosts), MOST_ADDRESSES - extra)
        total = count + extra
        files = files_allowed(2 * total + _FILES_WANTED)
        if files < 2 * total:
            raise SettingsError(
                f"open files are limited to {files}, too few for "
                f"{counted(total, 'address', 'addresses')}; raise the limit with ulimit -n"
            )
        self._connections = files - total - 64
        listeners = LoopbackListeners(
            total, config.port, listening=total - 2, one_address=one_address
        )
        return listeners, dataclasses.replace(config, addresses=count), notes

    async def _serve_names(self, closing: contextlib.AsyncExitStack, config: FakeWebConfig) -> int:
        address_of = self.directory.address
        self.names = zone = Zone(
            address_of, self.directory.serving, address_of(REFUSED), address_of(HANGING)
        )
        # Bound here, because uvloop leaks a transport whose own attempt to bind has failed.
        bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        closing.callback(bound.close)
        try:
            bound.bind(("127.0.0.1", config.dns_port))
        except OSError as error:
            raise SettingsError(f"dns_port = {config.dns_port}: {error.strerror}") from None
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: NameServer(zone, self.queries, config.ttl), sock=bound
        )
        closing.callback(transport.close)
        return int(bound.getsockname()[1])

    async def _serve_pages(
        self, closing: contextlib.AsyncExitStack, config: FakeWebConfig,
        listeners: LoopbackListeners,
    ) -> None:  # fmt: skip
        self._reception = http.OpenConnections(
            self.directory.route, self.log,
            keep_alive=config.keep_alive, limit=max(1, self._connections),
        )  # fmt: skip
        loop = asyncio.get_running_loop()
        tls = None if config.certificate is None else _tls_context(config.certificate)
        closing.push_async_callback(self._hang_up)
        for bound, place in zip(listeners.sockets[:-2], listeners.endpoints, strict=False):
            factory = partial(http.ServerConnection, self._reception, place.address)
            server = await loop.create_server(factory, sock=bound, backlog=BACKLOG, ssl=tls)
            closing.callback(server.close)
        for client in _block(listeners.sockets[-1]):
            closing.callback(client.close)
        closing.callback(loop.create_task(self._tick()).cancel)

    async def _hang_up(self) -> None:
        for connection in list(self._reception.open):
            connection.abort()  # its answer in progress is logged as ended
        # Transports tell their protocols in the loop's next turn, and those their scripts in the
        # one after it; the log needs those lines.
        while self._reception.open:
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_FLUSH_SECONDS)
            self.log.flush()
            self.queries.flush()
            self._reception.sweep()

    def _describe(
        self, config: FakeWebConfig, ports: tuple[int, ...], dns_port: int,
        endpoints: Sequence[LoopbackEndpoint], notes: list[str],
    ) -> Ready:  # fmt: skip
        seeds = self.web.roots(config.seeds) + [self.url(site) for site in config.sites]
        if config.hostile:
            seeds.append(self.url("hostile.test"))
        if config.traps:
            hosts = [*trap_sites.trap_hosts(), *trap_sites.ordinary_hosts()]
            seeds += [self.url(host) for host in hosts]
        return Ready(
            ports, dns_port, config.hosts, config.addresses,
            first_address=endpoints[0].address,
            last_address=endpoints[config.addresses - 1].address,
            seeds=tuple(seeds),
            log=None if config.log is None else str(config.log),
            notes=tuple(notes),
        )  # fmt: skip

    def _write_seeds(self, path: Path | None) -> None:
        if path is None:
            return
        try:
            path.write_text("".join(f"{seed}\n" for seed in self.ready.seeds), encoding="utf-8")
        except OSError as error:
            raise SettingsError(f"seeds_file = {str(path)!r}: {error.strerror}") from None


async def _settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def _writable(name: str, path: Path | None) -> Path | None:
    if path is not None:
        try:
            path.open("ab").close()
        except OSError as error:
            raise SettingsError(f"{name} = {str(path)!r}: {error.strerror}") from None
    return path


def _tls_context(path: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(path)
    except OSError as error:
        raise SettingsError(f"certificate = {str(path)!r}: {error.strerror or error}") from None
    return context


def _block(hanging: socket.socket) -> list[socket.socket]:
    hanging.listen(0)
    clients = []
    for _ in range(2):
        client = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            client.connect(hanging.getsockname())
        clients.append(client)
    return clients


_START_SECONDS = 30.0
_STOP_SECONDS = 10.0


class FakeWebProcess:
    """The web in a child, which ends with this process; *inside*: a command that runs it."""

    def __init__(self, config: FakeWebConfig, inside: Sequence[str] = ()) -> None:
        self.config = config
        self._inside = inside
        self.ready: Ready
        self.web: SyntheticWeb
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> Ready:
        """Start the child, wait until it answers. Raises `SettingsError` with its message."""
        paths = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")]
        with TemporaryFile() as complaints:
            self._child = subprocess.Popen(
                [
                    *(*self._inside, sys.executable, "-m", "scrapy_spider_suite.testing"),
                    *("--config", self.config.to_json(), "--with-parent", "--json"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=complaints,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            )
            try:
                self.ready = Ready.from_json(_first_line(self._child))
            except ValueError:
                self.stop()
                complaints.seek(0)
                said = complaints.read().decode("utf-8", "replace").strip()
                raise SettingsError(said or "the in-vitro web did not start") from None
        served = dataclasses.replace(self.config, addresses=self.ready.addresses)
        self.web = SyntheticWeb(served, self.ready.ports)
        return self.ready

    @property
    def pid(self) -> int:
        if self._child is None:
            raise RuntimeError("the in-vitro web is not running")
        return self._child.pid

    def stop(self) -> None:
        """End the child, which writes its logs; kill it after 10 s."""
        child, self._child = self._child, None
        if child is None:
            return
        with child:
            child.terminate()
            try:
                child.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()

    def arrivals(self) -> list[Arrival]:
        """The log: all of it after `stop`, before up to half a second ago."""
        if self.config.log is None:
            raise SettingsError.of("log", None, "a file, to read the arrivals of a process")
        return list(read_arrivals(self.config.log))

    def __enter__(self) -> FakeWebProcess:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


def _first_line(child: subprocess.Popen[bytes]) -> str:
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    output = child.stdout
    if output is None:
        return ""
    Thread(target=lambda: lines.put(output.readline()), daemon=True).start()
    with contextlib.suppress(queue.Empty):
        return lines.get(timeout=_START_SECONDS).decode("utf-8")
    child.kill()
    return ""
