"""What an agent does beside its crawl, without one."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import Request
from scrapy.utils.test import get_crawler
from support.redis_servers import free_port

from scrapy_spider_suite.cluster import agent as agency
from scrapy_spider_suite.cluster import redis_server
from scrapy_spider_suite.cluster.agent import Agent
from scrapy_spider_suite.cluster.lan import check_agent_names
from scrapy_spider_suite.cluster.ledger import shared_limits
from scrapy_spider_suite.cluster.ledger.rate_ledger import RedisLedger
from scrapy_spider_suite.cluster.ledger.shared_limits import (
    AddressSharing,
    SharedAddresses,
    SharedLimits,
)
from scrapy_spider_suite.cluster.membership import AddressQuestion
from scrapy_spider_suite.crawl.requests import Translator
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.frontier.policy import Pace, Policy
from scrapy_spider_suite.settings.values import RedisUrl
from scrapy_spider_suite.store.host_queues import AddressClocks
from scrapy_spider_suite.store.interface import MemoryKV
from scrapy_spider_suite.store.request_codec import RequestCodec


def agent(**store: Any) -> Any:
    """An agent whose crawl is being stopped, as far as is needed here."""
    crawl = SimpleNamespace(
        store=SimpleNamespace(**store), stopping=True, engine=SimpleNamespace(flush=lambda: None),
        wake=lambda: None,
    )
    return SimpleNamespace(crawl=crawl)


def test_nobody_is_told_of_what_is_not_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the crawl is being stopped with a disk that is full."""
    monkeypatch.setattr(agency, "_DISK", 0.0)
    here = agent(backlog=1)

    async def test() -> None:
        written = asyncio.ensure_future(Agent.write_durably(here))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not written.done()
        here.crawl.store.backlog = 0
        async with asyncio.timeout(60):
            await written

    asyncio.run(test())


def test_others_wait_for_all_that_has_begun_without_the_ledger() -> None:
    """Also where several fetches at a time are allowed, and one by the ledger comes between."""
    address: Any = SimpleNamespace(key="10.0.0.1", wire=2, next_fetch=0.0, delay=3.0)
    crawl = made({address.key: address}, floor=None)
    company = SharedAddresses(crawl, lambda addresses: None)
    company.answered(
        AddressQuestion([], [], [], [], complete=True, known=1), [], [address.key]
    )
    heard = []
    for address.wire in (2, 1, 0):
        company.begun(address)
        address.wire += 1
        heard.append(company.question(1).heard)
    assert heard == [[], [], [address.key]]


def made(addresses: dict[str, Any], floor: float | None) -> Any:
    """The core of a crawl whose addresses have a delay of 3 s, at 101 s."""
    bench: Any = SimpleNamespace(addresses=addresses)
    policy = Policy(Pace(0.0, 1), Pace(3.0, 1))
    residents = SimpleNamespace(clocks=AddressClocks(bench, policy, floor))
    return SimpleNamespace(
        frontier=SimpleNamespace(workbench=bench, residents=residents), now=lambda: 101.0,
        settings=SimpleNamespace(project=SimpleNamespace(longest_fetch=60.0)),
    )  # fmt: skip


def test_others_wait_for_the_delay_of_an_earlier_process() -> None:
    """It was killed: this one counts its addresses as fetched when it began."""
    heard, quiet = [], []
    for floor in (100.0, 98.0):
        company = SharedAddresses(made({}, floor), lambda addresses: None)
        company.answered(
            AddressQuestion([], [], [], [], complete=True, known=1), [], ["10.0.0.1"]
        )
        heard.append(company.question(1).heard)
        quiet.append(company.quiet_in())
    assert heard == [[], ["10.0.0.1"]]
    assert quiet == [2.0, 0.0]
    here: Any = SimpleNamespace(wire=1, delay=3.0, next_fetch=0.0)
    assert (
        SharedAddresses(made({"10.0.0.1": here}, None), lambda addresses: None).quiet_in() == 63.0
    )


