"""From the lines of a list to seeds in a job: nothing lost, nothing twice, wherever it was cut."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from scrapy_spider_suite.crawl import seeds as sowing
from scrapy_spider_suite.crawl.queue.frontier import Frontier
from scrapy_spider_suite.crawl.seeds import SeedList, bad_seed_lines, seed_scheduler
from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.store.interface import MemoryStore
from scrapy_spider_suite.store.url_states import SchemeGuesses, seeds
from scrapy_spider_suite.urls.url_lists import LONGEST, Seed, SeedLines

TEXT = (
    b"\xef\xbb\xbf# head\nhttp://a.test/ #tag=one\n\nno seed\n#tag=rest\r\nb.test\r\n"
    + b"".join(b"http://many.test/%d\n" % n for n in range(70))
    + b"http://long.test/" + b"x" * (2 * LONGEST) + b"\nhttp://c.test/\nlast one is none"
)  # fmt: skip


def all_of(text: bytes) -> list[tuple[int, object]]:
    """What is read of *text* in one go, with the numbers of the lines."""
    reader = SeedLines("list")
    read = [(reader.line, reader.read(line)) for line in text.split(b"\n")]
    return [(line + 1, each) for line, each in read if each is not None]


class Field:
    """A list that is sown bit by bit, and what came of it."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.store = MemoryStore()
        self.planted: list[Seed] = []

    def plant(self, seeds: Sequence[Seed]) -> int:
        """Keep them; all are new."""
        self.planted += seeds
        return len(seeds)

    def sower(self, of: Sequence[int] = (1, 2)) -> SeedList:
        """One that goes on where the last one was."""
        sower = SeedList(self.store, self.plant, SeedLines("list"), "list")
        sower.resume(of)
        return sower


def sow(field: Field, draw: random.Random, dies: float) -> SeedList:
    """Sow to the end in blocks of any size, each time with a chance to die before the next one."""
    while True:
        sower = field.sower()
        before, done = len(field.planted), False
        at = sower.at
        while at < len(field.text) and not done:
            block = field.text[at : at + draw.choice([1, 7, 100, 5_000, 70_000])]
            at += len(block)
            sower.feed(block)
            while sower.more and not done:
                sower.schedule_lines()
                if draw.random() < 0.7:
                    sower.save()
                    before = len(field.planted)
                done = draw.random() < dies
        if done:
            # What was taken after the last save is taken again.
            del field.planted[before:]
            continue
        sower.end_of_text()
        while sower.more:
            sower.schedule_lines()
        sower.save()
        return sower


def test_the_text_ends_before_all_of_it_was_taken() -> None:
    """The last line comes after those that wait."""
    field = Field(b"")
    sower = field.sower()
    sower.feed(b"http://a.test/\nhttp://b.test/\nhttp://c.test/")
    sower.end_of_text()
    while sower.more:
        sower.schedule_lines()
    assert [seed.url[7] for seed in field.planted] == ["a", "b", "c"]


@pytest.mark.parametrize("seed", range(20))
def test_cut_anywhere(seed: int) -> None:
    """The same seeds in the same order, the same bad lines and numbers, the same counts."""
    draw = random.Random(seed)
    field = Field(TEXT)
    sower = sow(field, draw, dies=0.15)
    expected = all_of(TEXT)
    assert field.planted == [each for _, each in expected if isinstance(each, Seed)]
    bad = [(b.line, b.why) for b in bad_seed_lines(field.store)]
    assert bad == [(line, b.why) for line, b in expected if not isinstance(b, Seed)]  # type: ignore[attr-defined]
    assert [why for _, why in bad][1] == f"longer than {LONGEST} bytes"
    sown = sower.counts
    assert (sown.lines, sown.seeds, sown.bad) == (TEXT.count(b"\n") + 1, 73, 3)
    assert sown.first_bad[0] == "list:4 'no seed': neither a URL nor a host name"


def test_another_file_of_the_same_name_begins_anew() -> None:
    """Its size or its time tells."""
    field = Field(b"http://a.test/\n")
    sower = sow(field, random.Random(1), dies=0.0)
    sower.ended = True
    sower.save()
    assert field.sower().ended
    other = field.sower(of=(1, 3))
    assert (other.at, other.ended, other.counts.seeds) == (0, False, 0)


def test_what_is_kept_of_bad_lines_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are counted, some are kept, few are shown."""
    monkeypatch.setattr(sowing, "_KEPT", 8)
    field = Field(b"no seed\n" * 50)
    sower = sow(field, random.Random(1), dies=0.0)
    assert sower.counts.bad == 50
    assert [bad.line for bad in bad_seed_lines(field.store)] == list(range(1, 9))
    assert len(sower.counts.first_bad) == 5


def test_seeds_with_tags_and_guesses_in_a_frontier() -> None:
    """They are pending once, known as seeds, with the first tag that they had."""
    store = MemoryStore()
    frontier = Frontier(store, Policy(), now=0.0, wall=0.0, capacity=10)
    plant = seed_scheduler(frontier, lambda: 0.0)
    one = Seed("http://a.test/", "news")
    assert plant([one, Seed("https://b.test/", "", True)]) == 2
    assert plant([one, Seed("http://a.test/", "other"), Seed("http://c.test/", "late")]) == 1
    rows = {row.url: row.tag for row in seeds(store)}
    assert rows == {"http://a.test/": "news", "https://b.test/": "", "http://c.test/": "late"}
    assert frontier.pending == 3


def test_the_other_guess_is_a_normal_url() -> None:
    """Port 80 is named where the guess was https, and goes without saying where it is http."""
    guesses = SchemeGuesses(MemoryStore())
    for url, other in (
        ("https://a.test:80/x", "http://a.test/x"),
        ("https://a.test:81/x", "http://a.test:81/x"),
        ("https://a.test/", "http://a.test/"),
    ):
        entry = guesses.other_scheme(Entry("a.test", url))
        assert (entry.url, entry.host) == (other, "a.test")
