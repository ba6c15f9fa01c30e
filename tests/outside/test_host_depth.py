"""The depth limit of hosts, which is counted from the page by which each host was entered."""

from __future__ import annotations

from pathlib import Path

from support.names import Setting
from support.projects import Project
from support.websites import Page, Site, links, running


def test_it_counts_from_where_the_host_was_entered(tmp_path: Path) -> None:
    """Two links deep on each host, links to other hosts apart; also after a restart."""
    pages: dict[str, Page] = {f"/{n}": f"<p>{'word ' * n}" + links(f"/{n + 1}") for n in range(6)}
    with running(Site(pages, "127.0.0.2")) as entered, running(Site()) as first:
        first.pages = pages | {"/2": links("/3", f"{entered.url}/0"), "/3": "<p>Too deep."}
        project = Project(
            tmp_path / "project", ROBOTSTXT_OBEY=False, **{
                Setting.ALLOW_PRIVATE_ADDRESSES: True, Setting.HOST_DELAY: 0, Setting.IP_DELAY: 0,
                Setting.HOST_MAX_DEPTH: 2,
            },
        )  # fmt: skip
        for most in (4, 0):
            limit = f"-s{Setting.MAX_PAGES}={most}"
            project.scrapy("crawl", "bulk", f"-aseeds={first.url}/0", "-sJOBDIR=job", limit)
            assert entered.paths() == ["/0", "/1", "/2"][: 1 if most else 3]
        assert first.paths() == ["/0", "/1", "/2"]