def test_after_redis_has_lost_all_an_agent_goes_on_where_it_was_alone() -> None:
    """And says so; but not if others may have thought that it was gone."""
    address: Any = SimpleNamespace(key="10.0.0.1", wire=0, next_fetch=0.0, delay=3.0)
    company = SharedAddresses(made({address.key: address}, None), lambda addresses: None)
    asked: list[AddressQuestion] = []

    async def meet(question: AddressQuestion) -> tuple[list[int], list[str]]:
        asked.append(question)
        return [AddressSharing.ALONE] * len(question.new), []

    async def test() -> None:
        registry: Any = SimpleNamespace(answer=SimpleNamespace(era=1), ask_addresses=meet)
        company.standing(address.key)
        await company._exchange(registry)
        registry.answer.era = 2
        for _ in range(2):
            await company._exchange(registry)
        assert company.standing(address.key) is AddressSharing.ALONE
        company.forget()
        assert company.standing(address.key) is AddressSharing.NEW

    asyncio.run(test())
    assert [each.known for each in asked] == [1, 1, 2]
    assert [each.mine for each in asked] == [[], [], [address.key]]


def test_a_list_of_other_agents_is_refused() -> None:
    """What is in the queues for hosts of the others would never be fetched."""
    kv = MemoryKV()
    check_agent_names(kv, {"b": None, "a": None})
    check_agent_names(kv, {"a": 1, "b": 2})
    with pytest.raises(SettingsError, match="expected a, b, the agents that"):
        check_agent_names(kv, ["a", "b", "c"])


def test_the_setting_is_named_that_needs_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of agents the ledger lies where they meet."""
    monkeypatch.setattr(redis_server, "HAS_REDIS", False)
    for setting in ("SUITE_RATE_LEDGER", "SUITE_REDIS_URL"):
        with pytest.raises(SettingsError, match=f"^{setting} needs a client for Redis: pip inst"):
            shared_limits._ledger(RedisUrl("redis://10.0.0.1/0"), "web", setting)


@pytest.mark.parametrize("setting", ["SUITE_RATE_LEDGER", "SUITE_REDIS_URL"])
def test_the_setting_is_named_of_a_ledger_that_is_not_there(
    setting: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is waited for, and may be one that nobody starts; agents are refused without theirs."""

    async def quiet() -> None:
        """Nothing is asked of it."""

    async def test(ledger: RedisLedger) -> None:
        leases = SimpleNamespace(permits=SimpleNamespace())
        here: Any = SimpleNamespace(
            _ledger=ledger, _process="0" * 15 + "1", run=quiet,
            gate=object(), _crawl=SimpleNamespace(frontier=SimpleNamespace(leases=leases)),
            addresses=None if setting == "SUITE_RATE_LEDGER" else object(),
        )  # fmt: skip
        await SharedLimits.open(here, here)
        await here._running
        await ledger.close()

    url = f"redis://:secret@127.0.0.1:{free_port()}/1"
    asyncio.run(test(RedisLedger(url, "web")))
    said = caplog.text
    assert ("SUITE_RATE_LEDGER: Redis at 127.0.0.1:" in said) == (setting == "SUITE_RATE_LEDGER")
    assert "secret" not in said


def test_what_becomes_of_what_cannot_travel_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Once for hosts of others, once for our own."""
    crawler = get_crawler()
    crawler.spider = crawler._create_spider("here")
    crawler._apply_settings()
    here = Translator(
        crawler, RequestCodec(crawler.spider), broad=False
    )
    here.owner_elsewhere = lambda entry: "b" if entry.host == "b.test" else ""
    with caplog.at_level(logging.WARNING):
        for host in ("b.test", "a.test", "b.test", "a.test"):
            request = Request(f"http://{host}/", callback=lambda response: None)
            assert here.entry(request, here.identity(request)).volatile
    first, second = [record.getMessage() for record in caplog.records]
    assert "http://b.test/" in first
    assert "belongs to the agent b and cannot travel: it has failed (elsewhere)" in first
    assert "http://a.test/" in second
    assert "kept in memory" in second
