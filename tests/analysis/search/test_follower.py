"""The index is where the packs are: whatever comes in whatever order, and after a reopen."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.packs import NOW, hand_in, plan
from support.text_index import contents, expected, followed, hits, naive, page, write

from scrapy_spider_suite.analysis.search import index_follower
from scrapy_spider_suite.analysis.search.index_follower import IndexFollower
from scrapy_spider_suite.packs import Capture, PackWriter, RefersTo
from scrapy_spider_suite.packs.pack_file import FORMATS
from scrapy_spider_suite.packs.warc import NOT_MODIFIED, sha1_digest

WORDS = ("apple", "birch", "cedar", "daisy", "elder", "fern")

fetches = st.builds(
    page,
    st.integers(0, 5),
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join),
    st.integers(0, 20).map(float),
    status=st.sampled_from((200, 200, 200, 404, 301, 503)),
    kind=st.sampled_from(("text/html", "text/html", "text/plain", "image/png")),
)
steps = st.lists(st.one_of(fetches, fetches, st.sampled_from(("follow", "flush", "close", "open"))),
                 max_size=25)  # fmt: skip


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=4, suppress_health_check=list(HealthCheck))
@given(steps=steps)
def test_like_a_dict(form: str, steps: list[Capture | str]) -> None:
    """Whatever is fetched again, lost or follows: the newest version of a URL is found."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        writer, follower = PackWriter(plan(folder, form)), IndexFollower(folder)
        for step in steps:
            if isinstance(step, Capture):
                hand_in(writer, step)
            elif step == "follow":
                follower.step()
            elif step == "flush":
                writer.flush().result()
            elif step == "close":
                writer.close()
                writer = PackWriter(plan(folder, form))
            else:
                follower = IndexFollower(folder)
        writer.close()
        while follower.step().more:
            pass
        if not follower.place.exists():
            assert not list(folder.glob("*.warc.*"))
            return
        known = expected(folder)
        assert contents(folder) == known
        for words in ((WORDS[0],), (WORDS[1], WORDS[2]), ("title3",)):
            assert hits(folder, " ".join(words)) == naive(known, *words)
        follower.rebuild(lambda progress: None)
        assert contents(folder) == known


