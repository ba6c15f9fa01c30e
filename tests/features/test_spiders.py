"""Scrapy's spider classes and media pipelines under the suite, over a restart too."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from scrapy.http import Response
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, CSVFeedSpider, Rule, SitemapSpider, XMLFeedSpider
from support.inprocess_crawls import Crawling
from support.websites import Answer, Site, links, moved


class Ruled(CrawlSpider):
    """Follows lists, and reads books."""

    name = "ruled"
    rules = (
        Rule(LinkExtractor(allow="/list")),
        Rule(LinkExtractor(allow="/book"), callback="book", cb_kwargs={"kind": "book"}),
    )

    def book(self, response: Response, kind: str) -> Any:
        """One item for each book."""
        yield {"url": response.url, "kind": kind, "text": response.meta["link_text"]}


class Mapped(SitemapSpider):
    """Reads what the sitemap lists."""

    name = "mapped"
    sitemap_rules = (("/book", "book"),)

    def book(self, response: Response) -> Any:
        """One item for each book."""
        yield {"url": response.url}


class Fed(XMLFeedSpider):
    """Reads an XML feed and a page for each entry."""

    name = "fed"
    itertag = "entry"

    def parse_node(self, response: Response, selector: Any) -> Any:
        """Follow the entry."""
        yield response.follow(selector.xpath("text()").get(), self.book)

    def book(self, response: Response) -> Any:
        """One item for each book."""
        yield {"url": response.url}


class Tabled(CSVFeedSpider):
    """Reads a table and a page for each row."""

    name = "tabled"
    headers = ["path"]  # noqa: RUF012

    def parse_row(self, response: Response, row: dict[str, str]) -> Any:
        """Follow the row."""
        yield response.follow(row["path"], self.book)

    def book(self, response: Response) -> Any:
        """One item for each book."""
        yield {"url": response.url}


BOOKS = [f"/book/{n}" for n in range(8)]
XML = {"Content-Type": "text/xml"}


def library(site: Site) -> dict[type, Any]:
    """Fill *site*, and say where each spider begins."""
    site.pages |= dict.fromkeys(BOOKS, links())
    site.pages["/list/1"] = links("/list/2", *BOOKS[:4])
    site.pages["/list/2"] = links("/list/1", *BOOKS[4:])
    urls = "".join(f"<url><loc>{site.url}{path}</loc></url>" for path in BOOKS)
    namespace = 'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'
    site.pages["/map.xml"] = Answer(f"<urlset {namespace}>{urls}</urlset>".encode(), headers=XML)
    site.pages["/robots.txt"] = f"Sitemap: {site.url}/map.xml"
    entries = "".join(f"<entry>{path}</entry>" for path in BOOKS)
    site.pages["/feed.xml"] = Answer(f"<feed>{entries}</feed>".encode(), headers=XML)
    site.pages["/table.csv"] = Answer(
        "\n".join(BOOKS).encode(), headers={"Content-Type": "text/csv"}
    )
    return {
        Ruled: {"start_urls": [f"{site.url}/list/1"]},
        Mapped: {"sitemap_urls": [f"{site.url}/robots.txt"]},
        Fed: {"start_urls": [f"{site.url}/feed.xml"]},
        Tabled: {"start_urls": [f"{site.url}/table.csv"]},
    }


@pytest.mark.parametrize("spidercls", [Ruled, Mapped, Fed, Tabled])
def test_the_same_items_with_and_without(spidercls: Any, site: Site, crawl: Crawling) -> None:
    """CrawlSpider, SitemapSpider, XMLFeedSpider and CSVFeedSpider give the same items."""
    arguments = library(site)[spidercls]
    plain = crawl(spidercls, addon=False, arguments=arguments)
    suite = crawl(spidercls, arguments=arguments)
    assert suite.item_set() == plain.item_set()
    assert {item["url"] for item in suite.items} == {site.url + path for path in BOOKS}


@pytest.mark.parametrize("spidercls", [Ruled, Mapped, Fed, Tabled])
def test_a_job_is_stopped_and_resumed(
    spidercls: Any, site: Site, crawl: Crawling, tmp_path: Path
) -> None:
    """With JOBDIR each of them goes on where it stopped, and asks for no page twice."""
    settings: dict[str, Any] = {
        "arguments": library(site)[spidercls], "JOBDIR": str(tmp_path / "job"),
        "CONCURRENT_REQUESTS": 1,
    }  # fmt: skip
    first = crawl(spidercls, CLOSESPIDER_PAGECOUNT=4, **settings)
    assert first.reason == "closespider_pagecount"
    second = crawl(spidercls, **settings)
    assert second.reason == "finished"
    items = [item["url"] for item in (*first.items, *second.items)]
    assert set(items) == {site.url + path for path in BOOKS}
    assert len(items) == len(BOOKS)
    paths = [path for path in site.paths() if not path.endswith("robots.txt")]
    assert len(paths) == len(set(paths))


def picture() -> bytes:
    """A small JPEG."""
    data = io.BytesIO()
    Image.new("RGB", (60, 60), "red").save(data, "JPEG")
    return data.getvalue()


class Shop(CrawlSpider):
    """One item with files and images."""

    name = "shop"

    def parse_start_url(self, response: Response, **kwargs: Any) -> Any:
        """See the class."""
        paths = response.css("a::attr(href)").getall()
        urls = [response.urljoin(path) for path in paths]
        yield {"file_urls": urls, "image_urls": [url for url in urls if url.endswith("jpg")]}


def stored(folder: Path) -> dict[str, bytes]:
    """The files below *folder* by name."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*") if path.is_file()
    }  # fmt: skip


def test_files_and_images(site: Site, crawl: Crawling, tmp_path: Path) -> None:
    """FilesPipeline and ImagesPipeline store the same files, at the host's pace."""
    paths = ["/a.pdf", "/b.pdf", "/p.jpg", "/moved.pdf", "/gone.pdf"]
    site.pages |= {
        "/": links(*paths), "/a.pdf": b"a", "/b.pdf": b"b", "/p.jpg": Answer(picture()),
        "/moved.pdf": moved("/a.pdf"),
    }  # fmt: skip
    found = []
    for addon in (True, False):
        folder = tmp_path / str(addon)
        done = crawl(
            Shop, addon=addon, arguments={"start_urls": [site.url]},
            ITEM_PIPELINES={
                "scrapy.pipelines.files.FilesPipeline": 1,
                "scrapy.pipelines.images.ImagesPipeline": 2,
            },
            FILES_STORE=str(folder / "files"), IMAGES_STORE=str(folder / "images"),
            IMAGES_THUMBS={"small": (20, 20)}, MEDIA_ALLOW_REDIRECTS=True, DOWNLOAD_DELAY=0.05,
        )  # fmt: skip
        (item,) = done.items
        found.append((stored(folder), sorted(file["url"] for file in item["files"])))
        assert done.stat("file_count") == 5
    assert found[0] == found[1]
    assert len(found[0][0]) == 6
