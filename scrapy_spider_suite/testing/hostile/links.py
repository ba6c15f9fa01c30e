"""Pages and redirects that lead where no crawler should go, or on and on; bad robots.txt."""

from __future__ import annotations

from scrapy_spider_suite.testing.hostile.registry import (
    PAGE,
    Scene,
    behaviour,
    endlessly,
    fixed,
    head,
    in_bulk,
    page,
    sized,
)
from scrapy_spider_suite.testing.http import HTML, TEXT
from scrapy_spider_suite.testing.wire import Wire

PRIVATE_URLS = (
    "http://127.0.0.1/", "http://127.1/", "http://0x7f.1/", "http://2130706433/",
    "http://017700000001/", "http://0/", "http://0.0.0.0/", "http://localhost/",
    "http://10.0.0.1/", "http://172.16.0.1/", "http://192.168.0.1/", "http://100.64.0.1/",
    "http://169.254.169.254/latest/meta-data/", "http://224.0.0.1/", "http://255.255.255.255/",
    "http://[::1]/", "http://[::]/", "http://[::ffff:10.0.0.1]/", "http://[::ffff:7f00:1]/",
    "http://[fe80::1]/", "http://[fc00::1]/", "http://[fec0::1]/", "http://[ff02::1]/",
    "http://[64:ff9b::a00:1]/", "http://[2002:a00:1::]/",
    "http://\u2460\u2461\u2466.0.0.1/", "http://127\u30020\u30020\u30021/",
)  # fmt: skip
"""Addresses that are not public, in every way of writing them that a URL parser accepts."""

BAD_HOSTS = (
    "http://", "http:///path", "http://./", "http://../", "http://a..b/", "http://-a.test/",
    "http://a_b.test/", "http://a b.test/", "http://a%20b.test/", "http://a%00b.test/",
    "http://a\tb.test/", "http://exa<mple.test/", "http://[::1/", "http://[zz]/",
    "http://1.2.3.4.5/", "http://1.2.3.999/", "http://a.test:99999/", "http://a.test:port/",
    "http://a.test:-1/", "http://user:secret@a.test/", "http://@/", "http://a.test\\@b.test/",
    "http://xn--/", "http://xn--a.test/", "http://xn--zn7c.test/", "http://" + "a" * 64 + ".test/",
    "http://" + "a." * 200 + "test/", "http://\u00fcber.test/", "http://\u65e5\u672c.test/",
    "http://fa\u00df.test/", "http://\u202eevil.test/", "http://\U0001f4a9.test/",
    "http://a\u00adb.test/", "http://\ufdd0.test/", "http://\u0661.test/", "http://test/",
)  # fmt: skip
"""Hosts that are invalid, odd or international."""

BAD_LINKS = (
    "javascript:alert(1)", "mailto:a@b.test", "tel:+1", "data:text/html,x", "file:///etc/passwd",
    "ftp://a.test/", "gopher://a.test/", "s3://bucket/key", "about:blank", "blob:http://a.test/",
    "//", "///", "\\\\a.test\\x", "http:", "http:/ok", "http:ok", ":", "?", "#", "%", "%zz", "/%00",
    "/a/../../../../etc/passwd", "/..%2f..%2fetc", "/ok;x=1", "/ok?a=b&amp;c=d", "/ok?" + "&" * 999,
    "h\nttp://a.test/", " /ok ", "/\u00e9", "/%e9", "/\ufffd", "/\U0010ffff", "/a b",
)  # fmt: skip
"""What stands in href attributes beside URLs."""

_BULK = 10 << 20


def _anchors(urls: tuple[str, ...]) -> str:
    quoted = (url.replace('"', "&quot;").replace("<", "&lt;") for url in urls)
    return "\n".join(f'<a href="{url}">link</a>' for url in quoted)


fixed("private-links", "links to private addresses", page(_anchors(PRIVATE_URLS)))
fixed("bad-hosts", "links to invalid and international hosts", page(_anchors(BAD_HOSTS)))
fixed("bad-links", "links that are no web addresses", page(_anchors(BAD_LINKS)))
fixed("base-bad", "a base that is no URL", page("<base href='javascript:'><a href='ok'>ok</a>"))
fixed(
    "data-link",
    "a link of 1 MB of data",
    page(f'<a href="data:text/plain,{"x" * (1 << 20)}">x</a>'),
)
fixed("redirect-none", "a redirect without Location", sized(b"", status="302 Found"))
fixed("redirect-empty", "an empty Location", sized(b"", "Location: ", status="302 Found"))


