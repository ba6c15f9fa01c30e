"""Three old projects, left as they are: the same items and files with the add-on and without."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from PIL import Image
from support.forks import Fork
from support.projects import SCRAPY
from support.websites import Answer, Site, Visit, moved, running

HERE = Path(__file__).parent
LINE = '\nADDONS = {"scrapy_spider_suite.Addon": 500}\n'
PAGES, BOOKS = 5, 40


@pytest.fixture
def site() -> Iterator[Site]:
    """All three sites in one."""
    with running(Site()) as server:
        members(server)
        catalogue(server)
        goods(server)
        yield server


def members(site: Site) -> None:
    """A login form with a token and a session; without the session every page leads back to it."""

    def form(visit: Visit) -> Answer:
        if visit.method == "GET":
            return Answer(
                b'<form action="/login" method="post"><input name="token" value="t1" type="hidden">'
                b'<input name="user"><input name="password" type="password"></form>',
                headers={"Set-Cookie": "visit=1"},
            )
        fields = parse_qs(visit.body.decode())
        expected = {"token": ["t1"], "user": ["anna"], "password": ["secret"]}
        if fields != expected or "visit=1" not in visit.headers.get("Cookie", ""):
            return Answer(b"Sorry")
        return Answer(status=302, headers={"Location": "/inbox", "Set-Cookie": "session=anna"})

    def behind(page: str) -> Any:
        def guarded(visit: Visit) -> Answer:
            if "session=anna" not in visit.headers.get("Cookie", ""):
                return moved("/login")
            return Answer(page.encode())

        return guarded

    anchors = [f'<a class="message" title="m{n}" href="/message/{n}">{n}</a>' for n in range(9)]
    site.pages |= {"/login": form, "/inbox": behind("Welcome " + "".join(anchors))}
    site.pages |= {f"/message/{n}": behind(f"<h1>No {n}</h1><p>Text {n}</p>") for n in range(9)}


def catalogue(site: Site) -> None:
    """Lists of books with a link to the next list, and a sitemap of all books."""
    each = BOOKS // PAGES
    for page in range(PAGES):
        numbers = range(page * each, (page + 1) * each)
        books = "".join(
            f'<a href="/book/{n}">b</a><a href="/book/{n}?print">p</a>' for n in numbers
        )
        after = f'<li class="next"><a href="/list/{page + 1}">next</a></li>'
        site.pages[f"/list/{page}"] = books + (after if page < PAGES - 1 else "")
    for n in range(BOOKS):
        site.pages[f"/book/{n}"] = (
            f'<h1>Book {n}</h1><i class="price">€ {n}.50</i><i class="stock">{n % 4}</i>'
        )
    urls = "".join(f"<url><loc>{site.local}/book/{n}</loc></url>" for n in range(BOOKS))
    space = 'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'
    xml = {"Content-Type": "text/xml"}
    site.pages["/map.xml"] = Answer(f"<urlset {space}>{urls}</urlset>".encode(), headers=xml)
    site.pages["/robots.txt"] = f"User-agent: *\nDisallow: /never\nSitemap: {site.local}/map.xml"


def goods(site: Site) -> None:
    """Articles with a picture each, and manuals, one of them behind a redirect, one missing."""
    site.pages["/"] = "".join(f'<a class="article" href="/article/{n}">a</a>' for n in range(6))
    for n in range(6):
        site.pages[f"/article/{n}"] = (
            f'<h1>Article {n}</h1><img src="/{n}.jpg"><a class="manual" href="/{n}.pdf">m</a>'
        )
        data = io.BytesIO()
        Image.new("RGB", (40, 40), (40 * n, 0, 0)).save(data, "JPEG")
        site.pages[f"/{n}.jpg"] = data.getvalue()
        site.pages[f"/{n}.pdf"] = f"manual {n}"
    site.pages["/1.pdf"] = moved("/2.pdf")
    del site.pages["/3.pdf"]


def prepare(name: str, folder: Path, *, addon: bool) -> Path:
    """A copy of the project *name* in *folder*, with the add-on's line or as it is."""
    project = folder / ("suite" if addon else "plain")
    shutil.copytree(HERE / name, project, ignore=shutil.ignore_patterns("__pycache__"))
    if addon:
        with (project / name / "settings.py").open("a") as settings:
            settings.write(LINE)
    return project


def start(project: Path, spider: str, site: Site, *more: str) -> Fork:
    """Begin ``scrapy crawl``; its log goes to the file ``log``."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    with (project / "log").open("ab") as log:
        line = ["crawl", spider, "-a", f"site={site.local}", "-o", "items.jsonl", *more]
        return Fork(SCRAPY, line, project, os.environ | {"PYTHONPATH": path}, log, log)


def items(project: Path) -> list[str]:
    """The items, each as a line that can be compared."""
    feed = project / "items.jsonl"
    lines = feed.read_text().splitlines() if feed.exists() else []
    return sorted(json.dumps(json.loads(line), sort_keys=True) for line in lines)


def files(project: Path) -> dict[str, bytes]:
    """What the media pipelines stored."""
    folder = project / "stored"
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*") if path.is_file()
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "spider", "count"),
    [
        ("login", "inbox", 9),
        ("books", "catalogue", BOOKS * 3 // 4),
        ("books", "listed", BOOKS * 3 // 4),
        ("shop", "goods", 6),
    ],
)
def test_the_same_items_and_files(
    name: str, spider: str, count: int, site: Site, tmp_path: Path
) -> None:
    """One line in settings.py changes neither the items nor the files."""
    found = []
    for addon in (True, False):
        project = prepare(name, tmp_path, addon=addon)
        code = start(project, spider, site).wait(60)
        assert code == 0, (project / "log").read_text()
        found.append(({status_free(item) for item in items(project)}, files(project)))
        assert ("suite/frontier" in (project / "log").read_text()) is addon
    with_suite, without = found
    assert with_suite == without
    assert len(with_suite[0]) == count


def status_free(item: str) -> str:
    """*item* without what differs from run to run: whether a file was fetched or known by then."""
    data = json.loads(item)
    for key in ("files", "images"):
        for entry in data.get(key, ()):
            entry.pop("status")
    return json.dumps(data, sort_keys=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "spider"), [("login", "inbox"), ("books", "catalogue"), ("books", "listed")]
)
def test_killed_and_resumed(name: str, spider: str, site: Site, tmp_path: Path) -> None:
    """With JOBDIR, kill -9 in the middle and a second start miss no page; no more is asked twice
    than was under way."""
    project = prepare(name, tmp_path, addon=True)
    more = ("-s", "JOBDIR=job", "-s", "DOWNLOAD_DELAY=0.1", "-s", "CONCURRENT_REQUESTS=2")
    first = start(project, spider, site, *more)
    deadline = time.monotonic() + 30
    while len(site.visits) < 7 and time.monotonic() < deadline:
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert start(project, spider, site, *more).wait(60) == 0, (project / "log").read_text()
    wanted = "/message/" if name == "login" else "/book/"
    paths = [path for path in site.paths() if wanted in path and "print" not in path]
    assert len(set(paths)) == (9 if name == "login" else BOOKS)
    assert len(paths) - len(set(paths)) <= 2
