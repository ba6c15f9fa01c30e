"""Hosts move between agents at work: each page is fetched once, and only by who holds its unit."""

from __future__ import annotations

import asyncio
from collections import Counter
from errno import EIO
from pathlib import Path
from random import Random

import pytest
from support.virtual_crawl import Web, all_urls, trees
from support.virtual_handover import Handing, names_of

from scrapy_spider_suite.cluster.assignment import load_assignment
from scrapy_spider_suite.cluster.handover import handover, handover_context
from scrapy_spider_suite.cluster.handover.handover import Receiver
from scrapy_spider_suite.cluster.handover.handover_file import HandoverLabel, Mask
from scrapy_spider_suite.cluster.transports.shared_folder import FolderTransport
from scrapy_spider_suite.errors import RegistryError, StoreWriteError
from scrapy_spider_suite.store import residency
from scrapy_spider_suite.store.counters import wrong_rows
from scrapy_spider_suite.store.rocks_store import RocksStore


@pytest.mark.parametrize(
    ("kind", "file_transport", "seen"),
    [
        ("ring", "tcp", "trie"), ("ring", "folder", "sieve"), ("host-parity", "folder", "trie"),
        ("url-sum", "tcp", "trie"),
    ],
)  # fmt: skip
def test_agents_come_and_go(
    tmp_path: Path, kind: str, file_transport: str, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two join one, the first leaves: all that it knows is with the others in the end.

    Though a hand-over file that came cannot be read at first.
    """
    web = trees(20, 13, 20)
    take, failed = Receiver._merge, list[Path]()

    async def unread(receiver: Receiver, label: HandoverLabel, path: Path, mask: Mask) -> None:
        if not failed:
            failed.append(path)
            raise OSError(EIO, "Input/output error")
        await take(receiver, label, path, mask)

    monkeypatch.setattr(Receiver, "_merge", unread)

    async def test() -> None:
        agents = Handing.of(web, load_assignment(kind), tmp_path, 3, file_transport, seen)
        names = names_of(agents)
        await agents.begin(names[0])
        agents.crawls[names[0]].seed("http://h0.t/0", "http://h1.t/0")
        await agents.crawl(lambda: agents.now > 9.0)
        agents.change(*names)
        await agents.crawl(lambda: agents.settled)
        assert agents.registry.gives
        agents.change(*names[1:])
        await agents.crawl(lambda: agents.over)
        assert Counter(agents.urls) == Counter(all_urls(web, 13))
        counts = [crawl.frontier.counters for crawl in agents.crawls.values()]
        assert counts[0].done == 0
        assert sum(each.done for each in counts) == len(agents.urls)
        assert not any(each.pending for each in counts)
        for crawl in agents.crawls.values():
            assert isinstance(crawl.frontier.store, RocksStore)
            assert list(wrong_rows(crawl.frontier.store)) == []
        facts = [handover.facts for handover in agents.handovers.values()]
        given = sum(each.get("sent_files", 0) for each in facts)
        assert given == sum(each.get("received_files", 0) for each in facts) > 1
        assert not [path for path in tmp_path.rglob("*.handover") if path.is_file()]
        assert not list((tmp_path / names[0] / "out").iterdir())
        await agents.close()

    asyncio.run(test())


SOON = 150.0
"""Virtual seconds in which what is left of hosts is fetched, if none of them is put off."""


async def _one_of_two_dies(agents: Handing, *seeds: str) -> None:
    """The first of two crawls for a while, and is away then."""
    one, two = names_of(agents)[:2]
    await agents.begin(one, two)
    agents.crawls[one].seed(*seeds)
    await agents.slowly(lambda: agents.settled)
    await agents.crawl(lambda: agents.now > 15.0)
    await agents.die(one)


async def _all_is_fetched_soon(agents: Handing, urls: set[str]) -> None:
    """Once every unit has its holder."""
    await agents.slowly(lambda: agents.settled)
    settled = agents.now
    await agents.crawl(lambda: agents.over)
    assert agents.now - settled < SOON
    assert set(agents.urls) == urls
    await agents.close()


def test_an_agent_is_back_after_its_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has on disk goes on with what it is given back, of hosts that others never met."""
    monkeypatch.setattr(residency, "_COMING", 2)
    web = Web(trees(20, 13, 20).addresses)

    async def test() -> None:
        agents = Handing.of(web, load_assignment("ring"), tmp_path, 2, "tcp")
        one, two = names_of(agents)
        await _one_of_two_dies(agents, *sorted(all_urls(web, 13)))
        agents.registry.holders[:] = agents.registry.numbers[two]
        agents.change(two)
        await agents.kill(one)
        await agents.crawl(lambda: agents.now > 30.0)  # nobody has heard of it
        assert agents.crawls[one].frontier.pending
        agents.change(one, two)
        await _all_is_fetched_soon(agents, all_urls(web, 13))

    asyncio.run(test())


def test_what_nobody_could_take_goes_on_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory is begun under another name, while the agent that it was of cannot be reached."""
    monkeypatch.setattr(residency, "_COMING", 2)
    monkeypatch.setattr(handover, "SILENCE", -1.0)
    web = trees(20, 25, 20)

    async def test() -> None:
        agents = Handing.of(web, load_assignment("ring"), tmp_path, 3, "tcp")
        one, two, three = names_of(agents)
        await _one_of_two_dies(agents, "http://h0.t/0", "http://h1.t/0")
        agents.homes[three] = tmp_path / "s0"
        await agents.kill(three)
        agents.change(one, two, three)
        again = agents.handovers[three]
        await agents.crawl(lambda: agents.now > 30.0)
        await agents.slowly(lambda: again.facts.get("sent_called_off", 0) > 0)
        then = agents.now
        await agents.crawl(lambda: agents.now > then + 15.0)
        lost = agents.registry.holders == agents.registry.numbers[one]
        agents.registry.holders[lost] = agents.registry.numbers[three]
        agents.heirs[one] = three
        agents.change(two, three)
        await _all_is_fetched_soon(agents, all_urls(web, 25))

    asyncio.run(test())


def _full_disk(agents: Handing, name: str) -> list[str]:
    """Hand-overs of that agent cannot write, until what is returned is empty."""
    work = agents.handovers[name].inbox._context
    flush, disk = work.flush, ["full"]

    def flushed() -> None:
        if disk:
            raise StoreWriteError("no space is left")
        flush()

    work.flush = flushed
    return disk


@pytest.mark.parametrize("file_transport", ["tcp", "folder"])
def test_an_agent_whose_disk_is_full_keeps_nothing_from_being_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_transport: str
) -> None:
    """It joins, and cannot take what it owns: that goes on where it is. It takes it later."""
    monkeypatch.setattr(residency, "_COMING", 2)
    monkeypatch.setattr(handover, "SILENCE", 0.3)
    monkeypatch.setattr(handover, "_CHECK", 0.02)
    monkeypatch.setattr(handover_context, "RETRY", 0.01)
    web = trees(20, 25, 20)

    async def test() -> None:
        agents = Handing.of(web, load_assignment("ring"), tmp_path, 2, file_transport)
        if file_transport == "folder":
            agents.make = lambda name: FolderTransport(
                tmp_path / "shared", "crawl", name, poll=0.01, silence=0.3
            )
        one, two = names_of(agents)
        await agents.begin(one)
        agents.crawls[one].seed("http://h0.t/0", "http://h1.t/0")
        await agents.crawl(lambda: agents.now > 9.0)
        disk = _full_disk(agents, two)
        agents.change(one, two)
        giving = agents.handovers[one]
        await agents.slowly(lambda: giving.facts.get("sent_called_off", 0) > 0)
        shares, fetched = agents.shares[one], len(agents.crawls[one].urls)
        for url in agents.crawls[one].urls:
            assert not shares.is_held_elsewhere(url.split("/")[2], url)

        def goes_on() -> bool:
            late = agents.crawls[one].urls[fetched:]
            return any(shares.owner(url.split("/")[2], url) == two for url in late)

        await agents.slowly(goes_on)
        disk.clear()
        await agents.slowly(lambda: agents.settled)
        await agents.crawl(lambda: agents.over)
        assert Counter(agents.urls) == Counter(all_urls(web, 25))
        assert agents.crawls[two].urls
        await agents.close()

    asyncio.run(test())


# What asyncio was about to accept when it was closed it leaves to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
@pytest.mark.parametrize("seen", ["trie", "sieve"])
def test_kills_and_changes_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: str
) -> None:
    """Members change during hand-overs, and processes are killed: nothing is lost.

    Only what was in flight at a kill is fetched twice.
    """
    monkeypatch.setattr(handover, "FILE_URLS", 90)
    web = trees(12, 25, 12)
    draw = Random(7)

    async def test() -> None:
        agents = Handing.of(web, load_assignment("ring"), tmp_path, 3, "tcp", seen)
        names = names_of(agents)
        await agents.begin(*names)
        agents.crawls[names[0]].seed("http://h0.t/0", "http://h1.t/0")
        await agents.crawl(lambda: agents.now > 20.0)
        for turn in range(8):
            agents.change(*draw.sample(names, draw.choice([1, 2, 3])))
            agents.registry.trouble = [RegistryError("away", "away")] * (turn % 3)
            await agents.some(draw.randrange(1, 12))
            if turn % 2:
                await agents.kill(draw.choice(names))
        agents.change(*names[1:])
        await agents.crawl(lambda: agents.over)
        assert set(agents.urls) == all_urls(web, 25)
        assert len(agents.urls) - len(set(agents.urls)) <= agents.refetched
        assert not agents.crawls[names[0]].frontier.counters.done
        for crawl in agents.crawls.values():
            assert isinstance(crawl.frontier.store, RocksStore)
            assert list(wrong_rows(crawl.frontier.store)) == []
        await agents.close()

    asyncio.run(test())
