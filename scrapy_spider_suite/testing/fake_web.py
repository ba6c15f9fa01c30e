"""The in-vitro web in this process: hosts, web servers, name server, arrival log, in one event
loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
from collections.abc import Coroutine, Sequence
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.testing import trap_sites
from scrapy_spider_suite.testing.arrivals import Arrival, ArrivalLog, QueryLog
from scrapy_spider_suite.testing.config import FakeWebConfig, Ready, counted
from scrapy_spider_suite.testing.folder_site import FolderSite
from scrapy_spider_suite.testing.http import (
    HTML,
    HostSite,
    OpenConnections,
    Request,
    ServerConnection,
    ServerReply,
    encode_reply,
    make_reply,
)
from scrapy_spider_suite.testing.loopback import (
    BACKLOG,
    MOST_ADDRESSES,
    LoopbackEndpoint,
    LoopbackListeners,
    addresses_within,
    files_allowed,
    has_many_addresses,
)
from scrapy_spider_suite.testing.name_server import SERVED, NameServer, Zone
from scrapy_spider_suite.testing.synthetic_graph import SyntheticWeb
from scrapy_spider_suite.testing.synthetic_site import SyntheticSite

REFUSED, HANGING = "refused.test", "hang.test"
MISDIRECTED = 421


def extra_endpoints(config: FakeWebConfig) -> int:
    """Return the number of listening addresses beside those of the synthetic hosts."""
    count = 2 + len(config.sites)
    if config.hostile:
        from scrapy_spider_suite.testing.hostile_site import BEHAVIOURS

        count += len(BEHAVIOURS) + 1
    if config.traps:
        count += len(trap_sites.NAMES) + len(trap_sites.ordinary_hosts())
    return count


class PlainSite:
    """Three small pages, for the special names of the name server."""

    def answer(self, request: Request) -> ServerReply:
        if request.path not in ("/", "/1.html", "/2.html"):
            return make_reply(404, "no such page\n")
        return make_reply(200, "<a href='/1.html'>1</a> <a href='/2.html'>2</a>\n", HTML)


class HostTable:
    """All hosts.

    *endpoints*: the synthetic pool, two for special names, one a site, hostile ones, traps,
    look-alikes, one that refuses, one that hangs.
    """

    def __init__(
        self, config: FakeWebConfig, web: SyntheticWeb, endpoints: Sequence[LoopbackEndpoint]
    ) -> None:
        self._web = web
        self._coded = config.coded
        self._pool = endpoints[: config.addresses]
        self._synthetic = SyntheticSite(web)
        rest = list(endpoints[config.addresses :])
        self.serving = [place.address for place in rest[:2]]
        self._sites: dict[str, HostSite] = dict.fromkeys(SERVED, PlainSite())
        self._places = dict.fromkeys(SERVED, rest[0])
        for (name, folder), place in zip(config.sites.items(), rest[2:], strict=False):
            self._sites[name] = FolderSite(folder, config.latency)
            self._places[name] = place
        self._places[REFUSED], self._places[HANGING] = rest[-2:]
        if config.hostile:
            self._add_hostile(config, rest[2 + len(config.sites) : -2])
        self._traps: Sequence[LoopbackEndpoint] = ()
        if config.traps:
            self._add_traps(config, rest[:-2])

    def _add_traps(self, config: FakeWebConfig, places: Sequence[LoopbackEndpoint]) -> None:
        names = trap_sites.ordinary_hosts()
        self._traps = places[-len(names) - len(trap_sites.NAMES) : -len(names)]
        for host in trap_sites.trap_hosts():
            self._sites[host] = trap_sites.TrapSite(self.base, config.seed)
        for host, place in zip(names, places[-len(names) :], strict=True):
            self._sites[host] = trap_sites.OrdinarySite(config.seed)
            self._places[host] = place

    def _add_hostile(self, config: FakeWebConfig, places: Sequence[LoopbackEndpoint]) -> None:
        from scrapy_spider_suite.testing import hostile_site as site

        hostile = site.HostileSite(
            self.base, pace=config.hostile_pace, seconds=config.hostile_seconds
        )
        for host in site.hostile_hosts():
            self._sites[host] = hostile
            self._places[host] = places[site.address_number(host)]

    def endpoint(self, host: str) -> LoopbackEndpoint:
        """Return where *host* is. Raises LookupError."""
        place = self._places.get(host)
        if place is not None:
            return place
        if self._traps and host.endswith("-trap.test"):
            return self._traps[trap_sites.trap_number(host)]
        return self._pool[self._web.address_index(self._web.host_index(host))]

    def address(self, host: str) -> str:
        """Return the address of *host*. Raises LookupError."""
        return self.endpoint(host).address

    def base(self, host: str) -> str:
        """Return scheme, name and port of *host*. Raises LookupError."""
        port = self.endpoint(host).port
        return f"http://{host}" + (f":{port}" if port != 80 else "")

    def route(self, request: Request) -> ServerReply:
        site = self._sites.get(request.host, self._synthetic)
        if self._traps and request.host.endswith(".farm-trap.test"):
            site = self._sites["farm-trap.test"]
        try:
            return encode_reply(site.answer(request), request, self._coded)
        except LookupError:
            return make_reply(MISDIRECTED, f"no host is called {request.host[:200]!r}\n")


T = TypeVar("T")


def new_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop, uvloop's if it is installed."""
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
    """A running in-vitro web: ``async with`` in the caller's loop, ``with`` in its own thread.

    Once started, *ready* says where everything is, *web* is the graph, *arrivals* the first million
    requests.
    """

    def __init__(self, config: FakeWebConfig, *, in_memory: bool = True) -> None:
        self.config = config
        self.ready: Ready
        self.web: SyntheticWeb
        self._in_memory = in_memory
        self._closing = contextlib.AsyncExitStack()
        self._thread: LoopThread | None = None

    async def start(self) -> Ready:
        """Bind everything and answer.

        Raises `SettingsError`: a taken port, an unwritable log, too few files.
        """
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
        """A copy of the arrivals in memory, with every answer that a client can have seen."""
        if self._thread is not None:
            # The client may have its answer while the thread has yet to write down that it has.
            self._thread.call(_settle())
        return list(self.log.records)

    @property
    def open_connections(self) -> int:
        return len(self._reception.open)

    def url(self, host: str, path: str = "/") -> str:
        """Return the URL of *path* on *host*. Raises LookupError."""
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
        wanted = min(config.addresses, max(1, config.hosts), MOST_ADDRESSES - extra)
        files = files_allowed(2 * (wanted + extra) + _FILES_WANTED)
        count = addresses_within(files, wanted, extra)
        if count < wanted:
            notes.append(
                f"{counted(count, 'address', 'addresses')} instead of {wanted}: the limit of open "
                f"files is {files} (ulimit -n)"
            )
        self._connections = files - count - extra - 64
        total = count + extra
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
        self._reception = OpenConnections(
            self.directory.route, self.log,
            keep_alive=config.keep_alive, limit=max(1, self._connections),
        )  # fmt: skip
        loop = asyncio.get_running_loop()
        closing.push_async_callback(self._hang_up)
        for bound, place in zip(listeners.sockets[:-2], listeners.endpoints, strict=False):
            factory = partial(ServerConnection, self._reception, place.address)
            server = await loop.create_server(factory, sock=bound, backlog=BACKLOG)
            closing.callback(server.close)
        for client in _block(listeners.sockets[-1]):
            closing.callback(client.close)
        closing.push_async_callback(_cancel, loop.create_task(self._tick()))

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
            ports=ports,
            dns_port=dns_port,
            hosts=config.hosts,
            addresses=config.addresses,
            first_address=endpoints[0].address,
            last_address=endpoints[config.addresses - 1].address,
            seeds=tuple(seeds),
            log=None if config.log is None else str(config.log),
            notes=tuple(notes),
        )

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


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
