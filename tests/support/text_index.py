"""An index of texts beside a naive one that is made of the same packs."""

from __future__ import annotations

import re
from pathlib import Path

from scrapy_spider_suite.analysis.page_text import extract_text
from scrapy_spider_suite.analysis.search import open_index
from scrapy_spider_suite.analysis.search.index_follower import IndexFollower
from scrapy_spider_suite.analysis.search.index_place import IndexPlace
from scrapy_spider_suite.analysis.search.text_index import PAGE, OpenIndex, to_document
from scrapy_spider_suite.packs import Capture, PackWriter, Page, open_packs
from support.packs import NOW, fetch, hand_in, head, plan

Contents = dict[str, tuple[str, str, str]]
"""URL -> when it was fetched, its title, its text."""


def saying(text: str, title: str = "") -> bytes:
    """A page that says *text*."""
    return f"<!doctype html><title>{title}</title><body><p>{text}</p></body>".encode()


def page(number: int, text: str, time: float = 0.0, *, status: int = 200, host: str = "a.test",
         title: str = "", kind: str = "text/html") -> Capture:  # fmt: skip
    """The fetch of ``http://a.test/number``, *time* seconds after `NOW`."""
    body = saying(text, title or f"title{number}") if kind == "text/html" else text.encode()
    lines = head(len(body)).replace(b"200 OK", b"%d X" % status)
    lines = lines.replace(b"text/html", kind.encode())
    return fetch(number, body, url=f"http://{host}/{number}", time=NOW + time, head=lines)


def write(folder: Path, *fetches: Capture, form: str = "lzo", time: float = NOW) -> Path:
    """A closed pack."""
    before = set(folder.iterdir())
    writer = PackWriter(plan(folder, form), clock=lambda: time)
    for one in fetches:
        hand_in(writer, one)
    writer.close()
    return next(path for path in set(folder.iterdir()) - before if path.suffix == f".{form}")


def followed(folder: Path) -> Contents:
    """Bring the index of *folder* to where the packs are; what is in it then."""
    follower = IndexFollower(folder)
    while follower.step().more:
        pass
    return contents(folder)


def contents(folder: Path) -> Contents:
    """What is in the index."""
    found = map(to_document, OpenIndex(IndexPlace(folder).current()).find("kind", PAGE))
    return {each.entry.url: (each.entry.stamp, each.title, each.text) for each in found}


def expected(folder: Path) -> Contents:
    """What has to be in it: of each URL the newest version, unless there is none any more."""
    pages = sorted(open_packs(folder), key=lambda each: (_stamp(each), each.path.name, each.place))
    found: Contents = {}
    for each in pages:
        if each.status >= 500 or each.url.endswith("/robots.txt"):
            continue
        found.pop(each.url, None)
        said = extract_text(each.body, each.headers.get("content-type", ""))
        if each.status == 200 and (said.title or said.text):
            found[each.url] = (_stamp(each), said.title, said.text)
    return found


def naive(known: Contents, *words: str) -> set[str]:
    """The URLs of pages that have all of *words*."""
    return {url for url, (_, title, text) in known.items()
            if set(words) <= set(re.findall(r"\w+", f"{title} {text}".lower()))}  # fmt: skip


def hits(folder: Path, query: str) -> set[str]:
    """The URLs that a search gives."""
    return {hit.url for hit in open_index(folder).search(query, limit=10_000)}


def _stamp(found: Page) -> str:
    assert found.time is not None
    return f"{found.time:%Y%m%d%H%M%S}"
