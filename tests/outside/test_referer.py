"""The Referer of bulk links, by the server's log."""

from __future__ import annotations

import json
from pathlib import Path

from support.crawls import loopback_settings
from support.names import Setting
from support.projects import Project
from support.websites import Answer, Site, links, running


def referers(folder: Path, **settings: object) -> dict[str, str | None]:
    """Crawl two sites that link to each other; return the Referer of each path."""
    with running(Site(host="127.0.0.2")) as far, running(Site()) as near:
        far.pages = dict.fromkeys(("/told", "/silent"), links())
        near.pages = {
            "/": links("/page?secret=1", "/quiet"),
            "/page?secret=1": links("/near", f"{far.url}/told"),
            "/quiet": Answer(
                links("/hidden", f"{far.url}/silent").encode(),
                headers={"Referrer-Policy": "no-referrer"},
            ),
            **dict.fromkeys(("/near", "/hidden"), links()),
        }
        given = {Setting.HOST_DELAY: 0.001, Setting.IP_DELAY: 0.001, "ROBOTSTXT_OBEY": False}
        project = Project(folder / "project", **loopback_settings(**given, **settings))
        ended = project.scrapy("crawl", "bulk", "-a", f"seeds={near.url}/")
        assert (len(near.visits), len(far.visits)) == (5, 2), ended.stderr[-2000:]
        sent = {
            visit.path: visit.headers.get("Referer") for visit in [*near.visits, *far.visits]
        }
        return json.loads(json.dumps(sent).replace(near.url, "near:"))  # type: ignore[no-any-return]


def test_links_carry_the_page_that_they_were_found_on(tmp_path: Path) -> None:
    """REFERRER_POLICY says how much of it; the page's own Referrer-Policy wins."""
    sent = referers(tmp_path, REFERRER_POLICY="strict-origin-when-cross-origin")
    assert sent == {
        "/": None,
        "/page?secret=1": "near:/",
        "/quiet": "near:/",
        "/near": "near:/page?secret=1",
        "/told": "near:/",
        "/hidden": None,
        "/silent": None,
    }


def test_no_referer_without_scrapys_middleware(tmp_path: Path) -> None:
    """REFERER_ENABLED = False holds for links, too."""
    assert set(referers(tmp_path, REFERER_ENABLED=False).values()) == {None}
