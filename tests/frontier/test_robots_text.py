"""Tests of the choice of a robots.txt group, with protego as the oracle."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protego import Protego

from scrapy_spider_suite.frontier.robots_rules import (
    MATCH_BUDGET,
    AgentGroup,
    choose_group,
    deciding_line,
    rule_lines,
)

AGENT = "Mozilla/5.0 (compatible; Examplebot/1.0; +https://example.com/bot)"

AGENTS = ("*", "examplebot", "compatible", "Examplebot*", "mozilla", "bot", "other", "o*her", "**",
          "")
PATHS = ("/", "/a", "/a/", "/a/b", "/*b", "/b$", "/*.html$", "/%61", "/index.html", "")
UNKNOWN = ("Noindex: /x", "<p>User-agent: *</p>", "Clean-param: ref /", "x:y")
LINES = st.one_of(
    st.builds("{}{}".format, st.sampled_from(("User-agent: ", "user agent ", "USERAGENT:")),
              st.sampled_from(AGENTS)),
    st.builds("{}{}".format, st.sampled_from(("Disallow: ", "Allow:", "disalow ", " dissallow: ")),
              st.sampled_from(PATHS)),
    st.sampled_from((
        "", "# User-agent: *", "Crawl-delay: 3", "crawl delay 4", "Crawl-delay: x",
        "Sitemap: https://h.example/s.xml", "sitemap /t", "Host: h.example", *UNKNOWN,
        "just text", "Disallow", "User-agent", "Request-rate: 1/5",
        "visit-time 0100-0200", "Disallow: /c # User-agent: *",
    )),
)  # fmt: skip


@given(
    st.lists(LINES, max_size=25).map("\n".join),
    st.sampled_from((AGENT, "Examplebot", "nobody", "other")),
)
def test_the_group_says_what_protego_says_of_the_whole_file(text: str, agent: str) -> None:
    """Picking the lines first changes no answer, no delay and no sitemap.

    Protego is not shown what it does not know: it would end a list of agents there.
    """
    known = "\n".join(line for line in text.split("\n") if line not in UNKNOWN)
    whole, lines = Protego.parse(known), rule_lines(text)
    group = AgentGroup(lines, choose_group(lines, agent))
    assert group.crawl_delay == whole.crawl_delay(agent)
    assert group.sitemaps == tuple(whole.sitemaps)
    for path in ("/", "/a", "/a/b", "/b", "/c", "/a/x.html", "/index.html", "/robots.txt"):
        url = f"https://h.example{path}"
        assert group.allowed(url) == whole.can_fetch(url, agent), path


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("User-agent: *\nUser-agent: example\nUser-agent: examplebot", "examplebot"),
        ("User-agent: ampleb", None),
        ("User-agent: other\nUser-agent: *", "*"),
        ("User-agent: Exampleb*", "exampleb*"),
        ("User-agent: Example.com", None),
        ("User-agent: Example*\nUser-agent: Examplebot", "examplebot"),
        ("User-agent: Example", None),
        ("User-agent: Examplebot/2.1", "examplebot"),
        ("User-agent: Examplebot/*", "examplebot"),
        ("User-agent: Other/1.0\nUser-agent: *", "*"),
        ("User-agent: Mozilla/4.0", None),
        ("User-agent: Mozilla/4.0 (compatible; Examplebot/1.0)", None),
        ("User-agent: /1.0", None),
        ("", None),
    ],
)
def test_choose(text: str, token: str | None) -> None:
    """The longest product token of the User-Agent wins, whatever its version; then the asterisk."""
    assert choose_group(rule_lines(text), AGENT) == token


def test_a_group_for_one_version_is_a_group_for_the_robot() -> None:
    """And it is combined with those without a version, or with an asterisk."""
    lines = rule_lines("User-agent: FooBot/2.1\nDisallow: /1\n\nUser-agent: foobot\nDisallow: /2\n"
                  "User-agent: Foobot*\nDisallow: /3\nUser-agent: foo\nDisallow: /4")  # fmt: skip
    for agent in ("FooBot", "foobot/3", "Mozilla/5.0 (compatible; FooBot/3.0)"):
        group = AgentGroup(lines, choose_group(lines, agent))
        allowed = [group.allowed(f"http://h.example/{n}") for n in (1, 2, 3, 4)]
        assert allowed == [False, False, False, True]


def test_groups_of_one_name_are_combined() -> None:
    """RFC 9309 §2.2.1 combines all groups that name the agent."""
    lines = rule_lines("User-agent: a\nDisallow: /1\nUser-agent: b\nDisallow: /2\n"
                  "User-agent: c\nUser-agent: a\nDisallow: /3")  # fmt: skip
    group = AgentGroup(lines, "a")
    assert [group.allowed(f"http://h.example/{n}") for n in (1, 2, 3)] == [False, True, False]


@pytest.mark.parametrize("between", ["Sitemap: https://h.example/s.xml", "Noindex: /x", "x"])
def test_other_records_do_not_end_a_group(between: str) -> None:
    """RFC 9309 §2.2.4: other records must not interfere with the parsing of groups."""
    text = f"User-agent: examplebot\n{between}\nUser-agent: *\nDisallow: /"
    lines = rule_lines(text)
    assert not AgentGroup(lines, choose_group(lines, AGENT)).allowed("http://h.example/page")


def test_many_agents_before_many_rules_cost_no_more_than_their_lines() -> None:
    """A file that protego alone would turn into 225 million rules is read in linear time."""
    agents = "".join(f"User-agent: x{n}\n" for n in range(15_000))
    rules = "".join(f"Disallow: /{n}\n" for n in range(15_000))
    lines = rule_lines(agents + rules)
    begin = time.process_time()
    group = AgentGroup(lines, choose_group(lines, "x14999"))
    assert time.process_time() - begin < 2
    assert not group.allowed("http://h.example/77")
    assert group.weight < 16 << 20


def test_a_question_that_would_cost_too_much_is_answered_no() -> None:
    """Half a megabyte of wildcards meets a URL of 60,000 characters without matching it."""
    rules = "".join(f"Disallow: /*aaaab{n}\n" for n in range(20_000))
    lines = rule_lines("User-agent: *\n" + rules)
    group = AgentGroup(lines, "*")
    begin = time.process_time()
    assert not group.allowed("http://h.example/" + "a" * 60_000)
    assert time.process_time() - begin < 1
    assert group.allowed("http://h.example/" + "a" * 2_000)


def test_the_budget_never_meets_urls_within_scrapys_limit() -> None:
    """500 KiB of nothing but wildcards and 2,083 characters are within it."""
    assert MATCH_BUDGET > 500 * 1024 * 2_083


@pytest.mark.parametrize("url", ["http://[::1", "http://[::1/%20"])
def test_a_url_that_cannot_be_split_is_not_allowed(url: str) -> None:
    """It could not be fetched either."""
    assert not AgentGroup(rule_lines("User-agent: *\nDisallow: /private"), "*").allowed(url)


def test_without_a_group_everything_is_allowed() -> None:
    """A file that names only others says nothing to us."""
    group = AgentGroup(rule_lines("User-agent: other\nDisallow: /\nCrawl-delay: 9"), None)
    assert group.allowed("http://h.example/")
    assert group.crawl_delay is None


@given(st.lists(LINES, max_size=12).map("\n".join), st.sampled_from(PATHS))
def test_the_line_that_decides(text: str, path: str) -> None:
    """It is one of the file's, and forbids or allows as the group does; else all is allowed."""
    url = f"http://a.test{path}"
    lines = rule_lines(text)
    allowed = AgentGroup(lines, choose_group(lines, AGENT)).allowed(url)
    found = deciding_line(text, AGENT, url)
    if found is None:
        assert allowed
    else:
        number, line = found
        assert text.splitlines()[number - 1].partition("#")[0].strip() == line
        assert (line[:5].lower() == "allow") is allowed


def test_the_longest_line_decides() -> None:
    """With its number in the file, comments and blank lines counted."""
    text = "# c\nUser-agent: *\nDisallow: /a # b\n\nAllow: /a/b\nDisalow: /*.pdf$\n"
    paths = ("/a", "/a/b/c", "/x")
    said = {path: deciding_line(text, AGENT, f"http://a.test{path}") for path in paths}
    assert said == {"/a": (3, "Disallow: /a"), "/a/b/c": (5, "Allow: /a/b"), "/x": None}
    assert deciding_line(text, AGENT, "http://a.test/x.pdf") == (6, "Disalow: /*.pdf$")
