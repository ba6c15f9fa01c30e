"""SUITE_COMPARE_PAGES in real crawls: a body is packed once; no record refers to a missing one."""

from __future__ import annotations

import gzip
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.crawls import ADDON, crawl_over_kills
from support.inprocess_crawls import Crawled, crawl_here
from support.websites import Answer, Site, links, running

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.packs import Page, open_packs, verify
from scrapy_spider_suite.packs.redaction import RedactionTarget, redact
from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.spiders import BroadSpider
from scrapy_spider_suite.store.job_directory import FOLDER
from scrapy_spider_suite.store.job_reader import StoreReader

Run = Callable[[Any], Crawled]
SAME = links(title="the same") + "word " * 300
AT_ONCE: dict[str, Any] = {
    "ROBOTSTXT_OBEY": False, "SUITE_ALLOW_PRIVATE_ADDRESSES": True, "SUITE_HOST_DELAY": 0,
    "SUITE_IP_DELAY": 0,
}  # fmt: skip


class Broad(BroadSpider):
    """Follows everything."""

    name = "broad"


@pytest.fixture
def site() -> Iterator[Site]:
    """A site with two pages that are the same."""
    pages = {"/": links("/a", "/b", "/c"), "/a": SAME, "/b": SAME, "/c": links(title="other")}
    with running(Site(pages)) as server:
        yield server


def pages_in(packs: Path) -> dict[str, list[Page]]:
    """What is packed, by path."""
    assert list(verify(packs)) == []
    found: dict[str, list[Page]] = {}
    for page in open_packs(packs):
        found.setdefault("/" + page.url.split("/", 3)[3], []).append(page)
    return found


def test_a_body_is_packed_once(site: Site, run: Run, tmp_path: Path) -> None:
    """The second one is a record that leads to the first."""
    arguments = {"seeds": f"{site.url}/"}
    options = AT_ONCE | {"SUITE_COMPARE_PAGES": "payload", "SUITE_PACKS_DIR": str(tmp_path)}
    done = run(crawl_here(Broad, arguments=arguments, **options))
    found = pages_in(tmp_path)
    assert {path: page.is_revisit for path, [page] in found.items()} == {
        "/": False, "/a": False, "/b": True, "/c": False,
    }  # fmt: skip
    [first], [second] = found["/a"], found["/b"]
    assert second.body == first.body == SAME.encode()
    assert second.record.get("WARC-Refers-To-Target-URI") == first.url
    assert second.record.get("WARC-Refers-To-Date") == first.record.get("WARC-Date")
    assert second.digest == first.digest
    assert second.status == 200
    assert done.stat("suite/duplicates/payload") == 1
    assert done.stat("suite/duplicates/bytes") == len(SAME)


@pytest.mark.parametrize("gone", ["nothing", "deleted", "redacted"])
def test_nothing_refers_to_what_is_gone(site: Site, run: Run, tmp_path: Path, gone: str) -> None:
    """An original that is in the packs no more gives its place to the next page."""
    job, packs = tmp_path / "job", tmp_path / "packs"
    options = AT_ONCE | {
        "SUITE_COMPARE_PAGES": "payload,near", "SUITE_PACKS_DIR": str(packs), "JOBDIR": str(job),
    }  # fmt: skip
    run(crawl_here(Broad, arguments={"seeds": f"{site.url}/"}, **options))
    if gone == "deleted":
        for path in packs.iterdir():
            path.unlink()
    elif gone == "redacted":
        redact(packs, RedactionTarget(url=f"{site.url}/a"), time.time(), lambda done: None)
    site.pages |= {"/later": links("/d", "/e"), "/d": SAME, "/e": SAME}
    later = {"SUITE_SEEDS": f"{site.url}/later"}
    done = run(crawl_here(Broad, arguments={"seeds": f"{site.url}/"}, **options, **later))
    assert done.stat("suite/duplicates/near") == 2  # what they are like is known from before
    found = pages_in(packs)
    [fourth], [fifth] = found["/d"], found["/e"]
    assert fourth.is_revisit is (gone == "nothing")
    assert fifth.is_revisit
    assert fourth.body == fifth.body == SAME.encode()
    if gone != "nothing":
        assert fifth.record.get("WARC-Refers-To-Target-URI") == fourth.url


