"""Three ordinary sites of the in-vitro web that look like traps, and are none.

====================  =========================================================================
``forum-site.test``   boards and threads of many pages each, with lists sorted in six ways, and
                      members: ``viewforum.php?f=3&start=25``, ``viewtopic.php?f=3&t=77&start=10``
``shop-site.test``    a list for each department that shows the first ten of what it has, and
                      facets that narrow it: most products are found by those only
``wiki-site.test``    articles, with ``?title=…&action=edit`` and ``…&action=history``, and old
                      revisions, ``…&oldid=41``: every tenth article is named by such a one only
====================  =========================================================================

*Real* is what says something that no other page says. Sorted lists, combined facets, forms and
comparisons are there and are not. Everything is a function of the seed, the host and the path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from urllib.parse import parse_qs, urlencode

from scrapy_spider_suite.testing.http import Reply, Request, reply
from scrapy_spider_suite.testing.prose import Page, Prose

BOARDS, THREADS, LISTED, POSTS = 8, 40, 10, 5
"""Boards, threads of each, threads on a page of a board, posts on a page of a thread."""
DEPARTMENTS, PRODUCTS, SHOWN = 6, 40, 10
"""Departments, products of each, products that a list shows."""
FACETS = {
    "colour": ("red", "green", "blue", "black"), "size": ("small", "medium", "large"),
    "brand": ("ada", "bell", "curie", "dirac", "euler"), "sort": ("name", "price"),
}  # fmt: skip
ARTICLES = 200
_SORTS = [(by, way) for by in ("author", "replies", "date") for way in ("a", "d")]
_MEMBERS = 60
_HIDDEN = 10
"""Of so many articles one is named by an old revision only."""

Query = dict[str, str]


def host_names() -> list[str]:
    """The three hosts."""
    return ["forum-site.test", "shop-site.test", "wiki-site.test"]


class OrdinarySite:
    """Answers for all three."""

    def __init__(self, seed: int = 1) -> None:
        self._prose = Prose(seed)
        self._pages: dict[str, Callable[[str, Query], Page | None]] = {
            "forum-site.test": self._forum, "shop-site.test": self._shop,
            "wiki-site.test": self._wiki,
        }  # fmt: skip

    def answer(self, request: Request) -> Reply:
        """Answer for the host that the request names."""
        page = self.page(request.host, request.target)
        return reply(404, "no such page\n") if page is None else page.reply(request.host)

    def page(self, host: str, target: str) -> Page | None:
        """The page of *host* at *target*, path and query; None if there is none."""
        path, _, query = target.partition("?")
        asked = {name: values[0] for name, values in parse_qs(query).items()}
        return self._pages[host](path, asked)

    def real(self) -> set[str]:
        """The real pages that links lead to, each as its host, path and query."""
        return {
            *self._real_forum(), *self._real_shop(), *self._real_wiki(),
            *(f"{host}/" for host in host_names()),
        }  # fmt: skip

    # The forum

    def _forum(self, path: str, asked: Query) -> Page | None:
        if path == "/":
            boards = [f"/viewforum.php?f={board}" for board in range(BOARDS)]
            return Page(self._prose.text("forum"), boards)
        if path == "/member.php" and _in(asked.get("u", ""), _MEMBERS):
            return Page(self._prose.text(f"member {asked['u']}"), ["/"])
        board, start = asked.get("f", ""), asked.get("start", "0")
        if not _in(board, BOARDS) or not _in(start, THREADS):
            return None
        if path == "/viewforum.php":
            return self._board(f"/viewforum.php?f={board}", int(board), int(start), asked)
        thread = asked.get("t", "")
        if path == "/viewtopic.php" and _in(thread, BOARDS * THREADS):
            base = f"/viewtopic.php?f={board}&t={thread}"
            return self._thread(base, int(thread), int(start))
        return None

    def _board(self, base: str, board: int, start: int, asked: Query) -> Page:
        threads = [board * THREADS + each for each in range(THREADS)]
        kept = ""
        if "sk" in asked:
            kept = f"&sd={asked.get('sd')}&sk={asked['sk']}"
            threads.sort(key=lambda each: self._prose.number(asked["sk"], each))
            threads = threads[:: -1 if asked.get("sd") == "d" else 1]
        shown = threads[start : start + LISTED]
        links = [f"/viewtopic.php?f={board}&t={each}" for each in shown]
        links += [f"{base}{kept}&start={at}" for at in range(LISTED, THREADS, LISTED)]
        links += [f"{base}&sd={way}&sk={by}" for by, way in _SORTS]
        lines = [self._prose.words(f"thread {each}", 5) for each in shown]
        return Page(f"Threads of {self._prose.words(f'board {board}', 2)}", links, lines)

    def _thread(self, base: str, thread: int, start: int) -> Page:
        count = self._posts(thread)
        posts = [f"post {thread} {each}" for each in range(start, min(start + POSTS, count))]
        links = [f"{base}&start={at}" for at in range(POSTS, count, POSTS)]
        links += [f"/member.php?u={self._prose.number(each) % _MEMBERS}" for each in posts]
        title = self._prose.words(f"thread {thread}", 5)
        return Page(title, ["/", *links], [self._prose.text(each) for each in posts])

    def _posts(self, thread: int) -> int:
        return 1 + self._prose.number("posts", thread) % (4 * POSTS)

    def _real_forum(self) -> Iterable[str]:
        host, members = "forum-site.test", set[int]()
        for board in range(BOARDS):
            base = f"{host}/viewforum.php?f={board}"
            yield from _paged(base, THREADS, LISTED)
            for thread in range(board * THREADS, (board + 1) * THREADS):
                base, count = f"{host}/viewtopic.php?f={board}&t={thread}", self._posts(thread)
                yield from _paged(base, count, POSTS)
                members |= {
                    self._prose.number(f"post {thread} {each}") % _MEMBERS for each in range(count)
                }
        yield from (f"{host}/member.php?u={each}" for each in members)

    # The shop

    def _shop(self, path: str, asked: Query) -> Page | None:
        if path == "/":
            departments = [f"/list?in={each}" for each in range(DEPARTMENTS)]
            return Page(self._prose.text("shop"), departments)
        found = path.removeprefix("/product/")
        if found != path and _in(found, DEPARTMENTS * PRODUCTS):
            return Page(self._prose.text(f"product {found}"), ["/"])
        if path != "/list" or not _in(asked.get("in", ""), DEPARTMENTS):
            return None
        shown = self._listed(asked)
        more = [
            f"/list?{urlencode([*asked.items(), (facet, value)])}"
            for facet, values in FACETS.items() if facet not in asked for value in values
        ]  # fmt: skip
        lines = [self._prose.words(f"product {each}", 4) for each in shown]
        return Page("What we have for you", [*(f"/product/{n}" for n in shown), *more], lines)

    def _listed(self, asked: Query) -> list[int]:
        """The products that a list shows: the first ten that have what was *asked* for."""
        first = int(asked["in"]) * PRODUCTS
        having = [
            each for each in range(first, first + PRODUCTS)
            if all(values[self._prose.number(facet, each) % len(values)] == asked.get(facet)
                   for facet, values in FACETS.items() if facet in asked and facet != "sort")
        ]  # fmt: skip
        if "sort" in asked:
            having.sort(key=lambda each: self._prose.number(asked["sort"], each))
        return having[:SHOWN]

    def _real_shop(self) -> Iterable[str]:
        host = "shop-site.test"
        ways = [("", *values) for values in FACETS.values()]
        for department, *chosen in product(map(str, range(DEPARTMENTS)), *ways):
            asked = {name: value for name, value in zip(FACETS, chosen, strict=True) if value}
            listed = self._listed({"in": department} | asked)
            yield from (f"{host}/product/{each}" for each in listed)
        yield from (f"{host}/list?in={each}" for each in range(DEPARTMENTS))

    # The wiki

    def _wiki(self, path: str, asked: Query) -> Page | None:
        if path == "/":
            return Page(self._prose.text("wiki"), ["/wiki/0", "/wiki/1"])
        found = path.removeprefix("/wiki/")
        title = asked.get("title", "") if path == "/index.php" else found
        if not _in(title, ARTICLES):
            return None
        article, form = int(title), f"/index.php?title={title}"
        text = [self._prose.text(f"article {article} {part}") for part in range(3)]
        if found != path:
            return Page(f"Article {article}", self._leads(article, form), text)
        if "oldid" in asked:
            old = int(asked["oldid"]) if asked["oldid"].isdecimal() else -1
            if old not in self._revisions(article):
                return None
            text = [*text[:-1], self._prose.text(f"revision {old}")]
            links = [f"/wiki/{article}", *self._hidden(old)]
            return Page("An old revision of this page", links, text)
        revisions = self._revisions(article)
        if asked.get("action") == "history":
            links = [f"{form}&oldid={old}" for old in revisions]
            links += [f"{form}&diff={old}&oldid={old - 1}" for old in revisions[1:]]
            lines = [self._prose.words(f"summary {old}", 6) for old in revisions]
            return Page("What was changed", [*links, f"/wiki/{article}"], lines)
        return Page("You may change this page", [f"/wiki/{article}"], text)

    def _leads(self, article: int, form: str) -> list[str]:
        near = [article + 1, article * 2, article * 2 + 1, self._prose.number("see", article)]
        named = [each % ARTICLES for each in near if each % ARTICLES % _HIDDEN != _HIDDEN - 1]
        forms = [f"{form}&action={each}" for each in ("edit", "history", "info")]
        return [*(f"/wiki/{each}" for each in named), *forms]

    def _revisions(self, article: int) -> list[int]:
        return [article * 4 + each for each in range(1 + self._prose.number("old", article) % 4)]

    @staticmethod
    def _hidden(old: int) -> list[str]:
        """The article that an old revision, the first of its article, names."""
        article = old // 4 + _HIDDEN - 1
        return [f"/wiki/{article}"] if old % (4 * _HIDDEN) == 0 else []

    def _real_wiki(self) -> Iterable[str]:
        host = "wiki-site.test"
        for article in range(ARTICLES):
            form = f"{host}/index.php?title={article}"
            yield from (f"{host}/wiki/{article}", f"{form}&action=history")
            yield from (f"{form}&oldid={old}" for old in self._revisions(article))


def _in(number: str, count: int) -> bool:
    return number.isdecimal() and len(number) < 10 and int(number) < count


def _paged(base: str, count: int, size: int) -> Iterable[str]:
    yield base
    yield from (f"{base}&start={at}" for at in range(size, count, size))
