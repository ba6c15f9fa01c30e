"""Which forms of a site are one site (http and https, with and without ``www.``), by evidence.

Evidence is redirects between forms and equal pages; against it, own answers and differing pages.
Invariant: a link is rewritten only while `TwinEvidence` supports it, so mistakes are corrected.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, Protocol

import xxhash

from scrapy_spider_suite.runtime.text import counted

REDIRECTS: Final = 4
"""Weight of the redirects that make a twin: permanent ones weigh 2, temporary ones 1."""
PAGES: Final = 3  # equal pages that make a twin
OWN_WEIGHT: Final = 8  # weight of redirects needed for each page that the form answered itself
EQUAL_PER_OTHER: Final = 3  # equal pages needed for each differing one

SITES: Final = 50_000  # sites whose evidence is kept, those met last (some 500 bytes each)
_DIGESTS: Final = 32_768
"""Pages whose digest is kept in memory, to be compared with that of their twin."""

_HEADS: Final = ("http://", "https://", "http://www.", "https://www.")
"""The forms of a site, by number: bit 0 is https, bit 1 ``www.``."""
_FORMS: Final = range(len(_HEADS))
_MOST: Final = 255
# The lowest bits of a digest make room for the forms that had this page, and a page at all.
_MARKS: Final = 0xFF


class EvidenceRows(Protocol):
    def put(self, key: bytes, value: bytes) -> None: ...
    def delete(self, key: bytes) -> None: ...
    def items(self) -> Iterator[tuple[bytes, bytes]]: ...


class TwinEvidence:
    """Counts, to 255: redirects from form to form (diagonal: own answers), equal, other pages."""

    __slots__ = ("cells",)
    SIZE: Final = 16 + 2 * 6

    def __init__(self, cells: bytes = b"") -> None:
        self.cells = bytearray(cells if len(cells) == self.SIZE else self.SIZE)

    def add(self, cell: int, number: int) -> None:
        self.cells[cell] = max(0, min(_MOST, self.cells[cell] + number))

    def moved(self, form: int, other: int) -> int:
        return self.cells[form * 4 + other]

    def own(self, form: int) -> int:
        return self.cells[form * 5]

    def equal(self, form: int, other: int) -> int:
        return self.cells[pair_of_forms(form, other)]

    def differing(self, form: int, other: int) -> int:
        return self.cells[pair_of_forms(form, other) + 6]

    def bears_out(self, form: int, other: int) -> bool:
        moved, back = self.moved(form, other), self.moved(other, form)
        if moved >= max(REDIRECTS, OWN_WEIGHT * self.own(form), 4 * back):
            return True
        # A form is taken for one with https rather than without, then for one without "www.".
        if back or (other & 1, form >> 1) <= (form & 1, other >> 1):
            return False
        needed = max(PAGES, EQUAL_PER_OTHER * self.differing(form, other))
        return self.equal(form, other) >= needed

    def preferred(self, form: int) -> int:
        seen = [form]
        while True:
            here = seen[-1]
            found = [f for f in _FORMS if f != here and self.bears_out(here, f)]
            if not found:
                return here
            best = max(found, key=lambda f: (self.moved(here, f), self.equal(here, f), f & 1))
            if best in seen:
                return form  # round in a circle: nobody knows
            seen.append(best)


def pair_of_forms(form: int, other: int) -> int:
    low, high = sorted((form, other))
    return 16 + (0, 3, 5)[low] + high - low - 1


class Twins:
    """The evidence of one crawl, read from and written to *kept*, of the *sites* met last."""

    def __init__(self, kept: EvidenceRows, sites: int = SITES) -> None:
        self._kept = kept
        self._most = sites
        # Both the longest unused first; of a plain dict the first is found in linear time.
        self._sites: OrderedDict[str, TwinEvidence] = OrderedDict()
        self._to: dict[str, str] = {}
        self._pages: OrderedDict[int, int] = OrderedDict()
        for key, cells in kept.items():
            site = key.decode("utf-8", "replace")
            self._sites[site] = TwinEvidence(cells)
            self._decide(site)

    def __len__(self) -> int:
        return len(self._to)

    def preferred(self, url: str) -> str:
        end = url.find("/", 8)
        to = self._to.get(url[:end])
        return url if to is None else to + url[end:]

    def redirected(self, url: str, target: str, *, permanent: bool) -> None:
        """Count a redirect, if it is to the same path in another form."""
        site, form, rest = _parts(url)
        to_site, to_form, to_rest = _parts(target)
        if site and site == to_site and form != to_form and rest == to_rest:
            evidence = self._evidence_of(site)
            evidence.add(form * 4 + to_form, 2 if permanent else 1)
            self._changed(site, evidence)

    def answered(self, url: str, body: bytes) -> None:
        """Count the answer of *url*: a page of its own (2xx), *body*."""
        site, form, rest = _parts(url)
        if not site or not body:
            return
        key = xxhash.xxh3_64_intdigest(f"{site}/{rest}".encode())
        digest = xxhash.xxh3_64_intdigest(body) & ~_MARKS
        known = self._pages.pop(key, digest)
        if len(self._pages) >= _DIGESTS:
            self._pages.popitem(last=False)
        seen, same = known >> 4 & 15, known & 15
        equal = known & ~_MARKS == digest
        self._pages[key] = known | 1 << form + 4 | equal << form
        if not seen >> form & 1:  # else it is only fetched again
            self._compare(site, form, seen, same if equal else 0)

    def _compare(self, site: str, form: int, seen: int, same: int) -> None:
        evidence = self._evidence_of(site)
        if not same:
            evidence.add(form * 5, 1)
        for other in _FORMS:
            if same >> other & 1:
                evidence.add(pair_of_forms(form, other), 1)
                if same == 1 << other:
                    evidence.add(other * 5, -1)  # it was counted as the other's own
            elif seen >> other & 1:
                evidence.add(pair_of_forms(form, other) + 6, 1)
        if seen or any(head + site in self._to for head in _HEADS):
            self._changed(site, evidence)
        else:
            # The usual case: a page of its own makes no twin, and there is none to undo.
            self._kept.put(site.encode(), bytes(evidence.cells))

    def why(self, url: str) -> str:
        """The evidence for the site of *url* in words, or ""."""
        site, form, _ = _parts(url)
        evidence = self._sites.get(site)
        if evidence is None:
            return ""
        name = _HEADS[form] + site
        to = evidence.preferred(form)
        said = [f"{name} is taken for {_HEADS[to]}{site}" if to != form else f"{name} is no twin"]
        for other in _FORMS:
            if other != form:
                said.extend(_words(evidence, form, other, site))
        said.append(f"{counted(evidence.own(form), 'page')} of its own")
        return "; ".join(said)

    def _evidence_of(self, site: str) -> TwinEvidence:
        evidence = self._sites.get(site)
        if evidence is not None:
            self._sites.move_to_end(site)
            return evidence
        if len(self._sites) >= self._most:
            self.forget(next(iter(self._sites)))
        self._sites[site] = TwinEvidence()
        return self._sites[site]

    def forget(self, site: str) -> None:
        self._sites.pop(site, None)
        for head in _HEADS:
            self._to.pop(head + site, None)
        self._kept.delete(site.encode())

    def _changed(self, site: str, evidence: TwinEvidence) -> None:
        self._kept.put(site.encode(), bytes(evidence.cells))
        self._decide(site)

    def _decide(self, site: str) -> None:
        evidence = self._sites[site]
        for form in _FORMS:
            to = evidence.preferred(form)
            if to == form:
                self._to.pop(_HEADS[form] + site, None)
            else:
                self._to[_HEADS[form] + site] = _HEADS[to] + site


def site_of(host: str) -> str:
    return _parts(f"http://{host}/")[0]


def _words(evidence: TwinEvidence, form: int, other: int, site: str) -> Iterator[str]:
    name = _HEADS[other] + site
    if weight := evidence.moved(form, other):
        yield f"redirects to {name} weigh {weight}"
    if weight := evidence.moved(other, form):
        yield f"redirects from {name} weigh {weight}"
    if number := evidence.equal(form, other):
        yield f"{counted(number, 'page')} the same at {name}"
    if number := evidence.differing(form, other):
        yield f"{counted(number, 'page')} not the same at {name}"


def _parts(url: str) -> tuple[str, int, str]:
    """Site, form, and path with query of a normal *url*; the site is "" if it has a port."""
    scheme, _, rest = url.partition("://")
    authority, _, path = rest.partition("/")
    if ":" in authority:
        return "", 0, ""
    form = int(scheme == "https")
    bare = authority.removeprefix("www.")
    if bare != authority and "." in bare:
        return bare, form | 2, path
    return authority, form, path
