"""The general settings and the exceptions from them, put together."""

from __future__ import annotations

import math

import pytest

from scrapy_spider_suite.frontier.outcomes import Pace
from scrapy_spider_suite.frontier.policy import Block, Overrides, Policy, Rule, excluded_pattern
from scrapy_spider_suite.urls.host_patterns import HostPattern

OVERRIDES = Overrides.parse(
    [
        "own.example.com delay=0 concurrency=8 requests_per_visit=20 max_pages=0",
        ".example.com delay=9",
        "big.example.net max_pages=7",
        "192.0.2.0/24 delay=0 concurrency=4",
        "198.51.100.0/24 concurrency=2",
    ],
    "rules.txt",
)


def policy() -> Policy:
    """A policy with a project's slots and with exceptions."""
    return Policy(
        host=Pace(4.0, 1, 2),
        address=Pace(0.5, 1),
        host_max_pages=100,
        overrides=OVERRIDES,
        slots={"shop.example.com": Pace(2.0, 3, 1), "slot": Pace(1.0, 5, 1)},
    )


def test_a_host_goes_by_the_general_pace() -> None:
    """Nothing is said of it."""
    assert policy().for_host("example.net") == Pace(4.0, 1, 2)


def test_an_override_changes_what_it_names() -> None:
    """The rest is the general pace."""
    assert policy().for_host("own.example.com") == Pace(0.0, 8, 20)
    assert policy().for_host("www.example.com") == Pace(9.0, 1, 2)


def test_an_override_comes_on_top_of_a_projects_slot() -> None:
    """DOWNLOAD_SLOTS is the project's pace, the overrides file the operator's."""
    assert policy().for_host("shop.example.com") == Pace(9.0, 3, 1)
    assert policy().for_host("slot") == Pace(1.0, 5, 1)


def test_addresses() -> None:
    """Delay and concurrency, each for itself; bursts are the hosts' business."""
    assert policy().for_address("203.0.113.1") == Pace(0.5, 1)
    assert policy().for_address("192.0.2.1") == Pace(0.0, 4)
    assert policy().for_address("198.51.100.1") == Pace(0.5, 2)


def test_an_address_with_a_delay_has_one_visit_at_a_time() -> None:
    """Where addresses set no limit, a rule for some of them does."""
    free = Policy(host=Pace(4.0), address=Pace(0.0, 0), overrides=OVERRIDES)
    assert free.for_address("203.0.113.1") == Pace(0.0, 0)
    assert free.for_address("192.0.2.1") == Pace(0.0, 4)
    slow = Overrides.parse(["203.0.113.0/24 delay=2"], "rules.txt")
    assert Policy(address=Pace(0.0, 0), overrides=slow).for_address("203.0.113.1") == Pace(2.0, 1)


def test_page_budgets() -> None:
    """A rule may lift the limit (0), set another, or say nothing of it."""
    assert policy().max_pages("example.net") == 100
    assert policy().max_pages("own.example.com") == 0
    assert policy().max_pages("www.example.com") == 100
    assert policy().max_pages("big.example.net") == 7


def test_the_defaults_are_polite() -> None:
    """Four seconds between visits to a host, half a second to an address, one at a time."""
    assert Policy().for_host("example.net") == Pace(4.0, 1, 1)
    assert Policy().for_address("192.0.2.1") == Pace(0.5, 1, 1)
    assert Policy().max_pages("example.net") == 0


def test_policies_share_nothing() -> None:
    """Each has its own exceptions."""
    assert Policy().overrides is not Policy().overrides
    assert Policy().slots is not Policy().slots


NOON = 1_800_000_000.0 // 86_400 * 86_400 + 12 * 3600


def barring(text: str) -> Policy:
    """A policy with the rules of *text*."""
    return Policy(overrides=Overrides.parse(text.splitlines(), "rules.txt"))


def test_what_a_hosts_own_rules_leave_open_those_of_its_address_decide() -> None:
    """Robots, the User-Agent and the page budget belong to a host, wherever it lives."""
    both = barring(
        "a.t robots=ignore\n10.0.0.0/8 robots=obey user_agent=bot max_pages=3\n"
        "10.1.0.0/16 delay=1\n"
    )
    assert both.obeys_robots("a.t", "10.1.2.3") is False
    assert both.obeys_robots("b.t", "10.1.2.3") is True
    assert both.obeys_robots("b.t") is None
    assert both.user_agent("a.t", "10.1.2.3") == "bot"
    assert both.user_agent("a.t", "11.1.2.3") is None
    assert both.max_pages("a.t", "10.1.2.3") == 3
    assert both.max_pages("a.t") == 0


