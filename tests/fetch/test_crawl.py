"""The handler in a whole Scrapy, switched on by Scrapy's own setting in a plain project."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support import forks
from support.byte_servers import PAGE, Peer, RawServer, Talk, answer, answering, tls_context
from support.projects import environment

SCRIPT = Path(__file__).with_name("probe_crawl.py")
HANDLER = "scrapy_spider_suite.fetch.http1.Http1Handler"


@pytest.fixture
def settings() -> dict[str, Any]:
    """The settings of a project that uses the handler, and nothing else of the suite."""
    return {
        "DOWNLOAD_HANDLERS": {"http": HANDLER, "https": HANDLER},
        "SUITE_ALLOW_PRIVATE_ADDRESSES": True,
        "CONCURRENT_REQUESTS": 100,
        "DOWNLOAD_DELAY": 0,
        "LOG_LEVEL": "WARNING",
        "TELNETCONSOLE_ENABLED": False,
    }


async def crawl(settings: dict[str, Any], requests: list[Any], *files: int) -> dict[str, Any]:
    """Run the crawl in a process of its own; return its report and log."""
    arguments = [json.dumps(settings), json.dumps(requests), *map(str, files)]
    done = await asyncio.to_thread(
        forks.run, SCRIPT.read_text(), *arguments, folder=Path.cwd(), environment=environment()
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**report, "log": done.stderr}


@pytest.mark.parametrize("loop", [None, "uvloop.Loop"], ids=["asyncio", "uvloop"])
def test_a_crawl(settings: dict[str, Any], loop: str | None, tmp_path: Path) -> None:
    """Plain and TLS, on either loop, with a retry of what failed."""

    async def talk(peer: Peer) -> None:
        if await peer.request() is not None and peer.number > 0:
            await peer.send(answer())

    async def main() -> dict[str, Any]:
        tls = tls_context(tmp_path, "example.test")
        async with RawServer(talk) as flaky, RawServer(answering(answer()), tls=tls) as safe:
            urls = [flaky.url(host="127.0.0.1"), safe.url(host="127.0.0.1")]
            return await crawl(settings | {"ASYNCIO_EVENT_LOOP": loop}, [{"url": u} for u in urls])

    report = asyncio.run(main())
    assert report["responses"] == [[200, PAGE.decode(), "127.0.0.1", []]] * 2
    assert report["stats"]["retry/count"] == 1
    name = "scrapy.exceptions.DownloadFailedError"
    assert report["stats"][f"retry/reason_count/{name}"] == 1
    assert "ERROR" not in report["log"]
    assert "Traceback" not in report["log"]


def test_errors_reach_scrapy(settings: dict[str, Any]) -> None:
    """They are the ones that RETRY_EXCEPTIONS names."""

    async def main() -> dict[str, Any]:
        async with RawServer(answering(answer())) as server:
            pass
        requests = [
            {"url": server.url(host="127.0.0.1")},
            {"url": "http://no-such-host.invalid/"},
        ]
        nowhere = {"SUITE_DNS_SERVERS": ["127.0.0.1:1"], "RETRY_TIMES": 1}
        return await crawl(settings | nowhere, requests)

    report = asyncio.run(main())
    assert sorted(report["errors"]) == ["CannotResolveHostError", "DownloadConnectionRefusedError"]
    assert report["stats"]["retry/count"] == 2


def _proxy() -> Talk:
    """Be a proxy that answers itself."""

    async def talk(peer: Peer) -> None:
        request = await peer.request()
        if request is not None and request.startswith(b"GET http://example.test/ "):
            await peer.send(answer(b"through the proxy", "Connection: close"))

    return talk


def test_proxies_are_scrapys(settings: dict[str, Any]) -> None:
    """A request with a proxy goes to it, by Scrapy's own handler, whatever is booked."""

    async def main() -> dict[str, Any]:
        async with RawServer(_proxy()) as server:
            meta = {"proxy": f"http://127.0.0.1:{server.port}", "suite_address": "127.0.0.5"}
            return await crawl(settings, [{"url": "http://example.test/", "meta": meta}])

    report = asyncio.run(main())
    assert [row[1] for row in report["responses"]] == ["through the proxy"]


def test_more_hosts_than_files(settings: dict[str, Any]) -> None:
    """350 hosts with keep-alive, 300 at a time, in a process of 256 files: none is lost."""
    pytest.importorskip("resource", reason="no such limit on this system")

    async def talk(peer: Peer) -> None:
        while await peer.request() is not None:
            await asyncio.sleep(0.1)
            await peer.send(answer(PAGE, "Keep-Alive: timeout=60"))

    async def main() -> dict[str, Any]:
        async with RawServer(talk) as server:
            meta = {"suite_address": "127.0.0.1"}
            urls = [server.url(host=f"h{number}.test") for number in range(350)]
            requests = [{"url": url, "meta": meta} for url in urls]
            return await crawl(settings | {"CONCURRENT_REQUESTS": 300}, requests, 256)

    report = asyncio.run(main())
    assert report["errors"] == []
    assert len(report["responses"]) == 350
    assert "retry/count" not in report["stats"]
