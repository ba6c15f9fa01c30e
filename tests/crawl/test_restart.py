"""What a spider knows goes on with its job, in both profiles: its state, and its logins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scrapy import Spider
from scrapy.http import Response
from support.inprocess_crawls import Crawled, crawl_here
from support.websites import Answer, Site, running

LOGGED_IN = Answer(b"<title>in</title>", headers={"Set-Cookie": "session=42; Path=/"})


class Member(Spider):
    """Logs in, then goes on to the members' page, and counts in its state."""

    name = "member"

    def __init__(self, login: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.start_urls = [login]

    def parse(self, response: Response) -> Iterator[Any]:
        """Count, and go on."""
        self.state["pages"] = [*self.state.get("pages", ()), response.url]
        self.state.setdefault("seen", set()).add(len(self.state["pages"]))
        if response.url.endswith("/login"):
            yield response.follow("/members", meta={"trail": ("login",)})
        else:
            yield {"trail": response.meta["trail"]}

    def closed(self, reason: str) -> None:
        """Even what is noted last is kept."""
        self.state["reason"] = reason


@pytest.fixture
def site() -> Iterator[Site]:
    """A page to log in, and one for members."""
    with running(Site({"/login": LOGGED_IN, "/members": "<title>members</title>"})) as site:
        yield site


@pytest.mark.parametrize("profile", ["spider", "broad"])
def test_state_and_cookies_go_on(
    profile: str, site: Site, tmp_path: Path, run: Callable[[Any], Crawled]
) -> None:
    """The second run begins with the state and the session that the first ended with."""

    def crawl(**settings: Any) -> Crawled:
        return run(
            crawl_here(
                Member, arguments={"login": f"{site.url}/login"}, JOBDIR=str(tmp_path / "job"),
                SUITE_PROFILE=profile, SUITE_ALLOW_PRIVATE_ADDRESSES=True, ROBOTSTXT_OBEY=False,
                SUITE_HOST_DELAY=0.3, USER_AGENT="tests (a@b.example)", **settings,
            )
        )  # fmt: skip

    first = crawl(CLOSESPIDER_PAGECOUNT=1)
    assert first.reason == "closespider_pagecount"
    assert site.paths() == ["/login"]
    second = crawl()
    assert second.reason == "finished"
    assert site.paths() == ["/login", "/members"]
    assert site.visits[1].headers["Cookie"] == "session=42"
    assert second.items == [{"trail": ("login",)}]
    assert second.spider.state == {
        "pages": [f"{site.url}/login", f"{site.url}/members"],
        "seen": {1, 2},
        "reason": "finished",
    }
    third = crawl()
    assert len(site.visits) == 2
    assert third.spider.state["reason"] == "finished"


def test_nothing_goes_on_without_a_job(site: Site, run: Callable[[Any], Crawled]) -> None:
    """As in Scrapy: there is no spider.state, and the next crawl logs in again."""

    class Stateless(Member):
        state: dict[str, Any]

        def parse(self, response: Response) -> Iterator[Any]:
            self.state = {}
            return super().parse(response)

    for _ in range(2):
        run(crawl_here(Stateless, arguments={"login": f"{site.url}/login"}, ROBOTSTXT_OBEY=False))
    assert site.paths() == ["/login", "/members"] * 2
    assert "Cookie" not in site.visits[2].headers
