"""Twins: what evidence makes them, what undoes them, and what is remembered."""

from __future__ import annotations

import pytest

from scrapy_spider_suite.store.interface import MemoryKV
from scrapy_spider_suite.urls.normalizer import Normalizer, RewriterTable, SpellingOptions
from scrapy_spider_suite.urls.twins import TwinEvidence, Twins, pair_of_forms

H, S, WH, WS = "http://a.test", "https://a.test", "http://www.a.test", "https://www.a.test"


@pytest.fixture
def twins() -> Twins:
    """Nothing was seen yet."""
    return Twins(MemoryKV())


def redirects(twins: Twins, form: str, to: str, number: int, *, permanent: bool = True) -> None:
    """*number* pages of *form* redirect to the same path of *to*."""
    for n in range(number):
        twins.redirected(f"{form}/r{n}?q", f"{to}/r{n}?q", permanent=permanent)


def pages(twins: Twins, form: str, first: int, last: int, text: str = "page") -> None:
    """*form* answers some pages itself."""
    for n in range(first, last):
        twins.answered(f"{form}/{n}", f"{text} {n}".encode())


def taken(twins: Twins, form: str) -> str:
    """What links to *form* are taken for."""
    return twins.preferred(f"{form}/x?y").removesuffix("/x?y")


def test_redirects(twins: Twins) -> None:
    """Two permanent ones to the same path, or four others; a link keeps path and query."""
    redirects(twins, H, S, 1)
    assert (taken(twins, H), len(twins)) == (H, 0)
    redirects(twins, H, S, 1)
    assert (taken(twins, H), taken(twins, S), len(twins)) == (S, S, 1)
    redirects(twins, WH, H, 3, permanent=False)
    assert taken(twins, WH) == WH
    redirects(twins, WH, H, 1, permanent=False)
    assert taken(twins, WH) == S  # by way of http without www.
    assert taken(twins, "http://b.test") == "http://b.test"


@pytest.mark.parametrize(
    ("url", "target"),
    [
        (f"{H}/a", f"{S}/b"),
        (f"{H}/a", f"{S}/a?b"),
        (f"{H}/a", "https://b.test/a"),
        (f"{H}/a", f"{H}/a"),
        ("http://a.test:8080/a", "https://a.test/a"),
        (f"{H}/a", "https://a.test:8443/a"),
        ("http://[::1]/a", "https://[::1]/a"),
    ],
)
def test_redirects_that_say_nothing(twins: Twins, url: str, target: str) -> None:
    """To another path, another site, or a port of its own."""
    for _ in range(9):
        twins.redirected(url, target, permanent=True)
    assert len(twins) == 0


def test_pages_of_its_own_speak_against_redirects(twins: Twins) -> None:
    """A site that sends only its log-in to https is no twin; one that moved becomes one."""
    redirects(twins, H, S, 3)
    assert taken(twins, H) == S
    pages(twins, H, 0, 1)
    assert taken(twins, H) == H
    redirects(twins, H, S, 1)
    assert taken(twins, H) == S
    pages(twins, H, 1, 5)
    assert taken(twins, H) == H


def test_a_redirect_back_undoes_it(twins: Twins) -> None:
    """To and fro: each form is itself."""
    redirects(twins, H, S, 2)
    redirects(twins, S, H, 2)
    assert (taken(twins, H), taken(twins, S)) == (H, S)


def test_round_in_a_circle() -> None:
    """Three forms that each lead to the next have no best one."""
    evidence = TwinEvidence()
    for form, other in ((0, 1), (1, 3), (3, 0)):
        evidence.add(form * 4 + other, 9)
    assert [evidence.preferred(form) for form in range(4)] == [0, 1, 2, 3]


def test_equal_pages(twins: Twins) -> None:
    """Three that are the same byte for byte, in whatever order they came; https is better."""
    pages(twins, H, 0, 2)
    pages(twins, S, 0, 4)
    assert taken(twins, H) == H
    pages(twins, H, 2, 3)
    assert (taken(twins, H), taken(twins, S)) == (S, S)
    pages(twins, WS, 0, 3)
    assert (taken(twins, WS), taken(twins, S)) == (S, S)
    assert "3 pages the same at https://a.test" in twins.why(f"{H}/x")


def test_pages_that_differ(twins: Twins) -> None:
    """One in four is too many; a page that is fetched again, or empty, says nothing."""
    pages(twins, S, 0, 9)
    pages(twins, H, 0, 3)
    assert taken(twins, H) == S
    twins.answered(f"{H}/3", b"another")
    twins.answered(f"{H}/4", b"another")
    assert taken(twins, H) == H
    before = twins.why(f"{H}/")
    twins.answered(f"{H}/4", b"again")
    twins.answered(f"{H}/5", b"")
    twins.answered("http://a.test:81/6", b"page 6")
    assert twins.why(f"{H}/") == before


def test_a_front_page_for_all_is_not_enough(twins: Twins) -> None:
    """The same page at one path, over and over, is one page."""
    for _ in range(9):
        twins.answered(f"{H}/", b"It works!")
        twins.answered(f"{S}/", b"It works!")
    assert len(twins) == 0


def test_evidence_outlives_the_crawl() -> None:
    """What was seen is there again; rows of another size are taken for none."""
    kv = MemoryKV()
    first = Twins(kv)
    redirects(first, H, S, 5)
    pages(first, WS, 0, 2)
    kv.put(b"b.test", b"short")
    again = Twins(kv)
    assert (taken(again, H), len(again)) == (S, 1)
    assert again.why(f"{H}/") == first.why(f"{H}/")
    assert again.why(f"{H}/").startswith("http://a.test is taken for https://a.test; redirects to")
    assert again.why("http://c.test/") == ""
    assert again.why("http://b.test/") == "http://b.test is no twin; 0 pages of its own"


def test_memory_and_disk_are_bounded() -> None:
    """The sites met longest ago are forgotten, in both."""
    kv = MemoryKV()
    twins = Twins(kv, sites=3)
    for n in range(5):
        redirects(twins, f"http://{n}.test", f"https://{n}.test", 2)
        redirects(twins, H, S, 2)
    assert sorted(key for key, _ in kv.items()) == [b"3.test", b"4.test", b"a.test"]
    assert len(twins) == 3
    assert taken(twins, "http://0.test") == "http://0.test"


def test_counts_stop() -> None:
    """A cell is a byte."""
    evidence = TwinEvidence()
    for _ in range(300):
        evidence.add(1, 2)
        evidence.add(5, -1)
    assert (evidence.moved(0, 1), evidence.own(1)) == (255, 0)
    cells = {pair_of_forms(a, b) for a in range(4) for b in range(4) if a != b}
    assert cells == set(range(16, 22))


def test_a_rule_and_a_twin() -> None:
    """A site that insists on www. against a rule: the evidence has the last word."""
    twins = Twins(MemoryKV())
    options = SpellingOptions.from_words(["www", "index"])
    normalizer = Normalizer(RewriterTable(options), twins=twins)
    assert normalizer.is_plain is False
    assert normalizer(f"{WS}/index.html") == f"{S}/"
    redirects(twins, S, WS, 2)
    for form in (WS, S):
        assert normalizer(f"{form}/index.html") == f"{WS}/"
        assert normalizer(f"{WS}/") == f"{WS}/"
    assert Normalizer(twins=Twins(MemoryKV())).is_plain
