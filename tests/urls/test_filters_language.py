"""The language of filters: every expression means what a naive reading of it says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_spider_suite.errors import FilterError
from scrapy_spider_suite.urls.filters import Fact, LinkFacts, Stage
from scrapy_spider_suite.urls.filters.language import (
    DEEPEST,
    MAX_LENGTH,
    And,
    Atom,
    Constant,
    Filter,
    Node,
    Not,
    Or,
    parse,
)

URL = "https://www.example.it/a/b.html"


def read(text: str, stage: Stage = Stage.SCHEDULE) -> Filter:
    """*text* as a filter."""
    return Filter(text, stage)


def wants(text: str, url: str = URL) -> bool:
    """What the filter *text* says of *url*."""
    return read(text).wants(url, LinkFacts())


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("TRUE", Constant(True)),
        ("false", Constant(False)),
        ("HostEquals( a.b )", Atom("HostEquals", "a.b")),
        ("SameHost()", Atom("SameHost", "")),
        ("A(1) or B(2) and not C(3)",
         Or((Atom("A", "1"), And((Atom("B", "2"), Not(Atom("C", "3"))))))),
        ("(A(1) | B(2)) & !C(3)",
         And((Or((Atom("A", "1"), Atom("B", "2"))), Not(Atom("C", "3"))))),
        ("A(1) \u2227 B(2) \u2228 ~ C(3)",
         Or((And((Atom("A", "1"), Atom("B", "2"))), Not(Atom("C", "3"))))),
        ("A(1) AND B(2) And C(3)", And((Atom("A", "1"), Atom("B", "2"), Atom("C", "3")))),
        ("not not A(1)", Not(Not(Atom("A", "1")))),
        ("((A(1)))", Atom("A", "1")),
        ("# mine\nA(1) # first\n  or B(2)", Or((Atom("A", "1"), Atom("B", "2")))),
        ('A("x(y)#z\\"")', Atom("A", '"x(y)#z\\""')),
        ("URLEquals(http://a.b/#c)", Atom("URLEquals", "http://a.b/#c")),
        ("it.unimi.di.law.warc.filters.HostEquals(a.b)", Atom("HostEquals", "a.b")),
        ("notes(1) or order(2)", Or((Atom("notes", "1"), Atom("order", "2")))),
    ],
)  # fmt: skip
def test_the_tree(text: str, tree: Node) -> None:
    """BUbiNG's grammar: signs and words, what binds closer; comments and quotes are ours."""
    assert parse(text) == tree


@pytest.mark.parametrize(
    ("text", "line", "column", "why"),
    [
        ("HostEquals(a.b) or HostEndWith(.it)", 1, 20, "no atom is called HostEndWith; did you mean"
         " HostEndsWith?"),
        ("TRUE or", 1, 8, "expected an atom such as"),
        ("", 1, 1, "expected an atom such as"),
        ("# nothing\n", 1, 10, "not the end"),
        ("TRUE FALSE", 1, 6, "expected 'and', 'or' or the end, not 'FALSE'"),
        ("(TRUE", 1, 6, "expected 'and', 'or' or ')', not the end"),
        ("TRUE)", 1, 5, "or the end, not ')'"),
        ("TRUE and\n\n  % FALSE", 3, 3, "not '%'"),
        ("HostEquals(a.b", 1, 11, "this parenthesis is not closed"),
        ("URLMatchesRegex(.*(a|b))", 1, 16, "they need double quotes"),
        ("HostEquals", 1, 11, "expected an argument in parentheses, not the end"),
        ("HostEquals a.b", 1, 12, "expected an argument in parentheses"),
        ("TRUE or\nDepthLessThan(x)", 2, 14, "DepthLessThan expects a whole number >= 1"),
        ("StatusCategory(2)", 1, 1, "StatusCategory asks for a response, which is not known yet; "
         "it can be used in: parse, follow, store"),
        ("(" * 2 * DEEPEST + "TRUE", 1, 2 * DEEPEST + 5, "')', not the end"),
        ("!" * DEEPEST + "TRUE", 1, 1, "operators within one another"),
        ("x" * (MAX_LENGTH + 1), 1, 1, "longer than 100,000 characters"),
    ],
)  # fmt: skip
def test_errors_point_at_the_character(text: str, line: int, column: int, why: str) -> None:
    """In one line, with the place marked."""
    with pytest.raises(FilterError) as raised:
        read(text)
    error = raised.value
    assert why in str(error)
    assert str(error).startswith(f"line {line}, column {column}: ")
    assert "\n" not in str(error)
    rest = text.split("\n")[line - 1][column - 1 : column + 4]
    assert f">>>{rest}" in str(error)


