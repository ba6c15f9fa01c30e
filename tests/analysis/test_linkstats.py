"""Link statistics: exact whatever is killed, in bounded memory, and what they say adds up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.mappings import Batches

from scrapy_spider_suite.analysis.link_stats import (
    HostLinks,
    LinkStats,
    PageFacts,
    degree_counts,
)
from scrapy_spider_suite.errors import JobDamagedError
from scrapy_spider_suite.settings.table import LINK_TABLES
from scrapy_spider_suite.store.interface import KV, MemoryKV
from scrapy_spider_suite.store.rocks_store import RocksStore
from scrapy_spider_suite.urls.normalize import host_of

HOSTS = ("a.test", "www.a.test", "b.test:8080", "b.test", "[::1]:81", "c.example")
urls = st.builds(
    "http://{}/{}".format, st.sampled_from(HOSTS), st.integers(0, 4).map(str)
)  # fmt: skip
pages = st.lists(
    st.builds(
        PageFacts,
        url=urls,
        status=st.sampled_from([200, 301, 404]),
        media_type=st.sampled_from(["text/html", "", "image/png"]),
        size=st.integers(0, 1 << 20),
        language=st.sampled_from(["", "en", "de"]),
        links=st.none() | st.lists(urls, unique=True, max_size=12),
        anchors=st.lists(st.sampled_from(["Read more", "more", "Straße 7b"]), max_size=3),
        again=st.booleans(),
    ),
    max_size=30,
)


def counts(stats: LinkStats) -> dict[str, object]:
    """All that *stats* hold."""
    rest = set(LINK_TABLES) - {"links", "hosts"}
    tables = {name: dict(stats.table(name)) for name in rest}
    edges = {(a, b): n for a, b, n in stats.edges()}
    return {**tables, "links": stats.totals(), "hosts": dict(stats.hosts()), "edges": edges}


def counted_at_once(pages: Iterable[PageFacts]) -> dict[str, object]:
    """The same by counters in memory, in another way."""
    pages = list(pages)
    first = [page for page in pages if not page.again and page.links is not None]
    arcs = [(host_of(p.url), host_of(link)) for p in first for link in p.links or ()]
    edges = Counter((a, b) for a, b in arcs if a != b)
    names = {host_of(page.url) for page in first} | {b for _, b in edges}

    def of(host: str | None) -> HostLinks:
        mine = [arc for arc in arcs if host in (None, arc[0])]
        own = sum(a == b for a, b in mine)
        number = sum(host in (None, host_of(page.url)) for page in first)
        return HostLinks(number, len(mine), own, len(mine) - own) if host is None else HostLinks(
            number, len(mine), own, len(mine) - own,
            sum(n for (_, b), n in edges.items() if b == host),
            sum(a == host for a, _ in edges), sum(b == host for _, b in edges),
        )  # fmt: skip

    outside = [sum(host_of(u) != host_of(p.url) for u in p.links or ()) for p in first]
    words = [w for p in pages if not p.again for t in p.anchors for w in t.casefold().split()]
    return {
        "out": Counter(str(len(p.links or ())) for p in first),
        "external": Counter(map(str, outside)),
        "statuses": Counter(str(page.status) for page in pages),
        "types": Counter(page.media_type or "-" for page in pages),
        "languages": Counter(page.language or "-" for page in pages),
        "sizes": Counter(str(page.size.bit_length()) for page in pages),
        "anchors": Counter(words),
        "links": of(None),
        "hosts": {name: of(name) for name in names},
        "edges": edges,
    }


@settings(max_examples=30)
@given(pages, st.data())
def test_after_any_kill_they_are_those_of_an_undisturbed_run(
    pages: list[PageFacts], data: st.DataObject
) -> None:
    """Pages whose batch was not written are fetched once more; no other page is."""
    rows = Batches()
    stats = LinkStats(rows, LINK_TABLES, rows_max=data.draw(st.sampled_from([1, 7, 1000])))
    done = at = 0
    while done < len(pages):
        action = data.draw(st.sampled_from(["page", "page", "page", "flush", "kill"]))
        if action == "page" and at < len(pages):
            stats.page(pages[at])
            at += 1
        elif action == "kill" and at > done:
            rows.kill()
            stats, at = LinkStats(rows, LINK_TABLES, rows_max=3), done
        else:
            stats.save()
            rows.commit()
            done = at = max(at, done)
            if at < len(pages) and action != "page":
                stats.page(pages[at])
                at += 1
    rows.kill()
    assert counts(LinkStats(rows, LINK_TABLES)) == counted_at_once(pages)


def test_in_the_database_of_a_job(tmp_path: Path) -> None:
    """What was flushed is there when it is opened again; what was not is not."""
    links = [f"http://h{n}.test/" for n in range(40)]
    store = RocksStore(tmp_path / "db")
    stats = LinkStats(store.kv("links"))
    for number in range(50):
        stats.page(PageFacts(f"http://a.test/{number}", 200, "text/html", 6000, "en", links))
        stats.save()
        store.flush()
    stats.page(PageFacts("http://a.test/last", 200, links=links))
    stats.save()
    store._release()  # as a kill leaves it: what waits for the next batch is lost
    again = RocksStore(tmp_path / "db")
    read = LinkStats(again.kv("links"))
    assert read.host("a.test") == HostLinks(50, 2000, 0, 2000, 0, 40, 0)
    assert read.host("h7.test") == HostLinks(in_links=50, in_hosts=1)
    assert read.totals() == HostLinks(50, 2000, 0, 2000)
    again.close()


def test_memory_is_bounded() -> None:
    """However many hosts are linked to, no more rows wait than allowed and one page brings."""
    rows = MemoryKV()
    stats = LinkStats(rows, rows_max=100)
    for number in range(50):
        links = [f"http://h{number}-{n}.test/" for n in range(30)]
        stats.page(PageFacts(f"http://a{number}.test/", 200, links=links))
        assert len(stats._hosts) + len(stats._edges) < 100
    stats.save()
    assert sum(1 for _ in stats.hosts()) == 50 * 31


def test_only_what_is_asked_for_is_counted() -> None:
    """A table that is not named has no row (T3)."""
    stats = LinkStats(MemoryKV(), ["types"])
    stats.page(PageFacts("http://a.test/", 200, "text/html", links=["http://b.test/"]))
    stats.save()
    filled = {name for name, table in counts(stats).items() if table not in ({}, HostLinks())}
    assert filled == {"types"}


def test_names_of_servers_are_cut() -> None:
    """And what they put into them cannot be told from another table's rows."""
    stats = LinkStats(MemoryKV(), LINK_TABLES)
    stats.page(PageFacts("http://a.test/", 200, "x" * 5000, language="\0out\0"))
    stats.page(PageFacts("http://a.test/", 200, "\ud800" * 200))
    stats.save()
    assert max(len(name.encode()) for name, _ in stats.table("types")) <= 100
    assert dict(stats.table("languages")) == {"out": 1, "-": 1}


def test_degrees() -> None:
    """Of pages and of hosts."""
    stats = LinkStats(MemoryKV())
    for number in range(5):
        to = ["http://hub.test/", f"http://a{number}.test/x"]
        stats.page(PageFacts(f"http://a{number}.test/", 200, "text/html", 100, "en", to))
    stats.save()
    degrees = degree_counts(stats)
    assert degrees["in_hosts"] == {5: 1, 0: 5}
    assert degrees["out_hosts"] == {0: 1, 1: 5}
    assert degrees["out"] == {2: 5}
    assert stats.host("hub.test") == HostLinks(in_links=5, in_hosts=5)
    assert list(stats.table("types")) == [("text/html", 5)]
    assert list(stats.table("sizes")) == [("7", 5)]


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x91\xa1x", b"\x98" + bytes(8), b"\x07"])
def test_a_damaged_row_is_named(data: bytes) -> None:
    """It is no count of 0."""
    rows: KV = MemoryKV()
    rows.put(b"h" + b"test.a", data)
    with pytest.raises(JobDamagedError):
        LinkStats(rows).host("a.test")