def test_pages_that_say_the_same(site: Site, run: Run) -> None:
    """By structure, within a host; nearly, by the words; their links are followed or not."""
    letters = random.Random(1)
    text = ["".join(letters.choices("abcdefgh", k=6)) for _ in range(500)]
    words, near = " ".join(text), " ".join(["another", *text[1:]])
    april = gzip.compress((links("/2") + "14 April").encode())
    site.pages |= {
        "/": links("/a", "/b", "/c", "/d"), "/a": links("/1") + "3 April",
        "/b": Answer(april, headers={"Content-Encoding": "gzip"}),
        "/c": links("/3") + f"<p>{words}", "/d": links("/4") + f"<p>{near}",
    }  # fmt: skip
    site.pages |= {f"/{n}": links(title=f"page {'abcd'[n - 1] * 9}") for n in (1, 2, 3, 4)}
    options = AT_ONCE | {"SUITE_COMPARE_PAGES": "structure,near", "SUITE_FOLLOW_DUPLICATES": False}
    done = run(crawl_here(Broad, arguments={"seeds": f"{site.url}/"}, **options))
    assert done.stat("suite/duplicates/structure") == 1
    assert done.stat("suite/duplicates/near") >= 1
    assert done.stat("suite/duplicates/not_followed") == 2
    # Either of two may have come first.
    assert len({"/1", "/2"} & set(site.paths())) == 1
    assert len({"/3", "/4"} & set(site.paths())) == 1
    site.visits.clear()
    followed = options | {"SUITE_FOLLOW_DUPLICATES": True}
    run(crawl_here(Broad, arguments={"seeds": f"{site.url}/"}, **followed))
    assert {"/1", "/2", "/3", "/4"} <= set(site.paths())


def test_a_page_that_is_fetched_again_is_no_duplicate(site: Site, run: Run, tmp_path: Path) -> None:
    """Of itself."""
    options = AT_ONCE | {
        "SUITE_COMPARE_PAGES": "payload,structure,near", "JOBDIR": str(tmp_path),
        "SUITE_REVISIT": "fixed", "SUITE_REVISIT_INTERVAL": 0.5, "CLOSESPIDER_TIMEOUT": 2,
        "SUITE_FOLLOW_DUPLICATES": False,
    }  # fmt: skip
    site.pages["/b"] = links(title="something else")
    done = run(crawl_here(Broad, arguments={"seeds": f"{site.url}/"}, **options))
    assert site.paths().count("/a") > 1
    assert done.stat("suite/duplicates/payload") == 0
    assert done.stat("suite/duplicates/structure") == 0


def test_names_of_kinds() -> None:
    """What is none is refused."""
    from scrapy.settings import Settings

    with pytest.raises(SettingsError, match="SUITE_COMPARE_PAGES"):
        SuiteSettings.from_settings(Settings({"SUITE_COMPARE_PAGES": "twins"}))


@pytest.mark.slow
def test_kills_leave_no_record_without_its_body(tmp_path: Path) -> None:
    """Killed twice: every page is packed, whole or as a record that leads to a whole one."""
    names = [f"/{n}" for n in range(120)]
    bodies = {name: links(*random.Random(name).sample(names, 5)) for name in names}
    pages: dict[str, Any] = {name: bodies[names[n % 20]] for n, name in enumerate(names)}
    pages["/"] = links(*names)
    job, packs, chance = tmp_path / "job", tmp_path / "packs", random.Random(3)
    with running(Site(pages)) as site:
        settings = AT_ONCE | {
            "ADDONS": ADDON, "JOBDIR": str(job), "SUITE_PACKS_DIR": str(packs),
            "SUITE_COMPARE_PAGES": "payload", "SUITE_HOST_DELAY": 0.01,
            "TELNETCONSOLE_ENABLED": False, "SUITE_TRAPS": "",
        }  # fmt: skip
        times = [chance.uniform(0.3, 1.5) for _ in range(2)]
        crawl_over_kills("support.spiders.Bulk", settings, tmp_path, times, seeds=f"{site.url}/")
    with StoreReader(job / FOLDER) as reader:
        assert list(reader.check()) == []
    found = pages_in(packs)
    for name in names:
        for page in found[name]:
            assert page.body == pages[name].encode()
    whole = sum(not page.is_revisit for each in found.values() for page in each)
    # Of what was in flight at a kill, and of what came before its equal was through.
    assert 21 <= whole < 21 + 3 * 16
