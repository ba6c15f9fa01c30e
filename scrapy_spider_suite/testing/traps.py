"""Six traps of the in-vitro web: spaces of URLs without end, beside pages that are worth a fetch.

===========================  ==================================================================
``calendar-trap.test``       a calendar of months and days, both ways, with nothing in it
``facets-trap.test``         a search with six facets of four values, in any order
``sessions-trap.test``       a shop whose every link has another session id
``mirror-trap.test``         folders that hold themselves: ``/mirror/a/b/a/c/…``
``lost-trap.test``           every page below ``/lost/`` is there, and says that it is not
``*.farm-trap.test``         a host for every name, each of which leads to others
===========================  ==================================================================

The ``/`` of each leads into its trap and to real pages, ``/page/1.html`` and so on, each with a
text of its own. Everything is a function of the seed, the host and the path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from hashlib import shake_128
from urllib.parse import parse_qsl, urlencode

from scrapy_spider_suite.testing.http import Reply, Request, reply
from scrapy_spider_suite.testing.prose import Page, Prose

NAMES = ("calendar", "facets", "sessions", "mirror", "lost", "farm")
PAGES = 20
"""Real pages of each trap's host, its ``/`` apart."""
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
FACETS = {
    "colour": ("red", "green", "blue", "black"), "size": ("small", "medium", "large", "huge"),
    "brand": ("ada", "bell", "curie", "dirac"), "made": ("here", "there", "nearby", "afar"),
    "price": ("low", "fair", "high", "unknown"), "sort": ("name", "age", "price", "fame"),
}  # fmt: skip
_FARM = ".farm-trap.test"
_REAL = re.compile(r"/page/([1-9][0-9]{0,2})\.html")
_MONTH = re.compile(r"/calendar/([0-9]{1,4})/([0-9]{1,2})(?:/([0-9]{1,2}))?")
_BEGIN = (2026, 11)
_ITEMS = 5


def host_names() -> list[str]:
    """The hosts where the traps begin."""
    return [f"{name}-trap.test" for name in NAMES]


def trap_number(host: str) -> int:
    """Which of the traps *host* belongs to. Raises `LookupError` if it belongs to none."""
    name = "farm-trap.test" if host.endswith(_FARM) else host
    try:
        return NAMES.index(name.removesuffix("-trap.test"))
    except ValueError:
        raise LookupError(f"no trap is called {host}") from None


def trap_of(host: str, path: str) -> str | None:
    """The trap that the page at *path* (with its query) is part of; None if it is worth a fetch."""
    name = NAMES[trap_number(host)]
    if not host.endswith(_FARM) and (path == "/" or _REAL.fullmatch(path)):
        return None
    return name


def real_pages(base_of: Callable[[str], str]) -> list[str]:
    """The URLs of all pages that are worth a fetch; *base_of* gives that of a host."""
    paths = ["/", *(f"/page/{number}.html" for number in range(1, PAGES + 1))]
    return [base_of(host) + path for host in host_names() for path in paths]


