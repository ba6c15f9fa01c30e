"""What one robots.txt allows (RFC 9309), how long it is valid, and what a failed fetch means."""

from __future__ import annotations

import math
import re
import zlib
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING

from ada_url import URL
from protego import Protego

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MATCH_BUDGET = 1_100_000_000
"""Most (characters of the URL) times (characters of rules with ``*``) for one question.

Above 500 KiB of rules times 2,083 characters (Scrapy's URLLENGTH_LIMIT): some 0.1 s at worst.
"""

_AGENT = re.compile(r"(?:user-agent|useragent|user\s+agent)(?:\s*:|\s|$)\s*(.*)", re.I | re.S)
_SITE_WIDE = re.compile(r"(?:sitemaps?|site-map|host)(?:\s*:|\s|$)", re.I)
_RULE = re.compile(
    r"(?:dis+al+ow|diasllow|disallaw|allow"
    r"|crawl(?:-|\s+)delay|request(?:-|\s+)rate|visit(?:-|\s+)time)(?:\s*:|\s|$)",
    re.I,
)
_PERMISSION = re.compile(r"(?:dis+al+ow|diasllow|disallaw|(allow))(?:\s*:|\s|$)\s*(.*)", re.I)
_SPACE = re.compile(r"\s")
_CONTACT = re.compile(r"\S*(?:://|@)\S*")  # the words in a URL or an address name no robot
_BYTES_PER_RULE = 400  # of protego's objects, measured over 150,000 real rules


class AgentGroup:
    """The rules for the user agent *token*, or ``*``; None: no group matches."""

    __slots__ = ("_rules", "_wildcards", "token", "weight")

    def __init__(self, lines: Iterable[str], token: str | None) -> None:
        mine = list(_lines_of(lines, token))
        self.token = token
        self._rules = Protego.parse("\n".join(mine))
        self._wildcards = sum(len(line) for line in mine if "*" in line)
        # Protego keeps a rule with a "$" twice.
        rules = sum(2 if "$" in line else 1 for line in mine)
        self.weight = 1000 + _BYTES_PER_RULE * rules + 4 * sum(map(len, mine))  # bytes, about

    def allowed(self, url: str) -> bool:
        """Whether *url* may be fetched. No for a URL that cannot be split, or costs too much."""
        if len(url) * self._wildcards > MATCH_BUDGET:
            return False
        try:
            return self._rules.can_fetch(url, "*")
        except ValueError:
            return False

    @property
    def crawl_delay(self) -> float | None:
        """Seconds, finite and not negative; None if the group names none."""
        return self._rules.crawl_delay("*")

    @property
    def sitemaps(self) -> tuple[str, ...]:
        return tuple(self._rules.sitemaps)


def rule_lines(text: str) -> list[str]:
    cut = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in cut if line]


def choose_group(lines: Iterable[str], user_agent: str) -> str | None:
    """The token for *user_agent* (token or header): the longest, then ``*`` (RFC 9309 §2.2.1)."""
    robot = _CONTACT.sub(" ", user_agent).strip().lower()
    best, best_score = None, 0
    for line in lines:
        agent = _AGENT.match(line) if line[0] in "uU" else None
        for token in _tokens(agent[1]) if agent else ():
            score = _score(token, robot)
            if score > best_score:
                best, best_score = token, score
    return best


class _Line(str):
    number = 0


def deciding_line(text: str, user_agent: str, url: str) -> tuple[int, str] | None:
    """Number and text of the line that decides about *url*; None if no line does. Slow."""
    lines = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = _Line(raw.partition("#")[0].strip())
        line.number = number
        if line:
            lines.append(line)
    token = choose_group(lines, user_agent)
    allowed = AgentGroup(lines, token).allowed(url)
    found: tuple[int, int, str] | None = None
    for each in _lines_of(lines, token):
        rule = _PERMISSION.match(each)
        if not isinstance(each, _Line) or rule is None or bool(rule[1]) is not allowed:
            continue
        if _matches(each, url, allowed=allowed) and (found is None or len(rule[2]) > found[0]):
            found = len(rule[2]), each.number, str(each)
    return None if found is None else found[1:]


def _matches(rule: str, url: str, *, allowed: bool) -> bool:
    before = "Disallow: /\n" if allowed else ""
    return AgentGroup(f"User-agent: *\n{before}{rule}".splitlines(), "*").allowed(url) is allowed


