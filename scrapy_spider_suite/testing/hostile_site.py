"""The hostile hosts: each behaviour at a path, on a host and as a robots.txt.

* ``http://hostile.test/NAME`` and ``http://NAME.hostile.test/`` play NAME; a host has an address;
* ``http://robots-NAME.hostile.test/robots.txt`` plays it; the host's other pages are harmless;
* ``http://hostile.test/`` links to all hosts, ``/paths`` to all paths; ``/ok`` is harmless.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from scrapy_spider_suite.testing import hostile_answers
from scrapy_spider_suite.testing import hostile_answers as framing
from scrapy_spider_suite.testing import hostile_answers as links
from scrapy_spider_suite.testing.hostile_answers import BEHAVIOURS, Behaviour, HostileRequest
from scrapy_spider_suite.testing.http import HTML, Request, ServerReply, make_reply

HOST = "hostile.test"
MODULES = (framing, hostile_answers, links)

_ROBOTS = "robots-"
ROBOTS_TOO = (
    "close", "endless-body", "gzip-bomb", "header-endless", "many-links", "redirect-loop",
    "redirect-endless", "redirect-private", "reset", "silence", "slow-body", "truncated-body",
)  # fmt: skip
"""Behaviours that the index also links to as a robots.txt."""


def host_names() -> list[str]:
    robots = [f"{_ROBOTS}{name}" for name in BEHAVIOURS if not name.startswith(_ROBOTS)]
    return [HOST, *(f"{label}.{HOST}" for label in [*BEHAVIOURS, *robots])]


def address_count() -> int:
    return len(BEHAVIOURS) + 1


def listing() -> str:
    return "\n".join(f"{each.name:<24} {each.about}" for each in BEHAVIOURS.values())


def address_number(host: str) -> int:
    """Return the index of the hostile address of *host*. Raises LookupError."""
    if host == HOST:
        return 0
    found, _ = _behaviour_of(host)
    return 1 + list(BEHAVIOURS).index(found.name)


def _behaviour_of(host: str) -> tuple[Behaviour, bool]:
    label = host.removesuffix("." + HOST)
    name = label.removeprefix(_ROBOTS)
    if label == host or (label not in BEHAVIOURS and name not in BEHAVIOURS):
        raise LookupError(f"no hostile host is called {host}")
    return BEHAVIOURS[label if label in BEHAVIOURS else name], label.startswith(_ROBOTS)


class HostileSite:
    def __init__(
        self, base_of: Callable[[str], str], *, pace: float = 1.0, seconds: float = 600.0
    ) -> None:
        self._base_of = base_of
        self._pace = pace
        self._seconds = seconds

    def answer(self, request: Request) -> ServerReply:
        path = request.path
        if path == "/ok":
            return make_reply(200, "<p>all is well</p>\n", HTML)
        if request.host == HOST:
            name, _, rest = path.removeprefix("/").partition("/")
            if name in BEHAVIOURS:
                return self._play(BEHAVIOURS[name], f"{self._base_of(HOST)}/{name}", rest)
            return self._index(path)
        found, for_robots = _behaviour_of(request.host)
        if for_robots and path.startswith("/robots.txt"):
            rest = path.removeprefix("/robots.txt").removeprefix("/")
            return self._play(found, f"{self._base_of(request.host)}/robots.txt", rest)
        if path == "/robots.txt":
            return make_reply(404, "no robots.txt here\n")
        if for_robots:
            return self._robots_host(path)
        return self._play(found, self._base_of(request.host), path.removeprefix("/"))

    def _play(self, found: Behaviour, base: str, rest: str) -> ServerReply:
        if rest and not found.deep:
            return make_reply(404, "no such page\n")
        scene = HostileRequest(base, rest, self._pace, self._seconds)
        return ServerReply(0, b"", script=lambda wire: found.play(wire, scene))

    def _robots_host(self, path: str) -> ServerReply:
        if path not in ("/", "/a", "/b"):
            return make_reply(404, "no such page\n")
        return make_reply(200, "<a href='/a'>a</a> <a href='/b'>b</a>\n", HTML)

    def _index(self, path: str) -> ServerReply:
        base = self._base_of(HOST)
        if path == "/":
            labels = [*BEHAVIOURS, *(f"{_ROBOTS}{name}" for name in ROBOTS_TOO)]
            urls = [self._base_of(f"{label}.{HOST}") + "/" for label in labels] + [f"{base}/paths"]
            return make_reply(200, _list(dict.fromkeys(urls)), HTML)
        if path == "/paths":
            return make_reply(
                200, _list({f"{base}/{b.name}": b.about for b in BEHAVIOURS.values()}), HTML
            )
        return make_reply(404, "no such page\n")


def _list(links_: dict[str, str] | dict[str, None]) -> str:
    items = "".join(
        f'<li><a href="{url}">{url}</a> {escape(about or "")}\n' for url, about in links_.items()
    )
    return f"<title>hostile</title>\n<ul>\n{items}</ul>\n"
