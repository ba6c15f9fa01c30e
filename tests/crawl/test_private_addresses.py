"""No page leads a crawl inside: listeners on private addresses stay silent (promise 4)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.crawls import crawl, web_settings
from support.silent_listeners import PUBLIC_NETWORK, Silent, Tempter, ways_inside
from support.webs import FakeWebProcess

from scrapy_spider_suite.testing import FakeWebConfig

OWN = {
    "DOWNLOADER_CLIENTCONTEXTFACTORY":
        "scrapy.core.downloader.contextfactory.BrowserLikeContextFactory"
}  # fmt: skip
"""With it the add-on leaves Scrapy's download handler in place."""
SPIDERS = {"broad": "support.spiders.Bulk", "spider": "support.spiders.Tempted"}


@pytest.fixture
def silent() -> Iterator[Silent]:
    """Listeners inside."""
    listeners = Silent()
    yield listeners
    listeners.close()


@pytest.fixture
def tempter(silent: Silent) -> Iterator[Tempter]:
    """A server outside that leads inside."""
    server = Tempter(ways_inside(silent.port))
    yield server
    server.close()


def _crawl(profile: str, tempter: Tempter, folder: Path, **settings: Any) -> dict[str, Any]:
    # Of the in-vitro web only the name server is used: its names lead inside.
    with FakeWebProcess(FakeWebConfig(hosts=1, addresses=1)) as web:
        chosen = web_settings(
            web.ready.dns_port,
            **{
                "SUITE_ALLOW_PRIVATE_ADDRESSES": [PUBLIC_NETWORK], "SUITE_HOST_DELAY": 0.001,
                "SUITE_IP_DELAY": 0.001, "SUITE_DEAD_HOST_FAILURES": 2, "SUITE_BACKOFF_BASE": 0.1,
                "SUITE_BACKOFF_MAX": 1, "SUITE_RETRY_TIMES": 0, "RETRY_TIMES": 0,
                "SUITE_MAX_WAIT": 10, "DOWNLOAD_TIMEOUT": 5, **settings,
            },
        )  # fmt: skip
        arguments = {"seeds" if profile == "broad" else "start": tempter.start}
        end = crawl(SPIDERS[profile], chosen, folder, timeout=90, **arguments)
    assert end.reason in ("finished", "waiting"), end.log[-3000:]
    return end.stats


@pytest.mark.slow
@pytest.mark.parametrize(
    ("profile", "own", "obey"),  # each two of them in all ways
    [("broad", {}, True), ("broad", OWN, False), ("spider", {}, False), ("spider", OWN, True)],
    ids=["broad-ours-robots", "broad-Scrapy's", "spider-ours", "spider-Scrapy's-robots"],
)
def test_nothing_leads_inside(
    profile: str, own: dict[str, str], obey: bool, silent: Silent, tempter: Tempter, tmp_path: Path
) -> None:
    """Links, redirects, refreshes, redirected robots.txt and files do not reach the listeners."""
    stats = _crawl(
        profile, tempter, tmp_path, ROBOTSTXT_OBEY=obey, **own,
        ITEM_PIPELINES={"scrapy.pipelines.files.FilesPipeline": 1},
        FILES_STORE=str(tmp_path / "files"), MEDIA_ALLOW_REDIRECTS=True,
    )  # fmt: skip
    assert silent.callers() == []
    assert stats["suite/outcome/private_address"] >= 15
    assert stats["downloader/response_status_count/302"] >= len(tempter.ways)


@pytest.mark.slow
def test_what_is_allowed_is_reached(silent: Silent, tempter: Tempter, tmp_path: Path) -> None:
    """The listeners would have noticed: with everything allowed they are called."""
    _crawl(
        "broad", tempter, tmp_path, SUITE_ALLOW_PRIVATE_ADDRESSES=True, DOWNLOAD_TIMEOUT=0.5,
        ROBOTSTXT_OBEY=False,
    )  # fmt: skip
    assert {"127.0.0.1", "127.8.0.1"} <= set(silent.callers())
