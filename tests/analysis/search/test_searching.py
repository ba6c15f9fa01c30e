"""What a search gives: words of every language, filters, the newest version, the page itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.packs import NOW, fetch
from support.text_index import followed, page, write

from scrapy_spider_suite.analysis.search import open_index
from scrapy_spider_suite.analysis.search.index_follower import IndexFollower
from scrapy_spider_suite.analysis.search.index_place import IndexPlace
from scrapy_spider_suite.errors import PackError, QueryError, SearchError
from scrapy_spider_suite.packs.reader import Selection

GERMAN = ("Die Größe der Städte und der Länder ist nicht immer dieselbe, wie man weiß, und das "
          "Wetter ist auch nicht überall gleich, sondern ändert sich mit dem Ort.")  # fmt: skip
ENGLISH = ("The size of towns and of countries is not always the same, as everybody knows, and "
           "the weather is not the same everywhere, but changes with the place.")  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Seven pages."""
    write(
        tmp_path,
        page(1, ENGLISH, title="On sizes"),
        page(2, GERMAN, 100, title="Von der Größe", host="b.a.test"),
        page(3, "東京都は日本の首都であり、人口が最も多い都市です。", title="東京"),
        page(4, "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย", host="C.test"),
        page(5, f"{'hay ' * 9000} needle \x1b[31m in the {'hay ' * 9000}", host="xa.test"),
        page(6, "size in plain", kind="text/plain", status=203),
        fetch(
            7,
            b'<?xml version="1.0"?>\n<!DOCTYPE html><html><title>X</title><p>xhtml</p></html>',
            url="http://x.test/7",
        ),
    )
    followed(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("size", {1, 6}),
        ("SIZE towns", {1}),
        ("sizes", {1}),
        ("title:sizes", {1}),
        ("text:sizes", set()),
        ("size OR größe", {1, 2, 6}),
        ("grosse", {2}),
        ("stadte", {2}),
        ("size -towns", {6}),
        ('"size of towns"', {1}),
        ('"towns of size"', set()),
        ("首都", {3}),
        ("都首", set()),
        ("東京", {3}),
        ("เมืองหลวง", {4}),
        ("needle", {5}),
        ("url:b", {2}),
        ("host:a.test", {1, 3, 6}),
        ("host:c.test", {4}),
        ("language:de", {2}),
        ("status:203", {6}),
        ("xhtml", {7}),
        ("* -size", {2, 3, 4, 5, 7}),
        ("nowhere", set()),
    ],
)
def test_queries(folder: Path, query: str, expected: set[int]) -> None:
    """Words, phrases, fields, scripts without spaces."""
    found = open_index(folder).search(query)
    assert {int(hit.url.rpartition("/")[2]) for hit in found} == expected
    assert found.total == len(expected)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (Selection(hosts=("a.test",)), {1, 3, 6}),
        (Selection(hosts=("*.a.test",)), {1, 2, 3, 6}),
        (Selection(hosts=("b.a.test", "c.test")), {2, 4}),
        (Selection(statuses=("2xx",)), {1, 2, 3, 4, 5, 6, 7}),
        (Selection(statuses=("203",)), {6}),
        (Selection(mimes=("text/plain",)), {6}),
        (Selection(mimes=("text/*",)), {1, 2, 3, 4, 5, 6, 7}),
        (Selection(mimes=("text/p.*",)), set()),
        (Selection(first="20261118110800"), {2}),
        (Selection(last="20261118110800"), {1, 3, 4, 5, 6, 7}),
    ],
)
def test_filters(folder: Path, choice: Selection, expected: set[int]) -> None:
    """They leave what they say, and have no say in the score."""
    index = open_index(folder)
    found = index.search("*", selection=choice)
    assert {int(hit.url.rpartition("/")[2]) for hit in found} == expected
    scores = {hit.url: hit.score for hit in index.search("size OR needle")}
    for hit in index.search("size OR needle", selection=choice):
        assert scores[hit.url] == pytest.approx(hit.score)


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("", "searched for"),
        ("  ", "searched for"),
        ('"open', "not closed"),
        ("(open", "not closed"),
        ("a AND", "query language"),
        ("-word", "not wanted"),
        ("http://a.test/", "quotes"),
        ("status:many", "many"),
    ],
)
def test_what_is_no_query(folder: Path, query: str, why: str) -> None:
    """In one line, with what to do."""
    with pytest.raises(QueryError, match=why):
        open_index(folder).search(query)


def test_a_hit(folder: Path) -> None:
    """Has all there is to know, and leads to its page."""
    index = open_index(folder)
    [hit] = index.search("größe")
    assert (hit.title, hit.language, hit.status) == ("Von der Größe", "de", 200)
    assert hit.mime == "text/html"
    assert f"{hit.time:%Y-%m-%d %H:%M:%S}" == "2026-11-18 11:08:20"
    assert hit.snippet.marked("[", "]").startswith("Die [Größe] der Städte")
    found = hit.page()
    assert found is not None
    assert found.body.endswith(b"</p></body>")
    assert [link.url for link in found.links] == ["http://www.example.com/3", "http://a.test/"]
    assert index.search("京都")[0].snippet.marks[0] == (1, 3)
    far = index.search("needle")[0].snippet
    assert far.marked("[", "]").count("[needle]") == 1
    assert "\x1b" not in far.text
    assert len(far.text) <= 200
    assert index.search("size", limit=1) == index.search("size")[:1]


def test_several_folders(tmp_path: Path) -> None:
    """Those of several agents: of a URL the newest version, wherever it is."""
    folders = [tmp_path / "one", tmp_path / "two"]
    for place, folder in enumerate(folders):
        folder.mkdir()
        write(folder, page(1, f"apple birch{place}", 10.0 * place), page(2 + place, "apple"))
        followed(folder)
    found = open_index(*folders).search("apple")
    assert {hit.url for hit in found} == {f"http://a.test/{number}" for number in (1, 2, 3)}
    [first] = [hit for hit in found if hit.url.endswith("/1")]
    assert "birch1" in first.snippet.text
    newest = first.page()
    assert newest is not None
    assert b"birch1" in newest.body


def test_while_it_is_written(tmp_path: Path) -> None:
    """An index that is open shows what came since, and survives that it is made anew."""
    write(tmp_path, page(1, "apple"))
    followed(tmp_path)
    index = open_index(tmp_path)
    assert len(index.search("apple")) == 1
    write(tmp_path, page(2, "apple"), time=NOW + 1)
    follower = IndexFollower(tmp_path)
    follower.step()
    assert len(index.search("apple")) == 2
    follower.rebuild(lambda progress: None)
    write(tmp_path, page(3, "apple"), time=NOW + 2)
    follower.step()
    assert len(index.search("apple")) == 3
    IndexPlace(tmp_path).clear()
    with pytest.raises(SearchError, match="no index"):
        index.search("apple")
    with pytest.raises(PackError, match="not a folder"):
        open_index(tmp_path / "none")
