"""`redact` reaches the index: not a byte is left in its files, all else is found as before."""

from __future__ import annotations

import builtins
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.packs import NOW, fetch, hand_in, plan
from support.text_index import contents, expected, followed, hits, page, write

from scrapy_spider_suite.analysis import search
from scrapy_spider_suite.analysis.search import index_follower, index_place
from scrapy_spider_suite.analysis.search.index_follower import IndexFollower
from scrapy_spider_suite.analysis.search.index_place import IndexPlace
from scrapy_spider_suite.analysis.search.text_index import OpenIndex, url_key
from scrapy_spider_suite.errors import SearchBusyError, SearchError
from scrapy_spider_suite.packs import PackWriter, RefersTo
from scrapy_spider_suite.packs.redaction import RedactionTarget, redact
from scrapy_spider_suite.packs.warc import sha1_digest
from scrapy_spider_suite.runtime import files

HOST = "secret.test"
HIDDEN = "qxzvkwy"


def fill(folder: Path) -> None:
    """Three packs, indexed as they came: pages that are to go, and others that name them."""
    gone = page(5, f"what nobody {HIDDEN} reads", host=HOST, title=f"{HIDDEN} title")
    was = RefersTo(gone.url, gone.time, sha1_digest(gone.body))
    for number in range(3):
        write(
            folder,
            page(number, f"apple{number}", 10.0 * number),
            page(number, f"{HIDDEN}{number} words", 10.0 * number, host=HOST),
            *([gone, page(7, "older")] if number == 0 else []),
            *([fetch(9, url="http://copy.test/9", original=was)] if number == 1 else []),
            *([page(7, f"newer, and names {HOST}", 50.0)] if number == 1 else []),
            time=NOW + number,
        )
        followed(folder)


def left(folder: Path, *words: str) -> list[str]:
    """The files of the index that hold one of *words* in their bytes."""
    files = [path for path in IndexPlace(folder).folder.rglob("*") if path.is_file()]
    return [str(path) for path in files
            if any(word.encode() in path.read_bytes() for word in words)]  # fmt: skip


def terms(folder: Path) -> int:
    """How often the index knows the host and the hidden word: of what is deleted in it, too."""
    searcher = OpenIndex(IndexPlace(folder).current()).searcher
    wanted = [
        ("host", HOST),
        ("host", f"*.{HOST}"),
        ("url", "secret"),
        ("text", HIDDEN),
        ("title", HIDDEN),
        ("text", f"{HIDDEN}1"),
        ("key", url_key(f"http://{HOST}/1")),
    ]
    return sum(searcher.doc_freq(field, word) for field, word in wanted)


@pytest.mark.parametrize("mentions", [False, True])
def test_a_host(tmp_path: Path, mentions: bool) -> None:
    """Its pages, and copies of them, are in no file of the index."""
    fill(tmp_path)
    assert len(left(tmp_path, HIDDEN)) > 1
    assert terms(tmp_path) > 9
    assert hits(tmp_path, HIDDEN) == {f"http://{HOST}/5", "http://copy.test/9"}
    target = RedactionTarget(host=HOST, mentions=mentions)
    redact(tmp_path, target, NOW, lambda done: None, texts=search)
    assert left(tmp_path, HIDDEN, f"http://{HOST}", "test,secret") == []
    assert terms(tmp_path) == 0
    assert hits(tmp_path, "newer") == (set() if mentions else {"http://a.test/7"})
    if mentions:
        assert left(tmp_path, HOST) == []
        IndexFollower(tmp_path).rebuild(lambda progress: None)
    assert hits(tmp_path, "older") == ({"http://a.test/7"} if mentions else set())
    assert followed(tmp_path) == expected(tmp_path)


def test_a_url(tmp_path: Path) -> None:
    """That one alone, in all its versions."""
    write(tmp_path, page(1, f"{HIDDEN} old"), page(2, "apple"), time=NOW)
    followed(tmp_path)
    write(tmp_path, page(1, f"{HIDDEN} new", 10.0), page(3, "apple"), time=NOW + 1)
    followed(tmp_path)
    redact(tmp_path, RedactionTarget(url="http://a.test/1"), NOW, lambda done: None, texts=search)
    assert left(tmp_path, HIDDEN, "http://a.test/1", "test,a)/1") == []
    assert contents(tmp_path) == expected(tmp_path)
    assert hits(tmp_path, "apple") == {"http://a.test/2", "http://a.test/3"}


