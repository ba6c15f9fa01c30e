"""Every knob of the in-vitro web, declared once, and what a started web says of itself."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from scrapy_spider_suite.errors import SettingsError


def counted(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


_SUFFIXES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def knob(default: Any, kind: str, meaning: str, minimum: int = 0) -> Any:
    """Declare a dataclass field as a knob; *minimum* is for counts and bytes."""
    known = {"kind": kind, "help": meaning, "min": minimum, "default": default}
    if kind == "table":
        return field(default_factory=dict, metadata=known)
    return field(default=default, metadata=known)


def parse(name: str, kind: str, value: Any) -> Any:
    """Parse *value*, of the command line or JSON, as *kind*; `check` checks its range."""
    if kind == "file" and value is not None:
        return Path(value)
    read = KINDS[kind].read
    if read is None or not isinstance(value, str):
        return value
    try:
        return read(value)
    except ValueError:
        raise SettingsError.of(name, value, KINDS[kind].allowed) from None


def check(name: str, kind: str, value: Any, minimum: int = 0) -> None:
    known, allowed = KINDS[kind], KINDS[kind].allowed
    good = isinstance(value, known.type) and (kind == "flag" or not isinstance(value, bool))
    if kind in ("count", "bytes"):
        good, allowed = good and value >= minimum, f"a whole number of at least {minimum}"
    elif known.most is not None:
        good = good and 0 <= value <= known.most
    if not good:
        raise SettingsError.of(name, value, allowed)


def _size(text: str) -> int:
    match = re.fullmatch(r"([0-9]+)([KMG]?)", text.strip().upper())
    if match is None:
        raise ValueError(text)
    return int(match[1]) * _SUFFIXES[match[2]]


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


class KnobKind(NamedTuple):
    """*read* makes a value of text; *most* of a number."""

    type: Any
    allowed: str
    metavar: str = ""
    read: Callable[[str], float] | None = None
    most: float | None = None


_BYTES = "a whole number of bytes, with K, M or G if you like"
KINDS = {
    "count": KnobKind(int, "a whole number", "N", int),
    "bytes": KnobKind(int, _BYTES, "BYTES", _size),
    "secs": KnobKind((int, float), "a number of seconds of at least 0", "SECONDS", _number, 1e9),
    "share": KnobKind((int, float), "a number between 0 and 1", "0..1", _number, 1.0),
    "sigma": KnobKind((int, float), "a number between 0 and 5", "SIGMA", _number, 5.0),
    "flag": KnobKind(bool, "true or false"),
    "text": KnobKind(str, "a name", "NAME"),
    "file": KnobKind((Path, type(None)), "a Path", "FILE"),
    "table": KnobKind(Mapping, "a table"),
}


_LABEL = r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?"
HOST_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")

TRAIT_KINDS = {
    "pages": "count", "address": "count", "latency": "secs", "jitter": "secs",
    "crawl_delay": "secs", "robots_status": "count", "disallow": "count",
    "retry_after_requests": "count", "retry_after_delay": "secs", "images": "count",
}  # fmt: skip
"""The traits that ``overrides`` may set for a host, and their kinds."""


@dataclass(frozen=True)
class FakeWebConfig:
    """The graph depends on the fields up to ``overrides`` alone. Raises `SettingsError`."""

    seed: int = knob(1, "count", "names the web: another seed, another graph")
    domain: str = knob("fake.test", "text", "hosts are called h000000.DOMAIN, h000001.DOMAIN, …")
    hosts: int = knob(100, "count", "number of synthetic hosts (0: only other ones, as --site)")
    pages: int = knob(100, "count", "mean number of pages of a host", 1)
    pages_sigma: float = knob(0.0, "sigma", "spread of the number of pages over hosts")
    depth: int = knob(3, "count", "clicks from / to the furthest page of a mean host", 1)
    degree: int = knob(40, "count", "mean number of links of a page")
    degree_sigma: float = knob(0.5, "sigma", "spread of the number of links over pages")
    external: float = knob(0.2, "share", "share of the random links that lead to another host")
    page_size: int = knob(6000, "bytes", "mean size of a page (more where its links need more)")
    page_size_sigma: float = knob(0.0, "sigma", "spread of the size over pages")
    errors: float = knob(0.0, "share", "share of leaf pages that answer 404, 500 or 503 (2:1:1)")
    redirects: float = knob(0.0, "share", "share of leaf pages that answer 301, 302, 307 or 308")
    redirects_across: float = knob(0.5, "share", "share of the redirects that lead to another host")
    robots_missing: float = knob(0.0, "share", "share of hosts whose robots.txt is a 404")
    robots_error: float = knob(0.0, "share", "share of hosts whose robots.txt is a 503 for ever")
    robots_disallow: float = knob(0.0, "share", "share of hosts with a Disallow line that matters")
    sitemaps: float = knob(1.0, "share", "share of hosts with a sitemap that robots.txt names")
    robots_crawl_delay: float = knob(0.0, "share", "share of hosts with a Crawl-delay")
    crawl_delay: float = knob(2.0, "secs", "the value of that Crawl-delay")
    retry_after: float = knob(0.0, "share", "share of hosts that begin with 429 or 503")
    retry_after_requests: int = knob(2, "count", "number of pages such a host refuses at first")
    retry_after_delay: float = knob(2.0, "secs", "its Retry-After, as seconds or as an HTTP-date")
    latency: float = knob(0.0, "secs", "mean time before an answer begins")
    jitter: float = knob(0.0, "secs", "greatest deviation from that mean, uniform")
    slow: float = knob(0.0, "share", "share of hosts that answer after --slow-latency")
    slow_latency: float = knob(2.0, "secs", "mean time before a slow host's answer begins")
    images: int = knob(0, "count", "number of images that each page shows")
    changes: float = knob(0.0, "secs", "median time between two changes of a page (0 = never)")
    changes_sigma: float = knob(0.0, "sigma", "spread of how often pages change")
    conditional: float = knob(1.0, "share", "share of changing pages with ETag, Last-Modified, 304")
    coded: float = knob(0.0, "share", "share of pages that come compressed or in chunks")
    cookies: float = knob(0.0, "share", "share of pages that set a cookie")
    messy: float = knob(0.0, "share", "share of links in odd but correct HTML and URL forms")
    overrides: Mapping[int, Mapping[str, float]] = knob({}, "table", "host index -> its traits")

    addresses: int = knob(10, "count", "number of 127.x.y.z addresses that the hosts share", 1)
    port: int = knob(0, "count", "HTTP port (0 = any free one; the command tries 8080 first)")
    one_address: bool = knob(False, "flag", "one port an address on 127.0.0.1, as on macOS")
    keep_alive: float = knob(15.0, "secs", "idle time before a connection is closed (0 = at once)")
    certificate: Path | None = knob(  # noqa: RUF009
        None, "file", "serve https with this certificate and key (PEM)"
    )
    sites: Mapping[str, str] = knob({}, "table", "host name -> folder of files that it serves")
    hostile: bool = knob(False, "flag", "also serve hostile.test, where every answer is malicious")
    hostile_pace: float = knob(1.0, "secs", "pause between the pieces of a slow hostile answer")
    hostile_seconds: float = knob(600.0, "secs", "length of hostile answers that never end")

    traps: bool = knob(False, "flag", "also serve six traps, URLs without end, on *-trap.test")

    dns_port: int = knob(0, "count", "UDP port of the name server on 127.0.0.1 (0 = any free one)")
    ttl: int = knob(300, "count", "time to live of DNS answers, in seconds")
    seeds: int = knob(1, "count", "number of hosts whose / is listed as a seed")
    seeds_file: Path | None = knob(  # noqa: RUF009
        None, "file", "write the seeds into this file, one a line"
    )
    log: Path | None = knob(None, "file", "arrival log, appended to")  # noqa: RUF009
    dns_log: Path | None = knob(  # noqa: RUF009
        None, "file", "log of the DNS queries, appended to"
    )

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            known = each.metadata
            check(each.name, known["kind"], getattr(self, each.name), known["min"])
        for name, value in [("domain", self.domain), *(("sites", site) for site in self.sites)]:
            if not HOST_NAME.fullmatch(value):
                raise SettingsError.of(name, value, "a host name in lower case")
        for folder in self.sites.values():
            if not Path(folder).is_dir():
                raise SettingsError.of("sites", folder, "a folder that exists")
        if self.errors + self.redirects > 1:
            raise SettingsError("errors + redirects: expected a sum of at most 1")
        for name in ("port", "dns_port"):
            if getattr(self, name) > 65535:
                raise SettingsError.of(name, getattr(self, name), "a port of at most 65535")
        if not (self.hosts or self.sites or self.hostile or self.traps):
            raise SettingsError.of("hosts", 0, "at least 1 without --site, --hostile or --traps")
        for host, traits in self.overrides.items():
            _check_override(host, traits, self.hosts)

    def origin(self, host: str, port: int) -> str:
        """Return scheme, name and port of *host*."""
        scheme, usual = ("http", 80) if self.certificate is None else ("https", 443)
        return f"{scheme}://{host}" + (f":{port}" if port != usual else "")

    def to_json(self) -> str:
        changed = {
            each.name: getattr(self, each.name)
            for each in dataclasses.fields(self)
            if getattr(self, each.name) != each.metadata["default"]
        }
        return json.dumps(changed, default=str)

    @classmethod
    def from_json(cls, text: str) -> FakeWebConfig:
        try:
            values = json.loads(text)
        except ValueError as error:
            raise SettingsError(f"config: not JSON ({error})") from None
        if not isinstance(values, dict):
            raise SettingsError("config: expected a JSON object")
        return cls.from_values(values)

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> FakeWebConfig:
        kinds = {each.name: each.metadata["kind"] for each in dataclasses.fields(cls)}
        for name in values:
            if name not in kinds:
                raise SettingsError(f"{name}: no such knob of the in-vitro web")
        parsed = {name: parse(name, kinds[name], value) for name, value in values.items()}
        if "overrides" in parsed:
            table = parsed["overrides"].items()
            parsed["overrides"] = {parse("overrides", "count", key): each for key, each in table}
        return cls(**parsed)


def parse_override(text: str) -> tuple[int, dict[str, float]]:
    """Parse a ``--host`` option, ``INDEX:TRAIT=VALUE[,TRAIT=VALUE…]``. Raises `SettingsError`."""
    index, _, rest = text.partition(":")
    traits: dict[str, float] = {}
    for pair in rest.split(","):
        trait, _, value = pair.partition("=")
        if trait not in TRAIT_KINDS:
            known = ", ".join(TRAIT_KINDS)
            raise SettingsError.of("host", text, f"INDEX:TRAIT=VALUE[,…], TRAIT one of {known}")
        traits[trait] = parse(f"host {index} {trait}", TRAIT_KINDS[trait], value)
    return parse("host", "count", index), traits


def parse_site(text: str) -> tuple[str, str]:
    """Parse a ``--site`` option; a NAME without a dot becomes ``NAME.test``."""
    name, equals, folder = text.partition("=")
    if not equals or not name or not folder:
        raise SettingsError.of("site", text, "NAME=DIR")
    return (name if "." in name else f"{name}.test").lower(), folder


def _check_override(host: int, traits: Mapping[str, float], hosts: int) -> None:
    name = f"overrides[{host}]"
    if not 0 <= host < hosts:
        raise SettingsError.of(name, dict(traits), f"the index of a host, below {hosts}")
    for trait, value in traits.items():
        if trait not in TRAIT_KINDS:
            raise SettingsError.of(name, trait, "one of " + ", ".join(TRAIT_KINDS))
        check(f"{name}.{trait}", TRAIT_KINDS[trait], value, 1 if trait == "pages" else 0)


@dataclass(frozen=True)
class Ready:
    """A started web. *ports*: one, or one for each address. *notes*: lines for people."""

    ports: tuple[int, ...]
    dns_port: int
    hosts: int
    addresses: int
    first_address: str
    last_address: str
    seeds: tuple[str, ...]
    log: str | None
    notes: tuple[str, ...]

    @property
    def http_port(self) -> int:
        return self.ports[0]

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "SUITE_DNS_SERVERS": f"127.0.0.1:{self.dns_port}",
            "SUITE_ALLOW_PRIVATE_ADDRESSES": ["127.0.0.0/8"],
        }

    def to_json(self) -> str:
        more = {"http_port": self.http_port, "settings": self.settings}
        return json.dumps(dataclasses.asdict(self) | more)

    @classmethod
    def from_json(cls, line: str) -> Ready:
        values = json.loads(line)
        names = [each.name for each in dataclasses.fields(cls)]
        if not isinstance(values, dict) or not set(names) <= values.keys():
            raise ValueError("not a ready line of the in-vitro web")
        for name in ("ports", "seeds", "notes"):
            values[name] = tuple(values[name])
        return cls(**{name: values[name] for name in names})