def _tokens(value: str) -> tuple[str, ...]:
    token = value.strip().lower()
    if token == "*":
        return (token,)
    name, _, version = token.partition("/")
    if version and name != "mozilla" and not _SPACE.search(token):
        token = name
    name = token.replace("*", "")
    if not name:
        return ()
    return (name, f"{name}*") if token.endswith("*") else (name,)


def _score(token: str, robot: str) -> int:
    if token == "*":
        return 1
    name = token.removesuffix("*")
    at = robot.find(name)
    while at != -1:
        end = at + len(name)
        begins = at == 0 or not _of_a_name(robot[at - 1])
        if begins and name != token:
            return 2 * len(name)
        if begins and (end == len(robot) or not _of_a_name(robot[end])):
            return 2 * len(name) + 1
        at = robot.find(name, at + 1)
    return 0


def _of_a_name(character: str) -> bool:
    return character.isalnum() or character in "-_"


def _lines_of(lines: Iterable[str], token: str | None) -> Iterator[str]:
    """Yield the site-wide lines and those of all groups that name *token*, as one group.

    Unknown fields (``Noindex``) do not end a group (RFC 9309 §2.2.4).
    """
    if token is not None:
        yield "User-agent: *"
    mine = in_agents = False
    for line in lines:
        agent = _AGENT.match(line) if line[0] in "uU" else None
        if agent is not None:
            mine = (mine and in_agents) or token in _tokens(agent[1])
            in_agents = True
        elif line[0] in "sShH" and _SITE_WIDE.match(line):
            yield line
        elif _RULE.match(line):
            in_agents = False
            if mine:
                yield line


BODY_MAX = 500 * 1024
"""Bytes of a robots.txt that are read, the least that RFC 9309 §2.5 allows to read."""
REDIRECTS_MAX = 5  # redirects that the caller follows (§2.3.1.2)
TTL = 24 * 3600.0  # how long rules hold by default, and at most by the standard (§2.4)
TTL_MIN = 3600.0  # a shorter ``max-age`` counts as this: many servers send 0 for every file
RETRY_AFTER = (300.0, 3600.0, 24 * 3600.0)
"""Seconds after the first, second, and every further failure in a row."""
UNREACHABLE_MAX = 30 * 24 * 3600.0  # an origin that was unreachable for so long has no robots.txt
CRAWL_DELAY_MAX = 24 * 3600.0
"""A longer ``Crawl-delay`` counts as this, the longest among 4,231 real files."""

_AGENTS_KEPT = 8  # user agents whose group is remembered; more only if a project rotates them
_MAX_AGE = re.compile(r"(?:^|[\s,])max-age\s*=\s*\"?(\d{1,9})", re.I)
_NO_CACHE = re.compile(r"(?:^|[\s,])no-(?:cache|store)(?:$|[\s,=])", re.I)


class RobotsVerdict(IntEnum):
    """What holds for an origin. The numbers are stored: never change one."""

    RULES = 1
    ALLOW_ALL = 2
    DISALLOW_FOR_NOW = 3


