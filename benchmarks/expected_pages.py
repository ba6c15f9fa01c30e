"""Which pages of the in-vitro web's traps and ordinary sites are real: what a crawl has to find."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product

from scrapy_spider_suite.testing.trap_sites import (
    ARTICLES,
    BOARDS,
    DEPARTMENTS,
    LISTED,
    MEMBERS,
    NAMES,
    ORDINARY_FACETS,
    PAGES,
    POSTS,
    THREADS,
    OrdinarySite,
    ordinary_hosts,
    trap_hosts,
    trap_number,
)

_PATHS = ("/", *(f"/page/{number}.html" for number in range(1, PAGES + 1)))


def trap_of(host: str, path: str) -> str | None:
    """The trap that *path* (with its query) belongs to; None for a real page."""
    return None if host in trap_hosts() and path in _PATHS else NAMES[trap_number(host)]


def real_pages(base_of: Callable[[str], str]) -> list[str]:
    """The URLs of the real pages of all traps; *base_of* gives the URL of a host."""
    return [base_of(host) + path for host in trap_hosts() for path in _PATHS]


class KnownSites(OrdinarySite):
    """The ordinary sites, which name their pages."""

    def real(self) -> set[str]:
        """All pages, without scheme."""
        return {
            *self._real_forum(), *self._real_shop(), *self._real_wiki(),
            *(f"{host}/" for host in ordinary_hosts()),
        }  # fmt: skip

    def _real_forum(self) -> Iterable[str]:
        host, members = "forum-site.test", set[int]()
        for board in range(BOARDS):
            base = f"{host}/viewforum.php?f={board}"
            yield from _paged(base, THREADS, LISTED)
            for thread in range(board * THREADS, (board + 1) * THREADS):
                base, count = f"{host}/viewtopic.php?f={board}&t={thread}", self._posts(thread)
                yield from _paged(base, count, POSTS)
                members |= {
                    self._prose.number(f"post {thread} {each}") % MEMBERS for each in range(count)
                }
        yield from (f"{host}/member.php?u={each}" for each in members)

    def _real_shop(self) -> Iterable[str]:
        host = "shop-site.test"
        ways = [("", *values) for values in ORDINARY_FACETS.values()]
        for department, *chosen in product(map(str, range(DEPARTMENTS)), *ways):
            pairs = zip(ORDINARY_FACETS, chosen, strict=True)
            asked = {name: value for name, value in pairs if value}
            listed = self._listed({"in": department} | asked)
            yield from (f"{host}/product/{each}" for each in listed)
        yield from (f"{host}/list?in={each}" for each in range(DEPARTMENTS))

    def _real_wiki(self) -> Iterable[str]:
        host = "wiki-site.test"
        for article in range(ARTICLES):
            form = f"{host}/index.php?title={article}"
            yield from (f"{host}/wiki/{article}", f"{form}&action=history")
            yield from (f"{form}&oldid={old}" for old in self._revisions(article))


def _paged(base: str, count: int, size: int) -> Iterable[str]:
    yield base
    yield from (f"{base}&start={at}" for at in range(size, count, size))