@behaviour("10 MB of links, all different, to one host that does not exist")
async def many_links(wire: Wire, scene: Scene) -> None:
    """240,000 URLs that cost a crawler room but no visit."""
    line = b'<a href="http://nowhere.invalid/%07d">x</a>\n'
    await in_bulk(wire, line, _BULK // len(line), b"<html>\n", HTML)


@behaviour("10 MB of links, each to another host that does not exist")
async def many_hosts(wire: Wire, scene: Scene) -> None:
    """230,000 names to resolve."""
    line = b'<a href="http://n%07d.nowhere.invalid/">x</a>\n'
    await in_bulk(wire, line, _BULK // len(line), b"<html>\n", HTML)


@behaviour("100 links of 100 KB each")
async def long_urls(wire: Wire, scene: Scene) -> None:
    """Paths, queries and host names that are too long."""
    long = "x" * 100_000
    forms = (f"/{long}/", f"/ok?{long}=", f"http://{long}.test/", f"/{'a/' * 50_000}")
    await wire.send(page(_anchors(tuple(f"{forms[k % 4]}{k}" for k in range(100)))))


@behaviour("a calendar without end: each page links to two new ones", deep=True)
async def trap(wire: Wire, scene: Scene) -> None:
    """A spider trap."""
    here = f"{scene.base}/{scene.rest}".rstrip("/")
    await wire.send(page(_anchors((f"{here}/next", f"{here}/{len(here)}?day=1"))))
    wire.keep = True


@behaviour("a page that refreshes to itself")
async def refresh_loop(wire: Wire, scene: Scene) -> None:
    """By meta element."""
    await wire.send(page(f"<meta http-equiv=refresh content='0; url={scene.base}'>"))


async def _redirect(wire: Wire, location: str) -> None:
    await wire.send(sized(b"", f"Location: {location}", status="302 Found"))
    wire.keep = True


@behaviour("a redirect to itself", deep=True)
async def redirect_loop(wire: Wire, scene: Scene) -> None:
    """The smallest loop."""
    await _redirect(wire, f"{scene.base}/")


@behaviour("two redirects to each other", deep=True)
async def redirect_pair(wire: Wire, scene: Scene) -> None:
    """A loop that a look at the last URL does not find."""
    await _redirect(wire, f"{scene.base}/" + ("" if scene.rest == "other" else "other"))


@behaviour("redirects without end, each to a new URL", deep=True)
async def redirect_endless(wire: Wire, scene: Scene) -> None:
    """A counter in the path."""
    number = int(scene.rest) if scene.rest.isdecimal() and len(scene.rest) < 9 else 0
    await _redirect(wire, f"{scene.base}/{number + 1}")


@behaviour("a redirect to a private address; /0, /1, … give one each", deep=True)
async def redirect_private(wire: Wire, scene: Scene) -> None:
    """Every way of writing one, by number."""
    number = int(scene.rest) if scene.rest.isdecimal() and len(scene.rest) < 4 else 8
    location = PRIVATE_URLS[number % len(PRIVATE_URLS)]
    await _redirect(wire, location.encode("utf-8").decode("latin-1"))


@behaviour("a redirect to a file")
async def redirect_file(wire: Wire, scene: Scene) -> None:
    """Another scheme."""
    await _redirect(wire, "file:///etc/passwd")


@behaviour("a redirect to a URL of 100 KB")
async def redirect_long(wire: Wire, scene: Scene) -> None:
    """Longer than most limits for a header field."""
    await _redirect(wire, f"{scene.base}/{'x' * 100_000}")


@behaviour("a redirect to what is no URL")
async def redirect_garbage(wire: Wire, scene: Scene) -> None:
    """Bytes, spaces and a broken host."""
    await _redirect(wire, "http://[::1\xff /%zz \x01")


_RULES = b"User-agent: *\n"
_STAR = b"User-agent: *\nDisallow: /*" + b"a*" * 200 + b"b$\n"
_AFTER_PAST = "Retry-After: Thu, 01 Jan 1970 00:00:00 GMT"
_UNAVAILABLE = "503 Service Unavailable"
fixed(
    "retry-after-text", "Retry-After: soon", sized(PAGE, "Retry-After: soon", status=_UNAVAILABLE)
)
fixed("retry-after-huge", "10**30 s", sized(PAGE, f"Retry-After: {10**30}", status=_UNAVAILABLE))
fixed("retry-after-past", "a date in the past", sized(PAGE, _AFTER_PAST, status=_UNAVAILABLE))
fixed("retry-after-negative", "-5 s", sized(PAGE, "Retry-After: -5", status=_UNAVAILABLE))
fixed("robots-html", "robots.txt that is a page", page("<p>Disallow: /</p>"))
fixed("robots-nul", "robots.txt with NUL bytes", sized(b"User-\0agent: *\0\nDis\0allow: /\n"))
fixed("robots-delay-huge", "Crawl-delay: 1e9", sized(_RULES + b"Crawl-delay: 1e9\n"))
fixed(
    "robots-delay-nan", "Crawl-delay: nan", sized(_RULES + b"Crawl-delay: nan\nCrawl-delay: -5\n")
)
fixed("robots-stars", "a rule that makes backtracking matchers hang", sized(_STAR))
fixed("robots-login", "robots.txt answers 401", sized(PAGE, status="401 Unauthorized"))


@behaviour("robots.txt of 50 MB")
async def robots_huge(wire: Wire, scene: Scene) -> None:
    """A correct one, far beyond any reasonable limit."""
    line = b"Disallow: /private/%09d/a/long/path/that/does/not/exist/on/this/host\n"
    await in_bulk(wire, line, (50 << 20) // len(line), _RULES, TEXT)


@behaviour("robots.txt with 100,000 rules")
async def robots_rules(wire: Wire, scene: Scene) -> None:
    """Each with a wildcard."""
    await in_bulk(wire, b"Disallow: /*%06d*x$\n", 100_000, _RULES, TEXT)


@behaviour("robots.txt that is one line without end")
async def robots_endless_line(wire: Wire, scene: Scene) -> None:
    """Nothing to parse until it is over."""
    await wire.send(head("Content-Type: text/plain") + _RULES + b"Disallow: /")
    await endlessly(wire, scene, b"x" * 60_000)