@dataclass(frozen=True, slots=True)
class RobotsRules:
    """What one origin allows; made by `judge_robots`. Times are wall seconds."""

    origin: str  # ``scheme://host[:port]``, as `origin_of` writes it
    verdict: RobotsVerdict
    status: int | None  # of the last answer; None if there was none
    fetched_at: float  # of the answer that holds, or of the first failure
    checked_at: float  # when the origin was last asked
    expires_at: float  # when to ask it again
    unreachable_since: float | None = None  # when failures began that have not ended
    failures: int = 0  # in a row
    packed: bytes = b""  # the body, zlib; empty unless the verdict is RULES
    _groups: dict[str, AgentGroup] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __repr__(self) -> str:
        return f"<RobotsRules {self.origin} {self.verdict.name} status={self.status}>"

    def expired(self, now: float) -> bool:
        """Whether to ask again. So too if the clock was set back to before the last answer."""
        return not self.checked_at - 60.0 <= now < self.expires_at

    @property
    def silent(self) -> bool:
        return self.verdict is RobotsVerdict.DISALLOW_FOR_NOW and self.status is None

    def allowed(self, url: str, user_agent: str) -> bool:
        """Whether *user_agent* (token or header) may fetch *url* of this origin; robots.txt always.
        """
        if self.verdict is RobotsVerdict.RULES:
            return self._group(user_agent).allowed(url)
        return self.verdict is RobotsVerdict.ALLOW_ALL or url == f"{self.origin}/robots.txt"

    def crawl_delay(self, user_agent: str) -> float | None:
        """The ``Crawl-delay`` in seconds, at most CRAWL_DELAY_MAX; None if absent or invalid."""
        if self.verdict is not RobotsVerdict.RULES:
            return None
        delay = self._group(user_agent).crawl_delay
        # Releases of protego before 0.7 let these through.
        if delay is None or not 0.0 <= delay < math.inf:
            return None
        return min(delay, CRAWL_DELAY_MAX)

    @property
    def body(self) -> bytes:
        """The robots.txt that holds, at most BODY_MAX bytes; `zlib.error` if it is damaged."""
        return zlib.decompressobj().decompress(self.packed, BODY_MAX) if self.packed else b""

    @property
    def sitemaps(self) -> tuple[str, ...]:
        return AgentGroup(self._lines(), None).sitemaps

    @property
    def weight(self) -> int:
        """About how many bytes of memory this takes, with what was parsed so far."""
        parsed = {group.token: group.weight for group in self._groups.values()}
        return 600 + len(self.packed) + sum(parsed.values())

    def _lines(self) -> list[str]:
        return rule_lines(self.body.decode("utf-8-sig", errors="ignore"))

    def _group(self, user_agent: str) -> AgentGroup:
        group = self._groups.get(user_agent)
        if group is not None:
            return group
        lines = self._lines()
        token = choose_group(lines, user_agent)
        same = (known for known in self._groups.values() if known.token == token)
        group = next(same, None) or AgentGroup(lines, token)
        if len(self._groups) >= _AGENTS_KEPT:
            self._groups.clear()
        self._groups[user_agent] = group
        return group


def judge_robots(
    origin: str, status: int | None, body: bytes = b"", *, now: float,
    previous: RobotsRules | None = None, max_age: float | None = None, ttl: float = TTL,
) -> RobotsRules:  # fmt: skip
    """What holds for *origin* after its robots.txt was asked for at *now* (wall).

    *status*: after redirects; None without an answer. *previous*: what held until now.
    *max_age*: of the answer, in seconds, may shorten *ttl* down to TTL_MIN.
    """
    if status is None or status == 429 or not 200 <= status < 500:
        return _unreachable(origin, status, now, previous)
    if max_age is not None:
        ttl = min(ttl, max(max_age, TTL_MIN))
    if status >= 300:
        return RobotsRules(origin, RobotsVerdict.ALLOW_ALL, status, now, now, now + ttl)
    packed = zlib.compress(body[:BODY_MAX]) if body else b""
    return RobotsRules(origin, RobotsVerdict.RULES, status, now, now, now + ttl, packed=packed)


def _unreachable(
    origin: str, status: int | None, now: float, previous: RobotsRules | None
) -> RobotsRules:
    failures, since, verdict, fetched_at, packed = 1, now, RobotsVerdict.DISALLOW_FOR_NOW, now, b""
    if previous is not None:
        # What is tried again before the pause is over (a page's retry) is no further failure.
        early = previous.unreachable_since is not None and now < previous.expires_at
        failures = previous.failures + (not early)
        if previous.unreachable_since is not None:
            since = min(previous.unreachable_since, now)
        # A copy older than a whole outage is not trusted to begin one with.
        if now - previous.fetched_at <= UNREACHABLE_MAX + TTL:
            verdict, fetched_at = previous.verdict, previous.fetched_at
            packed = previous.packed
    if now - since >= UNREACHABLE_MAX:
        verdict, fetched_at, packed = RobotsVerdict.ALLOW_ALL, now, b""
    retry = RETRY_AFTER[min(failures, len(RETRY_AFTER)) - 1]
    return RobotsRules(
        origin, verdict, status, fetched_at, now, now + retry, since, failures, packed
    )


# A fetch asks some ten times for that of its URL, and each time would take 20 us.
@lru_cache(4096)
def origin_of(url: str) -> str:
    """The origin of *url*: scheme, host, and port if not the default; "" if it has none."""
    try:
        parts = URL(url)
    except ValueError:
        return ""
    if parts.protocol not in ("http:", "https:"):
        return ""
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.protocol}//{parts.hostname.rstrip('.')}{port}"


def max_age(cache_control: str) -> float | None:
    if _NO_CACHE.search(cache_control):
        return 0.0
    found = _MAX_AGE.search(cache_control)
    return float(found[1]) if found else None
