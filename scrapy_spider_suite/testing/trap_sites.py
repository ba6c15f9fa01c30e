"""Six traps, and three sites that look like traps: functions of seed, host and path.

The ``/`` of each trap leads into it and to real pages, ``/page/1.html`` and so on. A real page says
something that no other page says. docs/fakeweb.md describes the sites.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import shake_128
from html import escape
from random import Random
from typing import NamedTuple
from urllib.parse import parse_qs, parse_qsl, urlencode

from scrapy_spider_suite.testing.http import HTML, Request, ServerReply, make_reply

_LETTERS = ("bcdfgklmnprstvw", "aeiou")


class ProsePage(NamedTuple):
    text: str
    links: Sequence[str]
    lines: Sequence[str] = ()

    def reply(self, title: str) -> ServerReply:
        links = "".join(f'<li><a href="{escape(each)}">more</a></li>\n' for each in self.links)
        lines = "".join(f"<p>{each}</p>\n" for each in self.lines)
        head = f"<!DOCTYPE html>\n<html><head><title>{title}</title></head>\n"
        body = f"<body><p>{self.text}</p>\n{lines}<ul>{links}</ul>\n</body></html>\n"
        return make_reply(200, head + body, HTML)


class Prose:
    def __init__(self, seed: int) -> None:
        self._seed = seed

    def number(self, *what: object) -> int:
        text = " ".join(map(str, (self._seed, *what)))
        return int.from_bytes(shake_128(text.encode()).digest(8), "big")

    def words(self, what: str, count: int) -> str:
        return _words(self.number(what), count)

    def text(self, what: str) -> str:
        return self.words(what, 60) + "."


@lru_cache(50_000)
def _words(number: int, count: int) -> str:
    draw = Random(number)
    lengths = (draw.randint(4, 10) for _ in range(count))
    return " ".join("".join(draw.choice(_LETTERS[k % 2]) for k in range(each)) for each in lengths)


BOARDS, THREADS, LISTED, POSTS = 8, 40, 10, 5
"""Boards, threads of each, threads on a page of a board, posts on a page of a thread."""
DEPARTMENTS, PRODUCTS, SHOWN = 6, 40, 10
ORDINARY_FACETS = {
    "colour": ("red", "green", "blue", "black"), "size": ("small", "medium", "large"),
    "brand": ("ada", "bell", "curie", "dirac", "euler"), "sort": ("name", "price"),
}  # fmt: skip
ARTICLES = 200
_SORTS = [(by, way) for by in ("author", "replies", "date") for way in ("a", "d")]
MEMBERS = 60
_HIDDEN = 10  # one of so many articles is named by an old revision only

QueryFields = dict[str, str]


def ordinary_hosts() -> list[str]:
    return ["forum-site.test", "shop-site.test", "wiki-site.test"]


class OrdinarySite:
    def __init__(self, seed: int = 1) -> None:
        self._prose = Prose(seed)
        self._pages: dict[str, Callable[[str, QueryFields], ProsePage | None]] = {
            "forum-site.test": self._forum, "shop-site.test": self._shop,
            "wiki-site.test": self._wiki,
        }  # fmt: skip

    def answer(self, request: Request) -> ServerReply:
        page = self.page(request.host, request.target)
        return make_reply(404, "no such page\n") if page is None else page.reply(request.host)

    def page(self, host: str, target: str) -> ProsePage | None:
        path, _, query = target.partition("?")
        asked = {name: values[0] for name, values in parse_qs(query).items()}
        return self._pages[host](path, asked)

    def _forum(self, path: str, asked: QueryFields) -> ProsePage | None:
        if path == "/":
            boards = [f"/viewforum.php?f={board}" for board in range(BOARDS)]
            return ProsePage(self._prose.text("forum"), boards)
        if path == "/member.php" and _in(asked.get("u", ""), MEMBERS):
            return ProsePage(self._prose.text(f"member {asked['u']}"), ["/"])
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

    def _board(self, base: str, board: int, start: int, asked: QueryFields) -> ProsePage:
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
        return ProsePage(f"Threads of {self._prose.words(f'board {board}', 2)}", links, lines)

    def _thread(self, base: str, thread: int, start: int) -> ProsePage:
        count = self._posts(thread)
        posts = [f"post {thread} {each}" for each in range(start, min(start + POSTS, count))]
        links = [f"{base}&start={at}" for at in range(POSTS, count, POSTS)]
        links += [f"/member.php?u={self._prose.number(each) % MEMBERS}" for each in posts]
        title = self._prose.words(f"thread {thread}", 5)
        return ProsePage(title, ["/", *links], [self._prose.text(each) for each in posts])

    def _posts(self, thread: int) -> int:
        return 1 + self._prose.number("posts", thread) % (4 * POSTS)

    def _shop(self, path: str, asked: QueryFields) -> ProsePage | None:
        if path == "/":
            departments = [f"/list?in={each}" for each in range(DEPARTMENTS)]
            return ProsePage(self._prose.text("shop"), departments)
        found = path.removeprefix("/product/")
        if found != path and _in(found, DEPARTMENTS * PRODUCTS):
            return ProsePage(self._prose.text(f"product {found}"), ["/"])
        if path != "/list" or not _in(asked.get("in", ""), DEPARTMENTS):
            return None
        shown = self._listed(asked)
        more = [
            f"/list?{urlencode([*asked.items(), (facet, value)])}"
            for facet, values in ORDINARY_FACETS.items() if facet not in asked for value in values
        ]  # fmt: skip
        lines = [self._prose.words(f"product {each}", 4) for each in shown]
        return ProsePage("What we have for you", [*(f"/product/{n}" for n in shown), *more], lines)

    def _listed(self, asked: QueryFields) -> list[int]:
        first = int(asked["in"]) * PRODUCTS
        having = [
            each for each in range(first, first + PRODUCTS)
            if all(values[self._prose.number(facet, each) % len(values)] == asked.get(facet)
                   for facet, values in ORDINARY_FACETS.items()
                   if facet in asked and facet != "sort")
        ]  # fmt: skip
        if "sort" in asked:
            having.sort(key=lambda each: self._prose.number(asked["sort"], each))
        return having[:SHOWN]

    def _wiki(self, path: str, asked: QueryFields) -> ProsePage | None:
        if path == "/":
            return ProsePage(self._prose.text("wiki"), ["/wiki/0", "/wiki/1"])
        found = path.removeprefix("/wiki/")
        title = asked.get("title", "") if path == "/index.php" else found
        if not _in(title, ARTICLES):
            return None
        article, form = int(title), f"/index.php?title={title}"
        text = [self._prose.text(f"article {article} {part}") for part in range(3)]
        if found != path:
            return ProsePage(f"Article {article}", self._leads(article, form), text)
        if "oldid" in asked:
            old = int(asked["oldid"]) if asked["oldid"].isdecimal() else -1
            if old not in self._revisions(article):
                return None
            text = [*text[:-1], self._prose.text(f"revision {old}")]
            links = [f"/wiki/{article}"]
            if old % (4 * _HIDDEN) == 0:
                links.append(f"/wiki/{old // 4 + _HIDDEN - 1}")
            return ProsePage("An old revision of this page", links, text)
        revisions = self._revisions(article)
        if asked.get("action") == "history":
            links = [f"{form}&oldid={old}" for old in revisions]
            links += [f"{form}&diff={old}&oldid={old - 1}" for old in revisions[1:]]
            lines = [self._prose.words(f"summary {old}", 6) for old in revisions]
            return ProsePage("What was changed", [*links, f"/wiki/{article}"], lines)
        return ProsePage("You may change this page", [f"/wiki/{article}"], text)

    def _leads(self, article: int, form: str) -> list[str]:
        near = [article + 1, article * 2, article * 2 + 1, self._prose.number("see", article)]
        named = [each % ARTICLES for each in near if each % ARTICLES % _HIDDEN != _HIDDEN - 1]
        forms = [f"{form}&action={each}" for each in ("edit", "history", "info")]
        return [*(f"/wiki/{each}" for each in named), *forms]

    def _revisions(self, article: int) -> list[int]:
        return [article * 4 + each for each in range(1 + self._prose.number("old", article) % 4)]


def _in(number: str, count: int) -> bool:
    return number.isdecimal() and len(number) < 10 and int(number) < count


NAMES = ("calendar", "facets", "sessions", "mirror", "lost", "farm")
PAGES = 20
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
TRAP_FACETS = {
    "colour": ("red", "green", "blue", "black"), "size": ("small", "medium", "large", "huge"),
    "brand": ("ada", "bell", "curie", "dirac"), "made": ("here", "there", "nearby", "afar"),
    "price": ("low", "fair", "high", "unknown"), "sort": ("name", "age", "price", "fame"),
}  # fmt: skip
_FARM = ".farm-trap.test"
_REAL = re.compile(r"/page/([1-9][0-9]{0,2})\.html")
_MONTH = re.compile(r"/calendar/([0-9]{1,4})/([0-9]{1,2})(?:/([0-9]{1,2}))?")
_BEGIN = (2026, 11)
_ITEMS = 5


def trap_hosts() -> list[str]:
    return [f"{name}-trap.test" for name in NAMES]


def trap_number(host: str) -> int:
    name = "farm-trap.test" if host.endswith(_FARM) else host
    try:
        return NAMES.index(name.removesuffix("-trap.test"))
    except ValueError:
        raise LookupError(f"no trap is called {host}") from None


class TrapSite:
    """Answers for the trap hosts. *base_of* gives the URL of a host, without a slash."""

    def __init__(self, base_of: Callable[[str], str], seed: int = 1) -> None:
        self._base_of = base_of
        self._seed = seed
        self._prose = Prose(seed)
        self._pages: dict[str, Callable[[str, str], ProsePage | None]] = {
            "calendar": self._calendar, "facets": self._facets, "sessions": self._sessions,
            "mirror": self._mirror, "lost": self._lost, "farm": self._farm,
        }  # fmt: skip

    def answer(self, request: Request) -> ServerReply:
        if request.path != "/robots.txt":
            page = self.page(request.host, request.target)
            if page is not None:
                return page.reply(request.host)
        return make_reply(404, "no such page\n")

    def page(self, host: str, target: str) -> ProsePage | None:
        name = NAMES[trap_number(host)]
        path = target.partition("?")[0]
        number = _REAL.fullmatch(path)
        if host.endswith(_FARM):
            return self._farm(host, target)
        if path == "/":
            real = [f"/page/{n}.html" for n in range(1, PAGES + 1)]
            way_in = self._pages[name](host, "/")
            links = [*real, *(way_in.links if way_in else ())]
            return ProsePage(f"Welcome. {self._prose.text(host)}", links)
        if number is not None and int(number[1]) <= PAGES:
            following = int(number[1]) % PAGES + 1
            return ProsePage(self._prose.text(f"{host}{path}"), ["/", f"/page/{following}.html"])
        return self._pages[name](host, target)

    # The traps: each gives the way in for "/"

    def _calendar(self, host: str, target: str) -> ProsePage | None:
        if target == "/":
            return ProsePage("", ["/calendar/{}/{}".format(*_BEGIN)])
        found = _MONTH.fullmatch(target)
        if found is None or not 1 <= int(found[2]) <= 12:
            return None
        month, day = int(found[1]) * 12 + int(found[2]) - 1, int(found[3] or 0)
        months = [f"/calendar/{at // 12}/{at % 12 + 1}" for at in (month - 1, month + 1)]
        name = f"{MONTHS[month % 12]} {month // 12}"
        here = f"/calendar/{month // 12}/{month % 12 + 1}"
        if day:
            text = f"{day} {name}: there are no events on this day. Submit yours to our editors."
            return ProsePage(text, [here, f"{here}/{day % 28 + 1}"])
        text = f"{name}: choose a day, or go to the month before or after it. Nothing is on."
        return ProsePage(text, [*months, *(f"{here}/{each}" for each in range(1, 29))])

    def _facets(self, host: str, target: str) -> ProsePage | None:
        path, _, query = target.partition("?")
        if target == "/":
            return ProsePage("", ["/search"])
        if path != "/search":
            return None
        chosen = parse_qsl(query)
        found = [
            number for number in range(1, PAGES + 1)
            if all(self._prose.number(f"{number} {facet}") % 4 == _value(facet, value)
                   for facet, value in chosen if facet != "sort")
        ]  # fmt: skip
        taken = {facet for facet, _ in chosen}
        more = [
            f"/search?{urlencode([*chosen, (facet, value)])}"
            for facet, values in TRAP_FACETS.items() if facet not in taken for value in values
        ]  # fmt: skip
        titles = "; ".join(self._prose.words(f"{host}{number}", 4) for number in found) or "nothing"
        text = f"Narrow your search by any of these. We have found: {titles}."
        return ProsePage(text, [*(f"/page/{number}.html" for number in found), *more])

    def _sessions(self, host: str, target: str) -> ProsePage | None:
        path = target.partition("?")[0]
        items = [f"/shop/item-{number}" for number in range(1, _ITEMS + 1)]
        if target == "/":
            return ProsePage("", ["/shop/"])
        if path != "/shop/" and path not in items:
            return None
        token = shake_128(f"{self._seed} {target}".encode()).hexdigest(12)
        text = f"You are in {path}. {self._prose.text(path)}"
        return ProsePage(text, [f"{each}?sid={token}" for each in ["/shop/", *items]])

    def _mirror(self, host: str, target: str) -> ProsePage | None:
        if target == "/":
            return ProsePage("", ["/mirror/"])
        if re.fullmatch(r"/mirror/(?:[abc]/)*", target) is None:
            return None
        text = f"The folder {target[-2]}. {self._prose.text(target[-2:])}"
        return ProsePage(text, ["a/", "b/", "c/"])

    def _lost(self, host: str, target: str) -> ProsePage | None:
        if target != "/" and not target.startswith("/lost/"):
            return None
        word = self._prose.words
        links = [
            f"/lost/{word(f'{target} {n}', 1)}/{word(f'{n} {target}', 1)}.html" for n in range(8)
        ]
        text = "We are sorry that we could not find what you are looking for. Perhaps these help?"
        return ProsePage(text, links)

    def _farm(self, host: str, target: str) -> ProsePage | None:
        if target != "/":
            return None
        labels = (self._prose.words(f"{host} {n}", 2).replace(" ", "-") for n in range(10))
        links = [self._base_of(f"{label}{_FARM}") + "/" for label in labels]
        return ProsePage(
            f"{host} is for sale. Make an offer today, before others make theirs!", links
        )


def _value(facet: str, value: str) -> int:
    values = TRAP_FACETS.get(facet, ())
    return values.index(value) if value in values else -1
