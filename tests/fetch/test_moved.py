"""A host that refuses may have moved: its name is asked for anew, whatever its time to live."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dns.message
import dns.rrset
import pytest
from support.crawls import crawl, web_settings
from support.webs import FakeWebProcess

from scrapy_spider_suite.testing import FakeWebConfig
from scrapy_spider_suite.testing.fake_web import address_text

HOST = "h000000.fake.test"
NOBODY = "127.44.44.44"


@pytest.mark.parametrize("durable", [False, True])
def test_a_host_that_moved_is_found(nameserver: Any, durable: bool, tmp_path: Path) -> None:
    """The address was to hold for an hour; it refuses, and the next visit goes to the new one."""

    def moves(query: dns.message.Message) -> bytes:
        answer = dns.message.make_response(query)
        address = NOBODY if nameserver.asked.count((HOST, "A")) == 1 else address_text(0)
        answer.answer.append(dns.rrset.from_text(f"{HOST}.", 3600, "IN", "A", address))
        return answer.to_wire()

    nameserver.answer(HOST, moves)
    config = FakeWebConfig(
        hosts=1, addresses=1, pages=3, degree=4, external=0.0, redirects=0.0, robots_missing=1.0,
        seeds=1, seeds_file=tmp_path / "seeds", log=tmp_path / "arrivals",
    )  # fmt: skip
    with FakeWebProcess(config) as web:
        settings = web_settings(
            nameserver.port, SUITE_HOST_DELAY=0.2, SUITE_BACKOFF_BASE=1.5, SUITE_PROFILE="broad",
        )  # fmt: skip
        if durable:
            settings["JOBDIR"] = str(tmp_path / "job")
        end = crawl("support.spiders.Bulk", settings, tmp_path, seeds=str(config.seeds_file))
        web.stop()
        pages = {each.path for each in web.arrivals() if each.status == 200}
    assert end.reason == "finished", end.log[-3000:]
    assert len(pages) == 3
    assert nameserver.asked.count((HOST, "A")) == 2
