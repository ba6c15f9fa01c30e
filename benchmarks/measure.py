"""One crawl of an in-vitro web by any crawler, measured from outside.

The web and this process are held on one core, the crawler on another. Pages are counted in the
server's log; CPU is that of the crawler's processes, sampled with the time. Cost and rate are those
between two pages: the last one of the warm-up and the last one that was wanted. Then the crawler is
killed: what it does at its end is not in the figures. Needs Linux's /proc.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import signal
import subprocess
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dns.message
import dns.query

from benchmarks.report import ROOT
from scrapy_spider_suite.testing import Arrival, FakeWebConfig, FakeWebProcess
from scrapy_spider_suite.testing.fake_web import address_text

AGENT = "suite-benchmarks/1.0 (+https://benchmarks.example/)"
TICKS = os.sysconf("SC_CLK_TCK")
PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")
_STEP = 0.05
"""Seconds between two samples."""


class PeerError(Exception):
    """A crawler cannot start, or did not fetch what it should; the text says why."""


@dataclass(frozen=True)
class Load:
    """A web, and how much of it is crawled. *pages*: after *warm* pages of warm-up."""

    web: FakeWebConfig
    pages: int
    warm: int
    concurrency: int = 200
    cookies: bool = False
    timeout: float = 1_200.0

    def with_web(self, **knobs: Any) -> Load:
        """The same of another web."""
        return replace(self, web=replace(self.web, **knobs))


@dataclass(frozen=True)
class Visit:
    """What a crawler is started with: the web, a folder of its own, how many at a time."""

    load: Load
    folder: Path
    seeds: tuple[str, ...]
    settings: dict[str, Any]  # of the suite, for this web

    port: int
    first_address: str
    pages: int  # that are wanted in all

    @property
    def names(self) -> Path:
        """A table of the hosts' addresses, JSON: looked up at no cost, which favours the peers."""
        return self.folder / "names.json"


@dataclass(frozen=True)
class Command:
    """How a crawler is started."""

    argv: Sequence[str]
    env: dict[str, str] = field(default_factory=dict)
    stops: contextlib.ExitStack | None = None  # servers of its own, closed after the crawl


@dataclass(frozen=True)
class Cost:
    """What a crawl cost. *memory*: bytes, of all its processes together, at most."""

    pages: int
    micros: float
    rate: float
    memory: int
    arrivals: list[Arrival]
    samples: list[tuple[float, float]]
    output: str

    def since(self, when: float) -> Cost:
        """The same of the time since *when*. Raises `PeerError`: too few pages since then."""
        ends = [page.end for page in pages_in(self.arrivals)]
        until = min(ends[-1], self.samples[-1][0])
        count = bisect_left(ends, until) - bisect_left(ends, when)
        if count < 10:
            raise PeerError(f"{count} pages are too few")
        spent = cpu_at(self.samples, until) - cpu_at(self.samples, when)
        return replace(self, micros=spent / count * 1e6, rate=count / (until - when))


def cores() -> tuple[set[int], set[int]]:
    """The core of the web and this process, and that of a crawler; one and the same if need be."""
    known = sorted(os.sched_getaffinity(0))
    return {known[0]}, {known[-1]}


@contextlib.contextmanager
def apart() -> Iterator[set[int]]:
    """Hold this process, and what it starts, on the web's core; give the crawlers' core."""
    before = os.sched_getaffinity(0)
    web, crawler = cores()
    os.sched_setaffinity(0, web)
    try:
        yield crawler
    finally:
        os.sched_setaffinity(0, before)


def tree(pid: int) -> Iterator[tuple[int, float, int]]:
    """The process *pid* and those below it: number, seconds of CPU so far, bytes resident.

    A process's seconds include those of its children that have ended.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    yield pid, sum(map(int, fields[11:15])) / TICKS, int(fields[21]) * PAGE_SIZE
    for child in children:
        yield from tree(int(child))


def pages_in(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Those that are pages, in the order of their ends."""
    found = [each for each in arrivals if each.path not in ("/robots.txt", "/sitemap.xml")]
    return sorted(found, key=lambda each: each.end)