def test_bars_of_host_and_address_hold_together() -> None:
    """A host that is free in a blocked range is blocked, and one blocked by name anywhere."""
    both = barring(
        ".a.t blocked=yes reason=asked\nfree.a.t blocked=no\n10.0.0.0/8 blocked=yes\n"
        "10.9.0.0/16 blocked=no\n"
    )
    bar = both.exclusion("www.a.t", "", NOON)
    assert bar is not None
    assert str(bar) == "blocked (.a.t, rules.txt, line 1): asked"
    assert bar.until == math.inf
    assert both.exclusion("free.a.t", "", NOON) is None
    assert both.exclusion("free.a.t", "10.1.2.3", NOON) is not None
    assert both.exclusion("free.a.t", "10.9.2.3", NOON) is None
    assert both.exclusion("b.t", "11.0.0.1", NOON) is None


def test_outside_its_hours_a_host_waits_until_they_begin() -> None:
    """The later of two ends counts."""
    night = barring("a.t hours=22-6\n10.0.0.0/8 hours=23-5\nb.a.t hours=0-24\n")
    bar = night.exclusion("a.t", "", NOON)
    assert bar is not None
    assert (str(bar), bar.until) == (
        "outside its hours (a.t, rules.txt, line 1): 22-6", NOON + 10 * 3600
    )  # fmt: skip
    later = night.exclusion("a.t", "10.0.0.1", NOON)
    assert later is not None
    assert later.until == NOON + 11 * 3600
    assert night.exclusion("a.t", "", NOON + 12 * 3600) is None
    assert night.exclusion("b.a.t", "", NOON) is None


def test_blocks_of_an_operator() -> None:
    """Beside those of the file, until they expire or are taken out."""
    policy = barring("b.t delay=1")
    assert policy.exclusion("a.t", "10.0.0.1", NOON) is None
    for text in (".t", "10.0.0.0/8", "http://c.u/x/"):
        subject = HostPattern.parse(text)
        rule = Rule(str(subject), "block by ops at noon")
        policy.blocks.put(subject, Block(rule, "too\nfast", NOON + 60))
    bar = policy.exclusion("a.t", "", NOON)
    assert str(bar) == "blocked (.t, block by ops at noon): too fast"
    assert policy.exclusion("c.u", "10.9.9.9", NOON + 59) is not None
    assert policy.exclusion("c.u", "10.9.9.9", NOON + 60) is None
    assert policy.exclusion("c.u", "", NOON) is None
    assert policy.exclusion_of_url("http://c.u/x/1", "c.u", NOON) is not None
    assert policy.exclusion_of_url("http://c.u/y", "c.u", NOON) is None
    policy.blocks.remove(HostPattern.parse(".t"))
    assert policy.exclusion("a.t", "", NOON) is None


@pytest.mark.parametrize(
    ("words", "subject"),
    [
        ("blocked (.a.t, rules.txt, line 1): asked", ".a.t"),
        ("outside its hours (10.0.0.0/8, rules.txt, line 1)", "10.0.0.0/8"),
        ("back-off after timeout", None),
        ("Retry-After", None),
        ("blocked (, x)", None),
        ("", None),
    ],
)
def test_from_the_words_of_a_bar_to_its_subject(words: str, subject: str | None) -> None:
    """What a host's record says leads back to the rule."""
    assert excluded_pattern(words) == (None if subject is None else HostPattern.parse(subject))


def test_what_one_rule_bars() -> None:
    """By its subject alone, whoever it is about."""
    policy = barring(".a.t blocked=yes\n10.0.0.0/8 hours=22-6\nb.t blocked=no\n")
    policy.blocks.put(HostPattern.parse("b.t"), Block(Rule("b.t", "ops"), until=NOON + 1))
    for text, bars in ((".a.t", True), ("a.t", False), ("10.0.0.0/8", True), ("b.t", True)):
        assert (policy.exclusion_of_rule(HostPattern.parse(text), NOON) is not None) is bars, text
    assert policy.exclusion_of_rule(HostPattern.parse("b.t"), NOON + 1) is None


def test_a_change_has_a_new_revision() -> None:
    """Whoever keeps an answer can see that it is old; a name that is none changes nothing."""
    policy = Policy()
    policy.update(host=Pace(9.0), host_max_pages=3)
    assert (policy.for_host("a.t"), policy.max_pages("a.t"), policy.revision) == (Pace(9.0), 3, 1)
    with pytest.raises(AttributeError):
        policy.update(hosts=Pace(1.0))
    assert policy.revision == 1


def test_explaining() -> None:
    """Which line of which file says what, the closest of each kind."""
    policy = barring(".a.t delay=9 user_agent=far\nw.a.t delay=3\n10.0.0.0/8 delay=1\n")
    policy.blocks.put(HostPattern.parse("w.a.t"), Block(Rule("w.a.t", "ops"), "asked"))
    said = policy.explain("w.a.t", "10.0.0.1")
    assert [(name, value, str(rule)) for name, value, rule in said] == [
        ("delay", 3.0, "w.a.t, rules.txt, line 2"),
        ("user_agent", "far", ".a.t, rules.txt, line 1"),
        ("delay", 1.0, "10.0.0.0/8, rules.txt, line 3"),
        ("blocked", "asked", "w.a.t, ops"),
    ]  # fmt: skip
