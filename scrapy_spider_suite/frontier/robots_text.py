"""The one group of a robots.txt that holds for one user agent, parsed by ``protego``.

Why not hand the whole file to protego: it keeps every rule once for every user agent that the
rule's group names, so 1,000 ``User-agent`` lines before 1,000 rules, a file of 30 KB, become
73 MB after 1.1 s, and 500 KiB of that (RFC 9309 §2.5 has us read so much) minutes and
gigabytes. So the lines of the one group are picked first, as protego reads lines (a test compares
the two, fields that protego does not know apart), and only those are parsed: time and memory are
linear in the file. Names are whole product tokens (RFC 9309 §2.2.1), where protego is content
with the beginning of one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from protego import Protego

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MATCH_BUDGET = 1_100_000_000
"""Most (characters of the URL) times (characters of the rules with a ``*``) for one question.

Each such rule is a search through the URL: 22,000 of them and 60,000 characters took 0.7 s.
The bound lies above 500 KiB of rules times 2,083 characters (Scrapy's URLLENGTH_LIMIT), at worst
some 0.1 s, so that no URL within the limit ever meets it.
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


class Group:
    """What a robots.txt says to one user agent.

    Attributes:
        token: the name that the group was chosen by, ``*`` among them; None: none matches.
        weight: about how many bytes of memory it takes.
    """

    __slots__ = ("_rules", "_wildcards", "token", "weight")

    def __init__(self, lines: Iterable[str], token: str | None) -> None:
        """Parse what *lines*, of `split`, say to *token*, of `choose`."""
        mine = list(_lines_of(lines, token))
        self.token = token
        self._rules = Protego.parse("\n".join(mine))
        self._wildcards = sum(len(line) for line in mine if "*" in line)
        # Protego keeps a rule with a "$" twice.
        rules = sum(2 if "$" in line else 1 for line in mine)
        self.weight = 1000 + _BYTES_PER_RULE * rules + 4 * sum(map(len, mine))

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
        """The file's ``Sitemap`` values, as they are written."""
        return tuple(self._rules.sitemaps)


def split(text: str) -> list[str]:
    """Return the lines that are not empty, without comment and surrounding space."""
    cut = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in cut if line]


def choose(lines: Iterable[str], user_agent: str) -> str | None:
    """Return the token of the group that holds for *user_agent*, or None.

    The longest token that is a word of *user_agent* wins, then one that ends in ``*`` and begins a
    word, then ``*`` (RFC 9309 §2.2.1); the whole User-Agent header may be given.
    """
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
    """A line without comment and surrounding space, and which it was in its file."""

    number = 0


def deciding(text: str, user_agent: str, url: str) -> tuple[int, str] | None:
    """The number and words of the line of *text* by which *url* may be fetched, or may not.

    The longest rule that matches *url* and says what `Group.allowed` does; None if it is for lack
    of one that the URL is allowed. For explaining: it costs a parser for each rule.
    """
    lines = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = _Line(raw.partition("#")[0].strip())
        line.number = number
        if line:
            lines.append(line)
    token = choose(lines, user_agent)
    allowed = Group(lines, token).allowed(url)
    found: tuple[int, int, str] | None = None
    for each in _lines_of(lines, token):
        rule = _PERMISSION.match(each)
        if not isinstance(each, _Line) or rule is None or bool(rule[1]) is not allowed:
            continue
        if _matches(each, url, allowed=allowed) and (found is None or len(rule[2]) > found[0]):
            found = len(rule[2]), each.number, str(each)
    return None if found is None else found[1:]


def _matches(rule: str, url: str, *, allowed: bool) -> bool:
    """Whether *rule*, alone, decides on *url*."""
    before = "Disallow: /\n" if allowed else ""
    return Group(f"User-agent: *\n{before}{rule}".splitlines(), "*").allowed(url) is allowed


def _tokens(value: str) -> tuple[str, ...]:
    """Return the names that a ``User-agent`` value stands for, a stray ``*`` forgiven.

    A version is no part of a name, but nearly every browser says that it is some ``Mozilla/5.0``.
    """
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
    """Return 0 if *token* does not name *robot*, else the more the better it does."""
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

    A group begins at the first ``User-agent`` line after any rule; ``Sitemap`` and ``Host`` stand
    outside of groups. Fields that nobody here knows (``Noindex``) are as if they were not there:
    protego takes them for rules, but RFC 9309 §2.2.4 lets no such record end a group.
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
