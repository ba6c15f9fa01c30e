"""The general settings and the exceptions from them, put together."""

from __future__ import annotations

from scrapy_spider_suite.frontier.overrides import Overrides
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.frontier.politeness import Pace

OVERRIDES = Overrides.parse(
    [
        "own.example.com delay=0 concurrency=8 burst=20 max_pages=0",
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
    assert policy().of_host("example.net") == Pace(4.0, 1, 2)


def test_an_override_changes_what_it_names() -> None:
    """The rest is the general pace."""
    assert policy().of_host("own.example.com") == Pace(0.0, 8, 20)
    assert policy().of_host("www.example.com") == Pace(9.0, 1, 2)


def test_an_override_comes_on_top_of_a_projects_slot() -> None:
    """DOWNLOAD_SLOTS is the project's pace, the overrides file the operator's."""
    assert policy().of_host("shop.example.com") == Pace(9.0, 3, 1)
    assert policy().of_host("slot") == Pace(1.0, 5, 1)


def test_addresses() -> None:
    """Delay and concurrency, each for itself; bursts are the hosts' business."""
    assert policy().of_address("203.0.113.1") == Pace(0.5, 1)
    assert policy().of_address("192.0.2.1") == Pace(0.0, 4)
    assert policy().of_address("198.51.100.1") == Pace(0.5, 2)


def test_an_address_with_a_delay_has_one_visit_at_a_time() -> None:
    """Where addresses set no limit, a rule for some of them does."""
    free = Policy(host=Pace(4.0), address=Pace(0.0, 0), overrides=OVERRIDES)
    assert free.of_address("203.0.113.1") == Pace(0.0, 0)
    assert free.of_address("192.0.2.1") == Pace(0.0, 4)
    slow = Overrides.parse(["203.0.113.0/24 delay=2"], "rules.txt")
    assert Policy(address=Pace(0.0, 0), overrides=slow).of_address("203.0.113.1") == Pace(2.0, 1)


def test_page_budgets() -> None:
    """A rule may lift the limit (0), set another, or say nothing of it."""
    assert policy().max_pages("example.net") == 100
    assert policy().max_pages("own.example.com") == 0
    assert policy().max_pages("www.example.com") == 100
    assert policy().max_pages("big.example.net") == 7


def test_the_defaults_are_polite() -> None:
    """Four seconds between visits to a host, half a second to an address, one at a time."""
    assert Policy().of_host("example.net") == Pace(4.0, 1, 1)
    assert Policy().of_address("192.0.2.1") == Pace(0.5, 1, 1)
    assert Policy().max_pages("example.net") == 0


def test_policies_share_nothing() -> None:
    """Each has its own exceptions."""
    assert Policy().overrides is not Policy().overrides
    assert Policy().slots is not Policy().slots