class _KilledError(Exception):
    """Stands for a kill."""


def test_a_kill_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is hidden is not found any more; the same call again ends it."""
    fill(tmp_path)

    def die(*_: object) -> None:
        raise _KilledError

    for place, name in ((index_follower, "rewrite"), (IndexPlace, "install")):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, die)
            with pytest.raises(_KilledError):
                redact(tmp_path, RedactionTarget(host=HOST), NOW, lambda done: None, texts=search)
        assert not any(HOST in url for url in hits(tmp_path, "*"))
    redact(tmp_path, RedactionTarget(host=HOST), NOW, lambda done: None, texts=search)
    assert left(tmp_path, HIDDEN) == []
    assert contents(tmp_path) == expected(tmp_path)


def test_what_is_being_written(tmp_path: Path) -> None:
    """Pages of a pack that stays as it is go from the index all the same."""
    writer = PackWriter(plan(tmp_path))
    hand_in(writer, page(1, HIDDEN, host=HOST))
    hand_in(writer, page(2, "apple"))
    writer.flush().result()
    followed(tmp_path)
    assert redact(tmp_path, RedactionTarget(host=HOST), NOW, lambda done: None, texts=search).open
    assert left(tmp_path, HIDDEN) == []
    assert hits(tmp_path, "apple") == {"http://a.test/2"}
    hand_in(writer, page(3, "apple"))
    writer.close()
    assert set(followed(tmp_path)) == {"http://a.test/2", "http://a.test/3"}


def test_where_nothing_can_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without tantivy nothing begins; an index that is damaged goes as a whole."""
    fill(tmp_path)
    honest = builtins.__import__

    def refuse(name: str, *rest: object) -> object:
        if name == "tantivy":
            raise ImportError("not installed", name=name)
        return honest(name, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", refuse)
        with pytest.raises(SearchError, match="tantivy is not installed"):
            redact(tmp_path, RedactionTarget(host=HOST), NOW, lambda done: None, texts=search)
    redact(tmp_path, RedactionTarget(host=HOST), NOW, lambda done: None, texts=search)
    assert left(tmp_path, HIDDEN) == []
    assert followed(tmp_path) == expected(tmp_path)
    for path in IndexPlace(tmp_path).current().glob("*.store"):
        files.replace_file(path, path.read_bytes()[:40])  # it may be mapped
    redact(tmp_path, RedactionTarget(host="a.test"), NOW, lambda done: None, texts=search)
    assert not IndexPlace(tmp_path).exists()
    assert followed(tmp_path) == expected(tmp_path)


def test_one_writes_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are told, or wait."""
    write(tmp_path, page(1, "apple"))
    place, free = IndexPlace(tmp_path), threading.Event()
    with place.locked():
        with pytest.raises(SearchBusyError, match="another process"):
            IndexFollower(tmp_path).step()

        sleep = Mock(side_effect=lambda seconds: free.set())
        monkeypatch.setattr(index_place, "time", Mock(sleep=sleep))
        with pytest.raises(SearchBusyError), place.locked(0.3):
            pass
    assert free.is_set()
    assert IndexFollower(tmp_path).step().pages == 1


def test_who_waits_is_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower that goes from batch to batch lets go for a moment only: it is not passed by."""
    write(tmp_path, page(1, "apple"))
    place, waits, look, had = IndexPlace(tmp_path), *(threading.Event() for _ in range(3))

    def rest(seconds: float) -> None:
        waits.set()
        look.wait(20)

    def wait() -> None:
        with place.locked(600.0):
            had.set()

    monkeypatch.setattr(index_place, "time", Mock(sleep=rest))
    waiter = threading.Thread(target=wait)
    with place.locked():
        waiter.start()
        assert waits.wait(20)
    try:
        with pytest.raises(SearchBusyError):
            IndexFollower(tmp_path).step()
    finally:
        look.set()
        waiter.join(20)
    assert had.is_set()
    assert IndexFollower(tmp_path).step().pages == 1


def test_nothing_begins_before_the_index_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packs and their indexes are as they were while another process writes."""
    fill(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    monkeypatch.setattr(search, "WAIT", 0.0)
    with IndexPlace(tmp_path).locked(), pytest.raises(SearchBusyError):
        redact(tmp_path, RedactionTarget(host=HOST), NOW, lambda done: None, texts=search)
    after = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert after.keys() - before.keys() <= {tmp_path / "merging.lock"}
    assert all(after[path] == data for path, data in before.items())
