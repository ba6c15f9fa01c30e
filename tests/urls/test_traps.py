"""What is taken for a trap, and what is not."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_spider_suite.urls.traps import (
    MAX_COUNTS,
    NEW_LINK_WEIGHT,
    NEW_PAGE_WEIGHT,
    PAGES_TO_JUDGE,
    HostTrapStats,
    QueryOrders,
    QuickTest,
    Trap,
    TrapLimits,
    TrapRefusal,
    folders,
    session_of,
    sorted_names,
    sorted_query,
    space_key,
    spaces,
    split_query,
    trap_of_url,
)

LIMITS = TrapLimits(length=200, segments=10, repeats=3, calendar=10, sessions=3)
H = "http://h.example"


@pytest.mark.parametrize(
    ("path", "trap"),
    [
        ("/", None),
        ("/" + "x" * 300, Trap.LENGTH),
        ("/a/b/c/d/e/f/g/h/i/j", None),
        ("/a/b/c/d/e/f/g/h/i/j/k", Trap.SEGMENTS),
        ("/a/b/a/b/a/b/", None),
        ("/a/b/a/b/a/b/a/", Trap.REPEATS),
        ("/a/b/c/a/d/a/e/a", Trap.REPEATS),
        ("/x//////////y", None),
        ("/?u=/a/a/a/a/a/a/a/a/a", None),
        ("/events/2036/12/", None),
        ("/events/2037/01/", Trap.CALENDAR),
        ("/events/2037/1/7", Trap.CALENDAR),
        ("/events/2037/12/24/", Trap.CALENDAR),
        ("/events/2037/1/", None),
        ("/t/some-topic/2101/5", None),
        ("/t/some-topic/2101/12", None),
        ("/pull/2101/2", None),
        ("/plot?x=3&y=2100", None),
        ("/events/2037-01-31", Trap.CALENDAR),
        ("/events?date=2041-06-01&view=day", Trap.CALENDAR),
        ("/events?month=3&year=2040", Trap.CALENDAR),
        ("/events/2150/03/", Trap.CALENDAR),
        ("/events?year=1940", None),
        ("/events/2037/13/", None),
        ("/papers/1471-2105/8/185", None),
        ("/file/20461131.doc", None),
        ("/item/2040", None),
        ("/usn/USN-2139-1", None),
        ("/a/2999/05/", None),
        ("/old/1890/05/03/", None),
    ],
)
def test_what_a_url_betrays_by_itself(path: str, trap: Trap | None) -> None:
    """In 2026, with dates of ten years ahead allowed."""
    assert trap_of_url(H + path, LIMITS, 2026) is trap
    assert trap is None or not QuickTest(LIMITS, 2026).passes([H + path])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from(["a", "b", "2040", "2150", "05", "2040-05-01", "", "x" * 60]), max_size=14
    ),
    st.sampled_from(["", "?year=2050", "?q=/1/1/1/1/1", "?date=2031-05"]),
    st.sampled_from([
        LIMITS, TrapLimits(), TrapLimits(repeats=2), TrapLimits(calendar=1), TrapLimits(segments=3),
    ]),
    st.sampled_from([1, 1999, 2026, 2095]),
)
def test_the_quick_look_lets_no_trap_pass(
    segments: list[str], query: str, limits: TrapLimits, year: int
) -> None:
    """What it calls harmless, the whole look finds nothing in."""
    url = f"{H}/{'/'.join(segments)}{query}"
    if QuickTest(limits, year).passes([url]):
        assert trap_of_url(url, limits, year) is None


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from([
            f"{H}/", f"{H}/a/b/a/b/a/b/a/b", f"{H}/2040/05/", f"{H}/?year=2050", f"{H}/2",
            f"{H}/{'x' * 1024}", f"{H}/{'x/' * 25}",
        ]),
        max_size=4,
    ),
    st.sampled_from([LIMITS, TrapLimits(), TrapLimits(repeats=2), TrapLimits(length=30)]),
)  # fmt: skip
def test_all_links_of_a_page_pass_if_each_does(urls: list[str], limits: TrapLimits) -> None:
    """They are looked at together."""
    quick = QuickTest(limits, 2026)
    assert quick.passes(urls) == all(quick.passes([url]) for url in urls)


def test_without_limits_nothing_is_a_trap() -> None:
    """Each can be switched off; together they can be, too."""
    assert trap_of_url(f"{H}/a" * 500, TrapLimits(), 2026) is None
    assert not TrapLimits().any
    assert all(TrapLimits(**{name: 1}).any for name in Trap)
    assert {each.name for each in fields(TrapLimits)} == {trap.value for trap in Trap}


def test_spaces_from_the_narrowest_to_the_host() -> None:
    """Numbers and tokens are made alike; a query has spaces of its own."""
    assert list(spaces(f"{H}/cal/2031/05/7.html")) == ["/cal/0/0/0.html", "/cal/0/", "/cal/", "/"]
    assert list(spaces(f"{H}/s/x?b=1&a=2&b=3")) == ["/s/x?a&b", "/s/x?", "/s/?", "/?"]
    assert list(spaces(f"{H}/")) == ["/"]
    assert list(spaces(f"{H}/blog/7/")) == ["/blog/0/", "/blog/", "/"]
    assert list(spaces(f"{H}/about/")) == ["/about/", "/"]
    assert list(spaces(f"{H}/?p=1")) == ["/?p", "/?"]
    token = "0123456789abcdef0123"
    assert next(spaces(f"{H}/p/{token}")) == next(spaces(f"{H}/p/f{token}")) == "/p/0"
    assert list(folders("/a/b/c/d")) == ["/a/b/", "/a/"]
    assert list(folders("/a")) == []


@pytest.mark.parametrize(
    ("path", "session"),
    [
        ("/a;jsessionid=2806120F592304?x=1", ("/a?x=1", ";jsessionid", "2806120F592304")),
        ("/t?f=14&sid=f3dcb902f639861af915", ("/t?f=14", "sid", "f3dcb902f639861af915")),
        ("/t?PHPSESSID=pakdv2ab349t8thldr&b=1", ("/t?b=1", "phpsessid", "pakdv2ab349t8thldr")),
        ("/(S(lit3py55t21z5v55vlm25s55))/a", ("/a", "(s", "lit3py55t21z5v55vlm25s55")),
        ("/t?session_id=0123456789abcdef0", ("/t", "session_id", "0123456789abcdef0")),
        ("/t?newsID=2012-09-05-0009-and-more", None),
        ("/t?sid=1234", None),
        ("/t?sid=aKsf3mmmoaCg", None),
        ("/t?obsession=0123456789abcdef0", ("/t", "obsession", "0123456789abcdef0")),
        ("/wiki/Rust_(programming_language)", None),
    ],
)  # fmt: skip
def test_session_ids(path: str, session: tuple[str, str, str] | None) -> None:
    """By their names, and only where the value is a token: stories have a ``sid``, too."""
    assert session_of(H + path) == session


def test_session_ids_that_make_no_difference() -> None:
    """By what pages say with each; one that says something new opens again what was closed."""
    ground = HostTrapStats()
    assert [ground.repeated("sid", 3, vain=True) for _ in range(3)] == [False, False, True]
    assert space_key("session", "sid") in ground.closed
    assert space_key("session", "phpsessid") not in ground.closed
    assert not ground.repeated("sid", 3, vain=True)
    assert not ground.repeated("sid", 3, vain=False)
    assert space_key("session", "sid") not in ground.closed


def test_articles_named_by_a_token() -> None:
    """However many there are: each says something else."""
    ground = HostTrapStats()
    assert not any(ground.repeated("sid", 5, vain=bool(number % 5)) for number in range(500))


def test_pages_that_say_the_same() -> None:
    """The narrowest space that holds them all is closed, and nothing beside it."""
    ground = HostTrapStats()
    closed = [ground.count_page(f"{H}/cal/{year}/1", 5, same=True) for year in range(5)]
    assert closed == [None] * 4 + [TrapRefusal(Trap.SAME, "/cal/0/0")]
    assert ground.same_space(f"{H}/cal/77/12") == "/cal/0/0"
    assert ground.same_space(f"{H}/cal/77/12/3") is None
    assert ground.same_space(f"{H}/cal/77/12?print=1") is None
    assert not ground.counts["same"], "what was dealt with must not close the folder, too"


def test_pages_that_differ_in_numbers_alone() -> None:
    """Their space is known apart; those that say exactly the same are in it, too."""
    ground = HostTrapStats()
    pages = [ground.count_page(f"{H}/thing/{n}", 5, same=True, exactly=n == 3) for n in range(5)]
    assert pages == [None] * 4 + [TrapRefusal(Trap.NUMBERS, "/thing/0")]
    assert ground.same_space(f"{H}/thing/9") is None
    assert ground.same_space(f"{H}/thing/9", Trap.NUMBERS) == "/thing/0"
    for number in range(5, 10):
        found = ground.count_page(f"{H}/thing/{number}", 5, same=True, exactly=True)
    assert found == TrapRefusal(Trap.SAME, "/thing/0")


def test_a_wider_space_where_every_page_has_a_pattern_of_its_own() -> None:
    """Soft 404s: the words differ, their folder does not."""
    ground = HostTrapStats()
    words = ["ab", "cd", "ef", "gh", "ij"]
    assert [ground.count_page(f"{H}/lost/{word}", 5, same=True) for word in words][-1] == (
        Trap.SAME, "/lost/",
    )  # fmt: skip
    assert ground.same_space(f"{H}/lost/anything/at/all") is not None
    assert ground.same_space(f"{H}/found/anything") is None


def test_something_new_makes_up_for_several_that_say_the_same() -> None:
    """Every fifth page says something new: that is no trap, however long it lasts."""
    ground = HostTrapStats()
    for number in range(500):
        same = number % (NEW_PAGE_WEIGHT + 1) != 0
        assert ground.count_page(f"{H}/list/{number}", NEW_PAGE_WEIGHT + 1, same=same) is None
    assert ground.same_space(f"{H}/list/1") is None


def test_a_whole_host_takes_more() -> None:
    """Pages without a folder: four times as many are read before the host is given up."""
    ground = HostTrapStats()
    names = [chr(97 + n // 26) + chr(97 + n % 26) for n in range(20)]
    closed = [ground.count_page(f"{H}/{name}", 5, same=True) for name in names]
    assert closed == [None] * 19 + [TrapRefusal(Trap.SAME, "/")]


AB, AC, BC, ABC = ("a", "b"), ("a", "c"), ("b", "c"), ("a", "b", "c")


def test_combinations_in_vain() -> None:
    """They are closed by the pages of all names together, each set of names by its own."""
    ground = HostTrapStats()
    assert [ground.combined("/s", AB, 3, 0) for _ in range(3)] == [False, False, True]
    assert ground.combines_in_vain("/s", AB)
    assert ground.combines_in_vain("/s", ABC), "it adds a name to those"
    assert not ground.combines_in_vain("/s", AC), "of which nothing is known"
    assert not ground.combines_in_vain("/t", AB)
    for _ in range(PAGES_TO_JUDGE):
        ground.combined("/s", AC, 3, 0)
    assert ground.combines_in_vain("/s", AC)
    assert split_query(f"{H}/s?b=1&a=2") == ("/s", ["b=1", "a=2"])
    assert sorted_names(["b=1", "a=2", "b=3"]) == AB


def test_names_with_credit_stay() -> None:
    """Pages of a list beside its orders: what leads to something is not closed with the rest."""
    ground = HostTrapStats()
    for number in range(200):
        ground.combined("/list", AB, 12, 0)
        if not number % 40:
            ground.combined("/list", AC, 12, NEW_LINK_WEIGHT)
        assert not ground.combines_in_vain("/list", AC)
    assert ground.combines_in_vain("/list", AB)


def test_combinations_open_again() -> None:
    """When pages of theirs say something new, as often as others were in vain."""
    ground = HostTrapStats()
    for _ in range(50):
        ground.combined("/s", AB, 8, 0)
    ground.combined("/s", AB, 8, NEW_PAGE_WEIGHT)
    assert not ground.combines_in_vain("/s", AB), "it has credit"
    for _ in range(NEW_PAGE_WEIGHT):
        assert not ground.combines_in_vain("/s", AB)
        ground.combined("/s", AB, 8, 0)
    assert ground.combines_in_vain("/s", AB)
    for _ in range(3):
        ground.combined("/s", AC, 8, NEW_PAGE_WEIGHT)
    assert not ground.closed
    ground.combined("/s", BC, 8, 0)
    assert not ground.combines_in_vain("/s", BC)


def test_a_few_are_let_through_to_see() -> None:
    """Ever fewer: the crawl ends however many are found."""
    ground = HostTrapStats()
    let = [n for n in range(1, 1_000) if ground.sample(f"{H}/{n}", Trap.QUERY, "/s")]
    assert let == [16, 32, 64, 128, 256, 512]
    assert ground.count("sample", f"{H}/64")
    assert not ground.count("sample", f"{H}/65")


def test_an_operator_opens_all() -> None:
    """What was closed is open, and judged by new evidence; what was mined in vain is known."""
    ground = HostTrapStats()
    ground.add("missed", "", 3)
    for number in range(3):
        ground.combined("/s", AB, 3, 0)
        ground.repeated("sid", 3, vain=True)
        ground.count_page(f"{H}/cal/{number}", 3, same=True)
        ground.sample(f"{H}/x", Trap.QUERY, "/s")
    assert len(ground.closed) == 4
    ground.reopen()
    assert not ground.closed
    assert set(ground.counts) == {"missed"}


def test_many_that_lead_on_to_one_page() -> None:
    """They are a space without pages; where some are, those make up for others."""
    ground = HostTrapStats()
    gone = [ground.count_redirect(f"{H}/go?to={n}", 5, same=True) for n in range(5)]
    assert gone == [None] * 4 + [TrapRefusal(Trap.SAME, "/go?to")]
    assert ground.same_space(f"{H}/go?to=99") == "/go?to"
    for number in range(100):
        assert ground.count_redirect(f"{H}/old/{chr(97 + number % 26)}", 5, same=True) is None
        assert ground.count_page(f"{H}/old/x{number}", 5, same=False) is None


def test_permutations() -> None:
    """The first order that was queued is the one that counts, and is never refused itself."""
    orders = QueryOrders()
    assert not orders.has_other_order(f"{H}/s?b=2&a=1")
    orders.note(f"{H}/s?a=1&b=2")
    assert not orders.has_other_order(f"{H}/s?a=1&b=2")
    assert orders.has_other_order(f"{H}/s?b=2&a=1")
    orders.note(f"{H}/s?b=2&a=1")
    assert orders.has_other_order(f"{H}/s?b=2&a=1"), "the second order does not count"
    for other in ("/t?b=2&a=1", "/s?b=2&a=3", "/s?a=1", "/s"):
        orders.note(H + other)
        assert not orders.has_other_order(H + other)
    assert sorted_query(f"{H}/s?b=2&a=1") == f"{H}/s?a=1&b=2"


def test_a_crowded_folder() -> None:
    """It is told from the others once it has more than its share, and more than the least."""
    ground = HostTrapStats()
    crowded = [ground.crowded(f"{H}/big/{n}", 50, 10) for n in range(12)]
    assert crowded == [0] * 10 + [1, 1]
    assert ground.crowded(f"{H}/small/1", 50, 10) == 0
    assert ground.crowded(f"{H}/big/deep/1", 50, 10) == 1, "its second folder is not crowded yet"


def test_many_folders_do_not_hide_a_trap() -> None:
    """Their shares are large numbers, but of another kind than pages that say the same."""
    ground = HostTrapStats()
    for number in range(3_000):
        ground.crowded(f"{H}/{'abcdefghij'[number % 10]}{number % 150:c}x/y", 50, 10)
    closed = [ground.count_page(f"{H}/cal/{year}/1", 5, same=True) for year in range(5)]
    assert closed[-1] == TrapRefusal(Trap.SAME, "/cal/0/0")


def test_a_ground_is_bounded() -> None:
    """Whatever a host serves, with little more than a screenful of spaces remembered."""
    ground, draw = HostTrapStats(), random.Random(1)
    tracemalloc.start()
    for number in range(4_000):
        words = ["".join(draw.choices("abcdefgh", k=6)) for _ in range(3)]
        url = f"{H}/{'/'.join(words)}?sid={number:020}"
        ground.sample(url, Trap.QUERY, words[0])
        worth = draw.choice([0, 0, 0, NEW_PAGE_WEIGHT])
        ground.combined(f"/{words[0]}", tuple(sorted(words)), 3, worth)
        ground.crowded(url, 50, 5)
        ground.count_page(url, 3, same=draw.random() < 0.9)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert max(map(len, ground.counts.values())) <= MAX_COUNTS
    assert len(ground.closed) <= MAX_COUNTS
    assert size < 200_000
