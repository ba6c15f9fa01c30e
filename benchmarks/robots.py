"""What robots.txt files cost: ``python benchmarks/robots.py [ARCHIVE.tar.xz]``.

Without an archive: files made to be slow. With one, a tar of real robots.txt: time and memory for
all of them, and whether every answer is the one that protego gives for the whole file.
"""

from __future__ import annotations

import sys
import tarfile
import time
import tracemalloc
from collections.abc import Iterator

from protego import Protego

from scrapy_spider_suite.frontier.robots_rules import (
    BODY_MAX,
    CRAWL_DELAY_MAX,
    RobotsRules,
    judge_robots,
)

HERE = "https://h.example"
AGENTS = (
    "Scrapy/2.19 (+https://scrapy.org)",
    "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
    "GPTBot",
    "AhrefsBot Slurp bingbot",
)
PATHS = ("/", "/search?q=a", "/admin/x", "/wp-admin/admin-ajax.php", "/a/b.pdf", "/index.html")
AGENT = "Mozilla/5.0 (compatible; examplebot/1.0; +https://example.com/bot)"


def rules_of(body: bytes) -> RobotsRules:
    """Return the rules of a body."""
    return judge_robots(HERE, 200, body, now=0.0)


def real(path: str) -> None:
    """Measure and compare all files of an archive."""
    with tarfile.open(path) as archive:
        files = [archive.extractfile(member) for member in archive if member.isfile()]
        bodies = [file.read() for file in files if file is not None]
    tracemalloc.start()
    held = [rules_of(body) for body in bodies]
    for rules in held:
        rules.crawl_delay(AGENTS[0])
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    begin = time.perf_counter()
    for body in bodies:
        rules_of(body).crawl_delay(AGENTS[0])
    spent = time.perf_counter() - begin
    estimate = sum(rules.weight for rules in held)
    print(f"{len(bodies)} files, {sum(map(len, bodies)):,} bytes: {spent:.2f} s, ", end="")
    print(f"{memory / 1e6:.0f} MB held, {estimate / 1e6:.0f} MB by estimate")
    print(f"answers unlike protego's: {sum(map(unlike, bodies))}")


def unlike(body: bytes) -> int:
    """Return how many answers differ from those of the whole file parsed by protego."""
    whole = Protego.parse(body[:BODY_MAX].decode("utf-8-sig", "ignore"))
    rules, wrong = rules_of(body), 0
    for agent in AGENTS:
        delay = whole.crawl_delay(agent)
        wrong += rules.crawl_delay(agent) != (delay and min(delay, CRAWL_DELAY_MAX))
        for url in (HERE + path for path in PATHS):
            wrong += rules.allowed(url, agent) != whole.can_fetch(url, agent)
    return wrong + (rules.sitemaps != tuple(whole.sitemaps))


def hostile() -> Iterator[tuple[str, str, str]]:
    """Yield a name, a robots.txt and a path."""

    def group(line: str, count: int) -> str:
        return "User-agent: *\n" + "".join(line.format(n) for n in range(count))

    agents = "".join(f"User-agent: x{n}\n" for n in range(15_000))
    yield "15,000 agents, 15,000 rules", agents + group("Disallow: /{}\n", 15_000), "z"
    yield "100,000 rules", group("Disallow: /{}\n", 100_000), "z"
    yield "rules with $", group("Disallow: /{}$\n", 30_000), "z"
    yield "rules with * and $", group("Disallow: /*aaa{}$\n", 25_000), "a" * 2000
    yield "rules with *", group("Disallow: /*aaaab{}\n", 25_000), "a" * 2000
    yield "the same, long URL", group("Disallow: /*aaaab{}\n", 25_000), "a" * 60_000
    yield "many * in a rule", group("Disallow: /" + "*a" * 200 + "*{}b\n", 1_100), "a" * 2000
    yield "one rule of * only", "User-agent: *\nDisallow: /" + "*a" * 250_000 + "*b\n", "a" * 2000


def made() -> None:
    """Measure each hostile file."""
    print(f"{'':30}{'read s':>8}{'ask s':>8}{'MB':>7}")
    for name, text, path in hostile():
        tracemalloc.start()
        rules = rules_of(text.encode())
        rules.crawl_delay(AGENT)
        memory = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        begin = time.perf_counter()
        fresh = rules_of(text.encode())
        fresh.crawl_delay(AGENT)
        read = time.perf_counter() - begin
        rules.allowed(f"{HERE}/", AGENT)
        begin = time.perf_counter()
        rules.allowed(f"{HERE}/{path}", AGENT)
        ask = time.perf_counter() - begin
        print(f"{name:30}{read:8.3f}{ask:8.4f}{memory / 1e6:7.1f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        real(sys.argv[1])
    else:
        made()