class TrapSite:
    """Answers for all of these hosts. *base_of* gives the URL of a host, without a slash."""

    def __init__(self, base_of: Callable[[str], str], seed: int = 1) -> None:
        self._base_of = base_of
        self._seed = seed
        self._prose = Prose(seed)
        self._pages: dict[str, Callable[[str, str], Page | None]] = {
            "calendar": self._calendar, "facets": self._facets, "sessions": self._sessions,
            "mirror": self._mirror, "lost": self._lost, "farm": self._farm,
        }  # fmt: skip

    def answer(self, request: Request) -> Reply:
        """Answer for the host that the request names."""
        if request.path != "/robots.txt":
            page = self.page(request.host, request.target)
            if page is not None:
                return page.reply(request.host)
        return reply(404, "no such page\n")

    def page(self, host: str, target: str) -> Page | None:
        """The page of *host* at *target*, path and query; None if there is none."""
        name = NAMES[trap_number(host)]
        path = target.partition("?")[0]
        number = _REAL.fullmatch(path)
        if host.endswith(_FARM):
            return self._farm(host, target)
        if path == "/":
            real = [f"/page/{n}.html" for n in range(1, PAGES + 1)]
            way_in = self._pages[name](host, "/")
            links = [*real, *(way_in.links if way_in else ())]
            return Page(f"Welcome. {self._prose.text(host)}", links)
        if number is not None and int(number[1]) <= PAGES:
            following = int(number[1]) % PAGES + 1
            return Page(self._prose.text(f"{host}{path}"), ["/", f"/page/{following}.html"])
        return self._pages[name](host, target)

    # The traps: each gives the way in for "/"

    def _calendar(self, host: str, target: str) -> Page | None:
        if target == "/":
            return Page("", ["/calendar/{}/{}".format(*_BEGIN)])
        found = _MONTH.fullmatch(target)
        if found is None or not 1 <= int(found[2]) <= 12:
            return None
        month, day = int(found[1]) * 12 + int(found[2]) - 1, int(found[3] or 0)
        months = [f"/calendar/{at // 12}/{at % 12 + 1}" for at in (month - 1, month + 1)]
        name = f"{MONTHS[month % 12]} {month // 12}"
        here = f"/calendar/{month // 12}/{month % 12 + 1}"
        if day:
            text = f"{day} {name}: there are no events on this day. Submit yours to our editors."
            return Page(text, [here, f"{here}/{day % 28 + 1}"])
        text = f"{name}: choose a day, or go to the month before or after it. Nothing is on."
        return Page(text, [*months, *(f"{here}/{each}" for each in range(1, 29))])

    def _facets(self, host: str, target: str) -> Page | None:
        path, _, query = target.partition("?")
        if target == "/":
            return Page("", ["/search"])
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
            for facet, values in FACETS.items() if facet not in taken for value in values
        ]  # fmt: skip
        titles = "; ".join(self._prose.words(f"{host}{number}", 4) for number in found) or "nothing"
        text = f"Narrow your search by any of these. We have found: {titles}."
        return Page(text, [*(f"/page/{number}.html" for number in found), *more])

    def _sessions(self, host: str, target: str) -> Page | None:
        path = target.partition("?")[0]
        items = [f"/shop/item-{number}" for number in range(1, _ITEMS + 1)]
        if target == "/":
            return Page("", ["/shop/"])
        if path != "/shop/" and path not in items:
            return None
        token = shake_128(f"{self._seed} {target}".encode()).hexdigest(12)
        text = f"You are in {path}. {self._prose.text(path)}"
        return Page(text, [f"{each}?sid={token}" for each in ["/shop/", *items]])

    def _mirror(self, host: str, target: str) -> Page | None:
        if target == "/":
            return Page("", ["/mirror/"])
        if re.fullmatch(r"/mirror/(?:[abc]/)*", target) is None:
            return None
        text = f"The folder {target[-2]}. {self._prose.text(target[-2:])}"
        return Page(text, ["a/", "b/", "c/"])

    def _lost(self, host: str, target: str) -> Page | None:
        if target != "/" and not target.startswith("/lost/"):
            return None
        word = self._prose.words
        links = [
            f"/lost/{word(f'{target} {n}', 1)}/{word(f'{n} {target}', 1)}.html" for n in range(8)
        ]
        text = "We are sorry that we could not find what you are looking for. Perhaps these help?"
        return Page(text, links)

    def _farm(self, host: str, target: str) -> Page | None:
        if target != "/":
            return None
        labels = (self._prose.words(f"{host} {n}", 2).replace(" ", "-") for n in range(10))
        links = [self._base_of(f"{label}{_FARM}") + "/" for label in labels]
        return Page(f"{host} is for sale. Make an offer today, before others make theirs!", links)


def _value(facet: str, value: str) -> int:
    values: Iterable[str] = FACETS.get(facet, ())
    return list(values).index(value) if value in values else -1
