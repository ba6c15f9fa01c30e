"""The normal form against the web platform's own tests of URLs: every case that applies."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from ada_url import URL, check_url

from scrapy_spider_suite.urls.extract import PageContext, extract
from scrapy_spider_suite.urls.normalize import normalize

DATA = Path(__file__).parent.parent / "data" / "urls"
HTTP = ("http:", "https:")


def load(name: str) -> Any:
    """One file of the tests."""
    return json.loads(lzma.decompress((DATA / f"{name}.json.xz").read_bytes()))


def cases(name: str) -> list[dict[str, Any]]:
    """The cases of a file; text between them is a comment."""
    return [case for case in load(name) if isinstance(case, dict)]


def spell(part: str) -> str:
    """What the suite adds to the URL standard's spelling of a path or query, written otherwise."""
    pieces = re.split("(%[0-9A-Fa-f]{2})", part)
    decoded = [
        chr(int(piece[1:], 16)) if re.fullmatch("%(2[DE]|[345679].|)", piece.upper()) else piece
        for piece in pieces
    ]
    kept = [
        new if re.fullmatch("[A-Za-z0-9._~-]", new) else old.upper()
        for old, new in zip(pieces[1::2], decoded[1::2], strict=True)
    ]
    quoted = [quote(piece, safe="/?:@!$&'()*+,;=~") for piece in pieces[::2]]
    return quoted[0] + "".join(escape + text for escape, text in zip(kept, quoted[1:], strict=True))


def named(host: str) -> bool:
    """Whether *host*, as the standard spells it, can be a name server's; its last dots apart."""
    host = host.rstrip(".")
    # Without its dots a host may be empty, or read as a number that is none ("foo.09.").
    known = len(host) <= 253 and all(1 <= len(label) <= 63 for label in host.split("."))
    known = known and not set('"`{}') & set(host)  # RFC 3986 §3.2.2
    return known and check_url(f"http://{host}")


def expected(case: dict[str, Any]) -> str | None:
    """The standard's answer, with what the normal form adds to it."""
    if "failure" in case or case["protocol"] not in HTTP or not named(case["hostname"]):
        return None
    host = case["hostname"].rstrip(".")
    port = f":{case['port']}" if case["port"] else ""
    query = "" if case["search"] == "?" else case["search"]
    return f"{case['protocol']}//{host}{port}{spell(case['pathname'])}{spell(query)}"


def test_parsing() -> None:
    """Each input against its base: its normal form, or none if it is not http or https."""
    differences, number = [], 0
    for case in cases("urltestdata"):
        base = case.get("base")
        if base is not None and normalize(base) is None:
            base = None  # only absolute references have a normal form there
            if case.get("protocol") in HTTP and not re.match(r"\s*https?:", case["input"], re.I):
                continue
        found = normalize(case["input"], base)
        number += 1
        if found != expected(case):
            differences.append((case["input"], base, expected(case), found))
    assert differences == []
    assert number > 880


@pytest.mark.parametrize(("name", "number"), [("toascii", 80), ("IdnaTestV2", 2_600)])
def test_international_names(name: str, number: int) -> None:
    """Each name in a URL, as the standard's own test writes it."""
    differences = []
    found = [case for case in cases(name) if case["input"]]
    for case in found:
        # What would end the host is escaped.
        text = re.sub(r"[:/?#\\]", lambda match: f"%{ord(match[0]):02X}", case["input"])
        output = case["output"]
        want = None
        if output is not None and named(output):
            want = f"https://{output.rstrip('.')}/x"
        if normalize(f"https://{text}/x") != want:
            differences.append((case["input"], want, normalize(f"https://{text}/x")))
    assert differences == []
    assert len(found) > number


def _encodings() -> Iterator[tuple[str, str, str]]:
    for case in cases("percent-encoding"):
        for encoding, output in case["output"].items():
            yield case["input"], encoding, output


@pytest.mark.parametrize(("text", "encoding", "output"), [*_encodings()])
def test_queries_in_the_encoding_of_their_page(text: str, encoding: str, output: str) -> None:
    """A link in a page: its query in the page's encoding, its path in UTF-8."""
    reference = "".join(f"&#{ord(character)};" for character in text)
    body = f'<a href="https://a.test/{reference}?{reference}">'.encode()
    [found] = extract(body, PageContext("http://b.test/", encoding=encoding)).links
    assert found.partition("?")[2] == spell(output).replace("\\", "%5C")
    # In a path a backslash is a slash.
    assert found.partition("?")[0] == f"https://a.test/{quote(text.replace(chr(92), '/'))}"


def test_setters() -> None:
    """What the parser's setters make of a URL has the normal form of what the standard's do."""
    differences, number = [], 0
    for name, group in load("setters_tests").items():
        for case in group if name != "comment" else ():
            want = case["expected"].get("href")
            if want is None or not case["href"].startswith(("http:", "https:")):
                continue
            url = URL(case["href"])
            with suppress(ValueError):  # raised where the standard leaves the URL as it was
                setattr(url, name, case["new_value"])
            number += 1
            if case["new_value"] == "xn--" and url.href == case["href"]:
                continue  # the parser's oldest release that is allowed; it parses it all right
            if (url.href, normalize(url.href)) != (want, normalize(want)):
                differences.append((case["href"], name, case["new_value"], want, url.href))
    assert differences == []
    assert number > 100