def test_the_error_of_a_long_line_shows_only_what_is_near() -> None:
    """A file of ten thousand hosts is not printed."""
    with pytest.raises(FilterError, match=r"column 50006: no atom is called Wrong") as raised:
        read("TRUE or " * 6_250 + "     Wrong()" + " or TRUE" * 1_000)
    assert len(str(raised.value)) < 250


def test_parentheses_of_any_depth_do_no_harm() -> None:
    """They leave nothing in the tree."""
    assert parse("(" * 5_000 + "TRUE" + ")" * 5_000) == Constant(True)
    with pytest.raises(FilterError, match="operators within one another"):
        parse("!" * 50_000 + "TRUE")


# Against a naive evaluator: the letters of the host are the atoms that hold


def _tree() -> st.SearchStrategy[Node]:
    words = st.sampled_from(["-a", "-b", '"-c"', "-a, -d"])
    leaves = st.one_of(
        st.builds(Constant, st.booleans()),
        st.builds(Atom, st.just("URLContainsOneOf"), words),
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(Not, inner),
            st.builds(And, st.lists(inner, min_size=2, max_size=4).map(tuple)),
            st.builds(Or, st.lists(inner, min_size=2, max_size=4).map(tuple)),
        ),
        max_leaves=12,
    )


def naive(node: Node, holds: Callable[[Atom], bool]) -> bool:
    """The plain meaning of a tree."""
    if isinstance(node, Constant):
        return node.value
    if isinstance(node, Atom):
        return holds(node)
    if isinstance(node, Not):
        return not naive(node.inner, holds)
    answers = [naive(part, holds) for part in node.parts]
    return all(answers) if isinstance(node, And) else any(answers)


@settings(max_examples=60)
@given(_tree(), st.sets(st.sampled_from("abcd")))
def test_it_means_what_it_says(tree: Node, letters: set[str]) -> None:
    """Compiled, explained and written out again, an expression says the same as its tree."""
    url = "http://x/" + "".join(f"-{letter}" for letter in sorted(letters))

    def holds(atom: Atom) -> bool:
        words = atom.argument.replace('"', "").split(",")
        return any(word.strip() in url for word in words)

    expected = naive(tree, holds)
    compiled = read(str(tree))
    assert compiled.wants(url, LinkFacts()) is expected
    verdict, said = compiled.verdict(url, LinkFacts())
    assert verdict is expected
    # What it says decided does decide: whatever the others say, nothing changes.
    decided = {each.atom.argument: each.holds for each in said}
    assert all(each.holds is holds(each.atom) for each in said)
    for other in (True, False):
        assert naive(tree, lambda atom: decided.get(atom.argument, other)) is expected  # noqa: B023
    assert str(read(str(compiled))) == str(compiled)


def test_a_tree_comes_back_from_its_text() -> None:
    """With parentheses where they are needed, and nowhere else."""
    text = "not (A(1) or B(2)) and (C(3) or TRUE) or D() and not not E(5)"
    assert str(parse(text)) == text


@pytest.mark.parametrize(
    ("text", "known", "verdict", "said"),
    [
        ("SameHost()", (), None, []),
        ("SameHost() and HostEquals(a.b)", (), False, ["HostEquals(a.b) is false"]),
        ("SameHost() or HostEndsWith(.it)", (), True, ["HostEndsWith(.it) is true"]),
        ("SameHost() or HostEquals(a.b)", (), None, []),
        ("not SameHost()", (), None, []),
        ("DepthLessThan(2) and SameHost()", (Fact.DEPTH,), None, []),
        ("DepthLessThan(1) and SameHost()", (Fact.DEPTH,), True,
         ["DepthLessThan(1) is true", "SameHost() is true"]),
    ],
)  # fmt: skip
def test_what_is_not_known_may_not_matter(
    text: str, known: tuple[Fact, ...], verdict: bool | None, said: list[str]
) -> None:
    """Kleene's three values: an answer is given where nothing unknown can change it."""
    if verdict is True and len(said) == 2:
        known = (Fact.DEPTH, Fact.VIA)
    found, why = read(text).verdict(URL, LinkFacts(), known)
    assert found is verdict
    assert [str(each) for each in why] == said


def test_asks() -> None:
    """Who must be told what, before it is asked."""
    assert read("HostEquals(a.b) or not HopsBeyondScopeLessThan(2)").needs(Fact.BEYOND)
    assert not read("HostEquals(a.b) or not SameHost()").needs(Fact.BEYOND)


def test_the_short_circuit() -> None:
    """The parts are asked from left to right, and no more of them than are needed."""
    assert wants("FALSE and HostEquals(a.b)") is False
    assert wants("TRUE or TRUE or TRUE or TRUE") is True
    assert wants("TRUE and TRUE and TRUE and FALSE") is False
    assert wants("FALSE or FALSE or FALSE or FALSE") is False
    assert wants("FALSE or FALSE or TRUE") is True
    assert wants("TRUE and TRUE and FALSE") is False
