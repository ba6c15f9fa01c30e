"""Which servers a project fetches from over TLS, by their certificates and protocols."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from scrapy.settings import default_settings
from support import forks
from support.names import Component, Setting
from support.projects import SCRAPY, environment
from support.tls_sites import Authority, tls_sites
from support.websites import Site

SPIDER = """
import json
import scrapy

class Probe(scrapy.Spider):
    name = "probe"

    async def start(self):
        for url in json.loads(self.urls):
            yield scrapy.Request(url, errback=lambda failure: None)

    def parse(self, response):
        yield {"url": response.url}
"""
OWN_FACTORY = "scrapy.core.downloader.contextfactory.BrowserLikeContextFactory"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority that the crawls trust."""
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def sites(authority: Authority) -> Iterator[dict[str, Site]]:
    """One site in order, and one with each fault."""
    with tls_sites(authority) as served:
        yield served


def fetched(
    sites: dict[str, Site], authority: Authority, folder: Path, profile: str, **settings: object
) -> tuple[set[str], str]:
    """Crawl all *sites*; return those that were asked for a page, and the log."""
    (folder / "probe.py").write_text(SPIDER)
    urls = json.dumps([f"https://localhost:{site.server_port}/" for site in sites.values()])
    given = {
        "ADDONS": json.dumps({Component.ADDON: 500}), Setting.PROFILE: profile,
        Setting.ALLOW_PRIVATE_ADDRESSES: "127.0.0.0/8,::1", Setting.HOST_DELAY: 0.001,
        Setting.IP_DELAY: 0.001, Setting.BACKOFF_BASE: 0.01, "RETRY_ENABLED": False,
        "ROBOTSTXT_OBEY": False, **settings,
    }  # fmt: skip
    line = [f"-s{name}={value}" for name, value in given.items()]
    ended = forks.run(
        SCRAPY, "runspider", "probe.py", "-a", f"urls={urls}", *line, folder=folder,
        environment={**environment(), "SSL_CERT_FILE": str(authority.path)}, timeout=60,
    )  # fmt: skip
    return {name for name, site in sites.items() if site.visits}, ended.stderr


@pytest.mark.parametrize("profile", ["spider", "broad"])
def test_a_context_factory_of_the_project_decides(
    profile: str, sites: dict[str, Site], authority: Authority, tmp_path: Path
) -> None:
    """A factory that verifies keeps every faulty server out, and the log names it once."""
    reached, log = fetched(
        sites, authority, tmp_path, profile, DOWNLOADER_CLIENTCONTEXTFACTORY=OWN_FACTORY
    )
    assert reached == {"in order"}
    (said,) = (line for line in log.splitlines() if "kept: DOWNLOADER_CLIENTCONTEXTFACTORY" in line)
    assert "in place: scrapy.core.downloader.handlers.http11.HTTP11DownloadHandler;" in said
    assert ("DOWNLOAD_VERIFY_CERTIFICATES = True" in said) == hasattr(
        default_settings, "DOWNLOAD_VERIFY_CERTIFICATES"
    )


def test_scrapys_switch_verifies_certificates(
    sites: dict[str, Site], authority: Authority, tmp_path: Path
) -> None:
    """DOWNLOAD_VERIFY_CERTIFICATES keeps every faulty server out."""
    reached, log = fetched(sites, authority, tmp_path, "broad", DOWNLOAD_VERIFY_CERTIFICATES=True)
    assert reached == {"in order"}
    assert "CONTEXTFACTORY" not in log


def test_an_old_protocol_can_be_allowed(
    sites: dict[str, Site], authority: Authority, tmp_path: Path
) -> None:
    """As with plain Scrapy certificates are not verified; its settings allow old protocols, too."""
    reached, _ = fetched(
        sites, authority, tmp_path, "spider",
        DOWNLOADER_CLIENT_TLS_CIPHERS="DEFAULT:@SECLEVEL=0", DOWNLOAD_TLS_MIN_VERSION="TLSv1.0",
    )  # fmt: skip
    assert reached == set(sites)
