"""An indexer that fetches for a crawl: which words are on which pages, in SQLite.

    scrapy crawl broad -s JOBDIR=crawls/books -s SUITE_URL_SERVER=127.0.0.1:7080 &
    python url_indexer.py crawls/books words.sqlite
    python url_indexer.py --find "flat earth" words.sqlite

It needs the package for `UrlClient`, and nothing else. docs/url-server.md explains the calls.
"""

from __future__ import annotations

import argparse
import re
import sqlite3
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from scrapy_spider_suite.url_client import UrlClient, UrlServerError

AT_ONCE = 20
WAIT = 30.0  # seconds without a URL after which it ends
MOST = 4 << 20  # bytes of a page


class Page(HTMLParser):
    """The text and the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links = list[str]()
        self.text = list[str]()
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in ("script", "style")
        if tag == "a" and (target := dict(attrs).get("href")):
            self.links.append(target)

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if self._hidden <= 0:
            self.text.append(data)


class NoRedirects(HTTPRedirectHandler):
    """The crawl follows them, with the delay of the other host."""

    def redirect_request(self, *_: Any) -> None:
        return None


OPENER = build_opener(NoRedirects)


def text_of(body: bytes, charset: str) -> str:
    """*body* as text; of an unknown *charset* as UTF-8."""
    try:
        return body.decode(charset, "replace")
    except LookupError:
        return body.decode("utf-8", "replace")


def fetch(row: dict[str, Any]) -> tuple[dict[str, Any], Page | None]:
    """What came of *row*, and its page if it has one."""
    result: dict[str, Any] = {"id": row["id"]}
    try:
        request = Request(row["url"], headers=dict(row["headers"]))
        with OPENER.open(request, timeout=row["seconds"] / 4) as answer:
            body = answer.read(MOST)
            result |= {"status": answer.status, "headers": answer.getheaders()}
            if answer.headers.get_content_type() != "text/html":
                return result, None
            page = Page()
            page.feed(text_of(body, answer.headers.get_content_charset() or "utf-8"))
            return result | {"links": page.links}, page
    except HTTPError as error:
        return result | {"status": error.code, "headers": list(error.headers.items())}, None
    except TimeoutError:
        return result | {"error": "timeout"}, None
    except (OSError, HTTPException, ValueError) as error:
        return result | {"error": str(error) or type(error).__name__}, None


def index(jobdir: str, database: sqlite3.Connection) -> None:
    """Fetch and index until no URL comes for a while."""
    client, pages = UrlClient.of_job(jobdir), 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while rows := client.pop(AT_ONCE, wait=WAIT):
            results = list(pool.map(fetch, rows))
            for row, (_, page) in zip(rows, results, strict=True):
                if page is not None:
                    text = re.sub(r"\s+", " ", " ".join(page.text)).strip()
                    database.execute("INSERT INTO pages VALUES (?, ?)", (row["url"], text))
                    pages += 1
            database.commit()  # before the crawl forgets them
            client.complete(result for result, _ in results)
            print(f"{pages} pages", file=sys.stderr)


def find(words: str, database: sqlite3.Connection) -> Iterator[str]:
    """The pages with *words*, the best first."""
    asked = " ".join(f'"{word}"' for word in re.findall(r"\w+", words))
    query = "SELECT url FROM pages WHERE pages MATCH ? ORDER BY rank LIMIT 10"
    for (url,) in database.execute(query, (asked,)):
        yield url


def main() -> int:
    """Index a crawl, or find pages."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("jobdir", nargs="?", help="the job directory of the crawl")
    parser.add_argument("database")
    parser.add_argument("--find", metavar="WORDS", help="print the pages with these words")
    options = parser.parse_args()
    if not (options.find or options.jobdir):
        parser.error("give the job directory, or --find")
    with sqlite3.connect(options.database) as database:
        database.execute("CREATE VIRTUAL TABLE IF NOT EXISTS pages USING fts5(url UNINDEXED, text)")
        if options.find:
            print("\n".join(find(options.find, database)))
            return 0
        try:
            index(options.jobdir, database)
        except UrlServerError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