@contextlib.contextmanager
def visiting(load: Load) -> Iterator[tuple[Visit, FakeWebProcess]]:
    """Serve the web of *load*, with a folder for one crawl of it."""
    with TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        config = replace(
            load.web, log=folder / "arrivals.tsv", seeds_file=folder / "seeds.txt",
            seeds=min(load.web.hosts, max(load.web.seeds, load.concurrency)),
        )  # fmt: skip
        with FakeWebProcess(config) as web:
            graph, ready = web.web, web.ready
            names = {
                graph.host_name(host): address_text(graph.address_index(host))
                for host in range(min(len(graph), 200_000))
            }
            seeds = ready.seeds
            if config.sites:
                names |= {site: ask_address(site, ready.dns_port) for site in config.sites}
                starts = map(start_page, config.sites.values())
                seeds = tuple(map(str.__add__, seeds[-len(config.sites) :], starts))
            visit = Visit(
                load, folder, seeds, ready.settings, ready.http_port, ready.first_address,
                load.warm + load.pages,
            )  # fmt: skip
            visit.names.write_text(json.dumps(names))
            yield visit, web


def ask_address(name: str, port: int) -> str:
    """The address of *name*, by the name server of the web at *port*."""
    answer = dns.query.udp(dns.message.make_query(name, "A"), "127.0.0.1", 10.0, port)
    return str(answer.answer[0][0])


def start_page(folder: str) -> str:
    """The page of a site from which others are found: its index, or table of contents."""
    pages = {path.name for path in Path(folder).glob("*.html")}
    known = ("index.html", "contents.html", "bookindex.html", "main.html", "git.html")
    return next((name for name in known if name in pages), min(pages, default=""))


@contextlib.contextmanager
def crawling(command: Command, visit: Visit, core: set[int]) -> Iterator[subprocess.Popen[bytes]]:
    """A crawler at work on *core*; it is killed at the end."""
    with (visit.folder / "output").open("wb") as out, (command.stops or contextlib.ExitStack()):
        child = subprocess.Popen(
            command.argv, stdout=out, stderr=out, cwd=visit.folder, start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **command.env},
            preexec_fn=lambda: os.sched_setaffinity(0, core),
        )  # fmt: skip
        try:
            yield child
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def measure(command: Command, visit: Visit, web: FakeWebProcess, core: set[int]) -> Cost:
    """Crawl until there are as many pages as *visit* wants. Raises `PeerError`."""
    samples: list[tuple[float, float]] = []
    memory = 0
    with crawling(command, visit, core) as child, (visit.folder / "arrivals.tsv").open("rb") as log:
        began, count = time.monotonic(), 0
        while count < visit.pages * 1.02 and child.poll() is None:
            found = list(tree(child.pid))
            samples.append((time.time(), sum(cpu for _, cpu, _ in found)))
            memory = max(memory, sum(size for *_, size in found))
            count += log.read().count(b"\n")
            if time.monotonic() - began > visit.load.timeout:
                break
            time.sleep(_STEP)
    web.stop()
    said = (visit.folder / "output").read_text(errors="replace")
    arrivals = web.arrivals()
    pages = pages_in(arrivals)
    if len(pages) < visit.load.warm + visit.load.pages // 2 or len(samples) < 2:
        reason = (said.strip().splitlines() or ["it said nothing"])[-1]
        raise PeerError(f"{len(pages):,} of {visit.pages:,} pages: {reason[:300]}")
    cost = Cost(len(pages), 0.0, 0.0, memory, arrivals, samples, said)
    return cost.since(pages[visit.load.warm].end)


def cpu_at(samples: Sequence[tuple[float, float]], when: float) -> float:
    """Seconds of CPU at the time *when*, between two samples."""
    place = bisect_left(samples, (when, 0.0))
    if not 0 < place < len(samples):
        return samples[min(place, len(samples) - 1)][1]
    (before, low), (after, high) = samples[place - 1], samples[place]
    return low + (high - low) * (when - before) / max(after - before, 1e-9)


def certificate(folder: Path) -> Path:
    """Write a certificate that nobody but itself has signed, with its key; needs cryptography."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fake.test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("*.fake.test")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "certificate.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path
