"""An ordinary spider with a login, for crawls of several agents."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import scrapy
from scrapy.http import Response


class Members(scrapy.Spider):
    """Logs in, and follows the links of its sites; what is linked with ``/in/`` needs the session.

    Arguments: *gate*, the URL of the form; *sites*, the URLs to begin with.
    """

    name = "members"

    def __init__(self, gate: str = "", sites: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.gate, self.sites = gate, sites.split()

    async def start(self) -> AsyncIterator[Any]:
        """The login, then the sites."""
        yield scrapy.Request(
            self.gate, method="POST", body="user=anna", callback=self.entered, priority=1,
            cb_kwargs={"user": "anna"},
        )  # fmt: skip
        for number, url in enumerate(self.sites):
            yield scrapy.Request(url, cb_kwargs={"site": number})

    def entered(self, response: Response, user: str) -> Iterator[Any]:
        """Note the login."""
        yield self._note(response, user=user)

    def parse(self, response: Response, site: int, trail: list[str] | None = None) -> Iterator[Any]:
        """Note the page, and follow its links with what led to them."""
        yield self._note(response, site=site, trail=trail)
        trail = [*(trail or []), response.url]
        for link in response.css("a::attr(href)").getall():
            inside = "/in/" in link
            yield response.follow(
                link, self.inside if inside else self.parse, meta={"by": self._agent},
                cb_kwargs={"site": site, "trail": trail},
            )  # fmt: skip

    def inside(self, response: Response, site: int, trail: list[str]) -> Iterator[Any]:
        """Note a page for members, and what it greets them with."""
        yield self._note(response, site=site, trail=trail, greeting=response.text)

    @property
    def _agent(self) -> str:
        return str(self.settings["SUITE_AGENT_NAME"])

    def _note(self, response: Response, **known: Any) -> dict[str, Any]:
        by = response.meta.get("by")
        return {"url": response.url, "agent": self._agent, "by": by, **known}
