"""Options of the normal form: what each rewrites, what it leaves alone, and where it holds."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_spider_suite.urls.hosts import Scope
from scrapy_spider_suite.urls.normalize import normalize
from scrapy_spider_suite.urls.normalizer import (
    OPTION_WORDS,
    Normalizer,
    Rewriter,
    RewriterTable,
    SpellingOptions,
    SpellingRules,
    parameter_names,
)

DATA = Path(__file__).parent.parent / "data" / "urls"
REAL = (DATA / "real_urls.txt").read_text(encoding="utf-8").splitlines()
ALL = SpellingOptions.from_words(OPTION_WORDS, ["ref", "x_*"])
RULES = (
    "www.a.test  www=yes query-order=yes",
    ".a.test     index=yes keep=b,c_*",
    ".www.b.test sessions=yes drop=q",
    "b.test      www=yes tracking=yes",
)

# URLs in which what an option rewrites is likely.
WORDED = """
    http:// https:// www. a.test b.test co.uk / ? & = ; # . .. index.html Default.ASPX (S(
    abcdefghij0123456789abcd )) jsessionid sid PHPSESSID utm_source gclid ref x_y b c_d %41 %2e
"""
URLISH = st.lists(st.sampled_from(WORDED.split()), max_size=14).map(
    lambda parts: "http://www.a.test/" + "".join(parts)
)
HOSTED = st.lists(st.sampled_from(WORDED.split()), max_size=10).map("".join)


@pytest.mark.parametrize(
    ("word", "url", "rewritten"),
    [
        ("tracking", "?utm_source=a&b=1&UTM_medium=c", "?b=1"),
        ("tracking", "?gclid=1", ""),
        ("tracking", "?a&&gclid=1", "?a"),
        ("tracking", "?a&&b", "?a&&b"),
        ("tracking", "?autm_source=1&gclidx=2&ref=3", None),
        ("tracking", "?a=utm_source&b=%26utm_x%3D1", None),
        ("sessions", "?PHPSESSID=1&a=2&ASPSESSIONIDAB=3", "?a=2"),
        ("sessions", "?sid=7", None),
        ("sessions", "?sid=0123456789abcdef&b", "?b"),
        ("sessions", "?sid=no-digits-in-this-one", None),
        ("sessions", "x;jsessionid=1A?b", "x?b"),
        ("sessions", "x;JSESSIONID=1A/y", "x/y"),
        ("sessions", "x;v=1;jsessionid=1A", "x;v=1"),
        ("sessions", "x;sid=12;y", None),
        ("sessions", "..;jsessionid=1/y", "y"),
        ("sessions", "y/..;jsessionid=1", ""),
        ("sessions", "(S(abcdefghij0123456789abcd))/y", "y"),
        ("sessions", "(S(short))/y", None),
        ("sessions", "?a=;jsessionid=1", None),
        ("query-order", "?b=2&a=3&b=1", "?a=3&b=2&b=1"),
        ("query-order", "?b&&a", "?a&b"),
        ("query-order", "?a&b=1", None),
        ("index", "x/index.html", "x/"),
        ("index", "DEFAULT.aspx", ""),
        ("index", "index.php?a", None),
        ("index", "index.html/", None),
        ("index", "reindex.html", None),
        ("index", "index", None),
    ],
)
def test_each_option(word: str, url: str, rewritten: str | None) -> None:
    """What it rewrites (None: nothing), and that it is what the others leave alone."""
    url = normalize("http://a.test/") + url  # type: ignore[operator]
    expected = url if rewritten is None else f"http://a.test/{rewritten}"
    assert Rewriter(SpellingOptions.from_words([word])).rewrite(url) == expected
    assert Rewriter(SpellingOptions()).rewrite(url) == url


@pytest.mark.parametrize(
    ("host", "bare"),
    [
        ("www.a.test", "a.test"),
        ("www.www.a.test", "a.test"),
        ("www.a.co.uk:81", "a.co.uk:81"),
        ("www.co.uk", "www.co.uk"),
        ("www.test", "www.test"),
        ("wwww.a.test", "wwww.a.test"),
        ("a.www.test", "a.www.test"),
        ("[::1]", "[::1]"),
    ],
)
def test_www(host: str, bare: str) -> None:
    """It goes where what remains is a name that somebody has."""
    rewriter = Rewriter(SpellingOptions.from_words(["www"]))
    assert rewriter.rewrite(f"https://{host}/www.x") == f"https://{bare}/www.x"


def test_names_of_parameters() -> None:
    """As they stand in normal URLs, whatever their case; a star stands for any ending."""
    drop = SpellingOptions.from_words((), ["Ref", "a[b]", "é", "src_*"])
    url = normalize("http://a.test/?REF=1&a[b]=2&%C3%A9=3&SRC_x&ref2&c")
    assert url is not None
    assert Rewriter(drop).rewrite(url) == "http://a.test/?ref2&c"
    keep = SpellingOptions(keep=("b", "c_*"))
    assert Rewriter(keep).rewrite("http://a.test/?a&b=1&C_d&c&b=2") == "http://a.test/?b=1&C_d&b=2"


@pytest.mark.parametrize("name", ["", "*", "a&b", "a=b", "a b", "a*b", "#", "\n"])
def test_what_is_no_name(name: str) -> None:
    """It could never be found in a URL."""
    with pytest.raises(ValueError, match="is no name of a parameter"):
        list(parameter_names([name]))


def test_the_closest_rule_decides_each_field() -> None:
    """A host's own before its domain's, a longer domain before a shorter one, then the general."""
    rules = SpellingRules(
        [
            "# by hand", ".a.test tracking=no drop=q  # all of it", ".b.a.test index=yes",
            "c.b.a.test tracking=yes keep=x", "",
        ]
    )  # fmt: skip
    general = SpellingOptions.from_words(["tracking", "www"], ["ref"])
    assert len(rules) == 3
    assert rules.for_host("d.test", general) == general
    of_a = SpellingOptions(www=True, drop=("q",))
    assert rules.for_host("a.test", general) == of_a
    expected = SpellingOptions(index=True, www=True, drop=("q",))
    assert rules.for_host("x.b.a.test", general) == expected
    assert rules.for_host("c.b.a.test", general) == SpellingOptions(
        tracking=True, index=True, www=True, drop=("q",), keep=("x",)
    )


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["a.test"], "rule 1, 'a.test': nothing to change"),
        (["", "a.test tracking"], "rule 2.*'tracking': expected one of tracking, sessions"),
        (["a.test tracking=on"], "expected yes or no"),
        (["a.test index=yes index=no"], "index stands twice in the rule"),
        (["a.test drop=a=b"], "is no name of a parameter"),
        (["10.0.0.0/8 index=yes"], "is no host or .domain"),
        (["http://a.test/x index=yes"], "is no host or .domain"),
        (["a.test index=yes", "A.test. index=no"], "a.test has a rule already"),
        (["a b"], "expected one of"),
    ],
)
def test_rules_that_are_none(lines: list[str], said: str) -> None:
    """The error names the line, and what is allowed."""
    with pytest.raises(ValueError, match=said):
        SpellingRules(lines)


def test_a_shorter_host_has_its_own_rules() -> None:
    """Without ``www.`` another rule may hold."""
    rules = RewriterTable(SpellingOptions(), SpellingRules(RULES))
    assert rules.rewrite("http://www.a.test/index.html?b&a") == "http://a.test/index.html?b"
    assert rules.rewrite("http://b.test/?utm_a") == "http://b.test/"
    assert not rules.is_plain
    assert RewriterTable().is_plain


def _normalizers() -> list[Normalizer]:
    single = [SpellingOptions.from_words([word]) for word in OPTION_WORDS]
    general = [SpellingOptions(), ALL, *single]
    tables = [*map(RewriterTable, general), RewriterTable(ALL, SpellingRules(RULES))]
    return [*map(Normalizer, tables)]


def test_real_urls() -> None:
    """Each stays a normal URL, and is left as it is the second time."""
    changed = 0
    for normalizer in _normalizers():
        for url in REAL[::4]:
            normal = normalizer(url)
            assert normal is not None
            assert normalizer(normal) == normal == normalize(normal)
            changed += normal != normalize(url)
    assert changed > 100


@settings(deadline=None, max_examples=60)
@given(URLISH | HOSTED)
def test_idempotent(url: str) -> None:
    """Any URL, any options: the normal form is its own, and a normal URL."""
    for normalizer in _normalizers():
        normal = normalizer(url)
        if normal is not None:
            assert normalizer(normal) == normal == normalize(normal)


def test_links_in_bulk() -> None:
    """Each once, in their order; with nothing to do the very list that was given."""
    urls = ["http://a.test/?utm_a=1", "http://a.test/b", "http://a.test/"]
    normalizer = Normalizer(RewriterTable(ALL))
    assert normalizer.links(urls) == ["http://a.test/", "http://a.test/b"]
    assert normalizer.changed == 1
    assert Normalizer().links(urls) is urls
    assert Normalizer(RewriterTable()).is_plain


def test_a_crawl_of_one_host_stays_there() -> None:
    """What is within the scope gets no host beyond it; the rest of the options holds."""
    normalizer = Normalizer(RewriterTable(ALL))
    normalizer.scope = Scope(["www.a.test", "b.test"])
    for url, normal in (
        ("http://www.a.test/x?b&a&utm_x", "http://www.a.test/x?a&b"),
        ("http://www.a.test/index.html", "http://www.a.test/"),
        ("http://www.b.test/", "http://b.test/"),
        ("http://www.c.test/?ref=1", "http://c.test/"),
    ):
        found = normalizer(url)
        assert found is not None
        assert normalizer(found) == found
        assert found == normal


@pytest.mark.parametrize(
    ("url", "target", "insisted"),
    [
        ("http://a.test/", "http://www.a.test/", True),
        ("http://a.test/x", "http://a.test/x?utm_a=1", True),
        ("http://a.test/x", "http://a.test/x", False),
        ("http://a.test/x", "http://a.test/y?utm_a=1", False),
    ],
)
def test_a_server_that_insists(url: str, target: str, insisted: bool) -> None:
    """A redirect to another spelling of the same, which an option would undo."""
    assert Normalizer(RewriterTable(ALL)).is_own_spelling(url, target) is insisted
    assert not Normalizer().is_own_spelling(url, target)


def test_rewriting_is_bounded() -> None:
    """Half a megabyte of what an option looks for takes linear time.

    The limit is far above what is measured (0.1 s), and far below what quadratic time takes.
    """
    rewriter, began = Rewriter(ALL), time.process_time()
    for part in (";jsessionid=1", "(S(", "&utm_a", "/(S(abcdefghij0123456789abcd))", ";sid=1a"):
        url = "http://a.test/?" + part * 20_000
        rewriter.rewrite(url)
        rewriter.rewrite(url.replace("?", "", 1))
    assert time.process_time() - began < 4
