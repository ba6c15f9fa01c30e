"""Projects of scrapy-redis: they move over by settings alone, and seeds are pushed as before."""

from __future__ import annotations

import json
import logging
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scrapy import signals
from support.crawls import ADDON, start
from support.inprocess_crawls import QUIET, Crawling
from support.pushed_spiders import PROJECT, Broad, Following, Pages
from support.redis_servers import RedisServer
from support.websites import Answer, Site, Visit, links

from scrapy_spider_suite.cluster.pushed_seeds import LONGEST, PushedList, PushedSeeds
from scrapy_spider_suite.crawl.context import get_crawl
from scrapy_spider_suite.errors import RegistryError, SettingsError
from scrapy_spider_suite.operate.executors.running_crawl import change_setting

pytestmark = [
    pytest.mark.filterwarnings("ignore::scrapy.exceptions.ScrapyDeprecationWarning"),
    # redis-py, of what scrapy-redis gives it.
    pytest.mark.filterwarnings("ignore:.*retry_on_timeout:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server that forgets."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis(server: RedisServer) -> Iterator[Any]:
    """A client of an empty server."""
    server.flush()
    with server.client() as client:
        yield client


WRONG_META = (b'{"depth": "deep"}', b'{"depth": null}', b'{"suite_hops": [1]}')
"""What no part of Scrapy looks at before the request is queued."""


def nested(url: str) -> bytes:
    """A message of JSON that is deeper than any reader goes."""
    return b'{"url": "%s", "meta": %s}' % (url.encode(), b"[" * 100_000 + b"]" * 100_000)


def test_a_project_moves_over(
    crawl: Crawling, site: Site, server: RedisServer, redis: Any, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Its seeds are taken while it runs, its items pushed; what is no seed is data, and named.

    The last one comes while it runs; the Redis is that of its start.
    """
    site.pages = {f"/{name}": "" for name in ("plain", "form", "later", "odd")}
    form = {"url": f"{site.url}/form", "meta": {"job": "123"}, "method": "post", "q": "a b"}
    odd = {"url": f"{site.url}/odd", "meta": {"job": "\ud800", "n": 1 << 80, "f": float("nan")}}
    bad = [
        b"\xff\xfe\x00", b"17", b"no url", b"{}x", b'"text"', b'{"url": 5}', b"file:///etc/passwd",
        pickle.dumps(print), nested(site.url), b"http://%s" % (b"a" * (LONGEST + 5)),
        b'{"url": "%s", "method": "GET / HTTP/1.1\\r\\nX:"}' % site.url.encode(),
        *(b'{"url": "%s/x", "meta": %s}' % (site.url.encode(), meta) for meta in WRONG_META),
    ]  # fmt: skip
    redis.rpush("pages:start_urls", *bad, f"{site.url}/plain", json.dumps(form), json.dumps(odd))
    redis.zadd("pages:requests", {pickle.dumps(print): 1.0})

    def scraped(item: dict[str, Any], spider: Any) -> None:
        if item["url"].endswith("/form"):
            redis.lpush("pages:start_urls", f"{site.url}/later")
            with pytest.raises(SettingsError, match="holds from a start"):
                change_setting(get_crawl(spider.crawler), "SUITE_REDIS_URL", f"{server.url}?db=1")

    with caplog.at_level(logging.INFO):
        crawled = crawl(
            Pages, watch=lambda c: c.signals.connect(scraped, signals.item_scraped, weak=False),
            REDIS_URL=server.url, JOBDIR=str(tmp_path), **PROJECT,
        )  # fmt: skip
    assert crawled.reason == "finished"
    items = [json.loads(item) for item in redis.lrange("pages:items", 0, -1)]
    found = {item["url"].rpartition("/")[2]: item for item in items}
    assert set(found) == {"plain", "form", "later", "odd"}
    assert found["form"]["job"] == "123"
    assert {item["spider"] for item in items} == {"pages"}
    assert (found["form"]["method"], found["form"]["body"]) == ("POST", "q=a+b")
    assert crawled.stat("suite/redis/bad") == len(bad)
    assert crawled.stat("suite/redis/taken") == len(bad) + 4
    assert sorted(redis.keys()) == [b"pages:items", b"pages:requests"]
    for name in ("SCHEDULER", "DUPEFILTER_CLASS", "STATS_CLASS", "SCHEDULER_QUEUE_CLASS"):
        assert sum(f"{name} = " in message for message in caplog.messages) == 1, name
    assert any("pages:requests holds 1 request" in message for message in caplog.messages)
    assert not any(record.exc_info for record in caplog.records)


def test_sets_and_spiders_of_other_kinds(
    crawl: Crawling, site: Site, server: RedisServer, redis: Any
) -> None:
    """A RedisCrawlSpider, its key and domains as in the examples; a BroadSpider; both sets."""
    site.pages = {"/": links("/a", "/b"), "/a": links("/"), "/b": ""}
    redis.sadd("following:here", f"{site.url}/")
    settings = {
        **PROJECT, "ITEM_PIPELINES": {}, "SUITE_REDIS_URL": server.url, "REDIS_HOST": "no.example",
    }  # fmt: skip
    crawled = crawl(
        Following, REDIS_START_URLS_AS_SET=True, arguments={"domain": site.host}, **settings
    )
    assert crawled.item_set() == {repr([("url", f"{site.url}/{name}")]) for name in "ab"}

    redis.zadd("broad:start_urls", {f"{site.url}/a #tag=x": 1, f'{{"url": "{site.url}/b"}}': 2})
    broad = crawl(Broad, REDIS_START_URLS_AS_ZSET=True, SUITE_IP_DELAY=0, **settings)
    assert broad.item_set() == crawled.item_set() | {repr([("url", f"{site.url}/")])}
    assert broad.stat("suite/redis/bad") == 0
    assert redis.keys() == []


def test_a_kill_loses_none(
    crawl: Crawling, site: Site, server: RedisServer, redis: Any, tmp_path: Path
) -> None:
    """Killed among its seeds, in Redis and in the job, a crawl goes on with all of them."""
    paths = [f"/{number}" for number in range(24)]
    killed = threading.Event()

    def page(visit: Visit) -> Answer:
        """However fast the machine is, some are left."""
        if len(site.visits) >= 9:
            killed.wait(60)
        return Answer(b"x")

    site.pages = dict.fromkeys(paths, page)
    redis.rpush("pages:start_urls", *(site.url + path for path in paths))
    settings = {
        **PROJECT, "REDIS_URL": server.url, "JOBDIR": str(tmp_path / "job"),
        "REDIS_START_URLS_BATCH_SIZE": 7, "CONCURRENT_REQUESTS": 4,
    }  # fmt: skip
    settings = {"ADDONS": ADDON, **QUIET, **settings}
    process = start("support.pushed_spiders.Pages", settings, tmp_path)
    while len(site.visits) < 9 and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.wait()
    before = {visit.path for visit in site.visits}
    killed.set()
    assert 9 <= len(before) < len(paths), (tmp_path / "log").read_text()
    crawled = crawl(Pages, **settings)
    assert crawled.reason == "finished"
    assert {visit.path for visit in site.visits} == set(paths)
    assert crawled.stat("suite/job/done") == len(paths)  # of both runs: each was asked for once
    assert redis.keys("pages:start_urls*") == []


def test_what_was_taken_comes_once(
    crawl: Crawling, site: Site, server: RedisServer, redis: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A batch of which the job has a part, and Redis still all, is taken up behind that part."""
    site.pages = {"/a": "", "/b": "", "/c": ""}
    redis.rpush("pages:start_urls", f"{site.url}/a", f"{site.url}/b")
    settings = {**PROJECT, "REDIS_URL": server.url, "JOBDIR": str(tmp_path)}

    async def breaks(*_: object) -> None:
        raise RegistryError("Redis is away: pulled out", "away")

    with monkeypatch.context() as patch:
        patch.setattr(PushedList, "remove", breaks)
        assert crawl(Pages, CLOSESPIDER_ITEMCOUNT=2, **settings).reason == "closespider_itemcount"
    (taken,) = redis.keys("pages:start_urls:taken:*")
    redis.rpush(taken, f"{site.url}/c")
    assert crawl(Pages, **settings).reason == "finished"
    assert sorted(visit.path for visit in site.visits) == ["/a", "/b", "/c"]
    assert redis.keys("pages:start_urls*") == []


def test_redis_is_away_for_a_while(
    crawl: Crawling, site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The crawl goes on with what it has, says so once, and catches up; what was pushed is no way
    to private addresses."""
    site.pages = {"/mine": "", "/theirs": ""}
    with RedisServer(tmp_path / "redis", tcp=True) as away:
        away.kill()
        looks, came, back = 0, False, False

        def scraped(item: dict[str, Any]) -> None:
            nonlocal came
            came = True

        def room(_: PushedSeeds) -> bool:
            """There is none at the third and fourth look, which do not ask Redis."""
            nonlocal looks, back
            looks += 1
            if looks == 1:
                raise KeyError("what nobody foresaw")
            if came and looks > 5 and not back:
                back = True
                away.start()
                with away.client() as client:
                    client.rpush("pages:start_urls", f"{site.local}/no", f"{site.url}/theirs")
            return looks not in (3, 4)

        monkeypatch.setattr(PushedSeeds, "_has_room", property(room))
        for name in ("_LOOK", "_AWAY"):
            monkeypatch.setattr(f"scrapy_spider_suite.cluster.pushed_seeds.{name}", 0.05)
        settings = {
            **PROJECT, "SUITE_SEEDS": [f"{site.url}/mine"], "ITEM_PIPELINES": {},
            "REDIS_HOST": "127.0.0.1", "REDIS_PORT": int(away.url.rpartition(":")[2]),
        }  # fmt: skip
        del settings["SUITE_ALLOW_PRIVATE_ADDRESSES"]
        with caplog.at_level(logging.INFO):
            crawled = crawl(
                Pages, **settings,
                watch=lambda c: c.signals.connect(scraped, signals.item_scraped, weak=False),
            )  # fmt: skip
    assert [visit.path for visit in site.visits] == ["/mine", "/theirs"]
    assert crawled.stat("suite/redis/away") == 1
    assert sum("Redis is back" in message for message in caplog.messages) == 1
    assert "what nobody foresaw" in caplog.text