def test_batches_end_within_a_pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit is read next; nothing is read twice into the index."""
    monkeypatch.setattr(index_follower, "PAGES_MAX", 3)
    for form in FORMATS:
        folder = tmp_path / form
        folder.mkdir()
        write(folder, *(page(number, f"apple{number}") for number in range(8)), form=form)
        follower, read = IndexFollower(folder), []
        while not read or read[-1].more:
            read.append(follower.step())
        assert sum(each.pages for each in read) == 8
        # All of a group of lzo's is read at once.
        assert len(read) == (1 if form == "lzo" else 3) + (form == "lzo")
        assert read[-1].behind == 0
        assert contents(folder) == expected(folder)


@pytest.mark.parametrize("form", ["lzo", "gz"])
def test_a_pack_that_is_written(tmp_path: Path, form: str) -> None:
    """What is on disk is there at once, before the pack is closed."""
    writer = PackWriter(plan(tmp_path, form))
    follower = IndexFollower(tmp_path)
    for number in range(3):
        hand_in(writer, page(number, f"apple{number}"))
        writer.flush().result()
        follower.step()
        # In members, what belongs to the last page may still come.
        there = number + (form == "lzo")
        assert hits(tmp_path, "*") == {f"http://a.test/{each}" for each in range(there)}
    writer.close()
    assert followed(tmp_path) == expected(tmp_path)
    assert follower.step() == index_follower.IndexProgress()


def revisit(number: int, time: float, of: Capture, *, status: int = 200) -> Capture:
    """The same page again."""
    again = page(number, "", time, status=status)
    profile = NOT_MODIFIED if status == 304 else again.profile
    was = RefersTo(of.url, of.time, sha1_digest(of.body))
    return Capture(url=again.url, time=again.time, head=again.head, original=was, profile=profile)


@pytest.mark.parametrize("status", [200, 304])
def test_revisits(tmp_path: Path, status: int) -> None:
    """A page that is as it was is found by its newest fetch; so is a copy elsewhere."""
    first = page(1, "apple")
    write(tmp_path, first, time=NOW)
    followed(tmp_path)
    write(tmp_path, revisit(1, 50, first, status=status), revisit(2, 60, first), time=NOW + 1)
    found = followed(tmp_path)
    assert {url: text for url, (_, _, text) in found.items()} == {
        "http://a.test/1": "apple", "http://a.test/2": "apple"
    }  # fmt: skip
    assert found["http://a.test/1"][0] > f"{20261118110641}"
    IndexFollower(tmp_path).rebuild(lambda progress: None)
    assert contents(tmp_path) == found


def test_a_pack_that_was_written_anew(tmp_path: Path) -> None:
    """What is not in it any more is found no more; an older version is by a new index."""
    write(tmp_path, page(1, "apple"), page(2, "birch"), time=NOW)
    second = write(tmp_path, page(1, "cedar", 50), page(3, "daisy", 50), time=NOW + 1)
    follower = IndexFollower(tmp_path)
    follower.step()
    assert hits(tmp_path, "cedar OR daisy") == {"http://a.test/1", "http://a.test/3"}
    for path in (second, second.with_name(f"{second.name}.cdxj")):
        path.unlink()
    assert follower.step() == index_follower.IndexProgress()  # it was taken elsewhere
    assert hits(tmp_path, "cedar") == {"http://a.test/1"}
    other = write(tmp_path, page(4, "elder", 50), time=NOW + 1)
    assert other.name == second.name
    _follow(follower)
    assert hits(tmp_path, "cedar") == set()
    follower.rebuild(lambda progress: None)
    assert contents(tmp_path) == expected(tmp_path)
    assert hits(tmp_path, "apple") == {"http://a.test/1"}


def test_a_pack_that_was_copied(tmp_path: Path) -> None:
    """A folder that was moved needs not be read again."""
    (tmp_path / "one").mkdir()
    write(tmp_path / "one", *(page(number, "apple") for number in range(5)))
    followed(tmp_path / "one")
    for path in (tmp_path / "one").rglob("*"):
        other = tmp_path / "two" / path.relative_to(tmp_path / "one")
        other.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            other.write_bytes(path.read_bytes())
    assert IndexFollower(tmp_path / "two").step() == index_follower.IndexProgress()
    assert contents(tmp_path / "two") == expected(tmp_path / "one")


def _follow(*followers: IndexFollower) -> None:
    for follower in followers:
        while follower.step().more:
            pass


def test_two_that_write(tmp_path: Path) -> None:
    """Each sees what the other has done."""
    first, second = IndexFollower(tmp_path), IndexFollower(tmp_path)
    for number, follower in enumerate((first, second, first, first, second)):
        write(tmp_path, page(number, "apple"), page(0, f"again{number}", number + 1.0),
              time=NOW + number)  # fmt: skip
        follower.step()
        assert contents(tmp_path) == expected(tmp_path)


def test_what_is_gone(tmp_path: Path) -> None:
    """A redirect and a missing page are; an error for now, and what robots read, are nothing."""

    def fetched(number: int, statuses: Iterable[int]) -> list[Capture]:
        return [page(number, f"apple{number}", 10.0 * place, status=status)
                for place, status in enumerate(statuses)]  # fmt: skip

    write(tmp_path, *fetched(1, (200, 404)), *fetched(2, (200, 301)), *fetched(3, (200, 503)),
          *fetched(4, (200, 429)), *fetched(5, (404, 200)), *fetched(6, (200, 304)))  # fmt: skip
    robots = page(7, "User-agent: apple", kind="text/plain")
    write(tmp_path, Capture(url="http://a.test/robots.txt", time=NOW, head=robots.head,
                          body=robots.body), time=NOW + 1)  # fmt: skip
    assert set(followed(tmp_path)) == {f"http://a.test/{number}" for number in (3, 4, 5, 6)}
