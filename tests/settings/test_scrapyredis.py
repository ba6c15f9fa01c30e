"""The settings of scrapy-redis: where Redis is, where seeds are, and what becomes of the others."""

from __future__ import annotations

from typing import Any

import pytest
from redis import StrictRedis
from redis.asyncio import Redis
from scrapy import Spider
from scrapy.settings import Settings

from scrapy_spider_suite.addon import REPLACED_CLASSES, check_pushed_seeds, replace_scrapy_redis
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.settings.declarations import plain_value
from scrapy_spider_suite.settings.scrapy_redis import PushedSeedsKey, redis_server
from scrapy_spider_suite.settings.suite import SuiteSettings
from scrapy_spider_suite.settings.values import RedisUrl


class Pushed(Spider):
    """As scrapy-redis's, which is not needed for it."""

    name = "pushed"
    redis_key: str | None = None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"host": "localhost", "port": 6379}),
        ({"REDIS_HOST": "a.example", "REDIS_PORT": "7000", "REDIS_DB": 3},
         {"host": "a.example", "port": 7000, "db": 3}),
        ({"REDIS_PARAMS": {"host": "::1", "password": "p@ss:/?", "socket_timeout": 30,
                           "redis_cls": StrictRedis, "db": None}},
         {"host": "::1", "port": 6379, "password": "p@ss:/?"}),
        ({"REDIS_URL": "redis://me:secret@b.example/2", "REDIS_HOST": "ignored", "REDIS_DB": 5},
         {"host": "b.example", "username": "me", "password": "secret", "db": 2}),
        ({"REDIS_URL": "rediss://b.example", "REDIS_PARAMS": {"password": "x", "db": 4}},
         {"host": "b.example", "password": "x", "db": 4}),
        ({"REDIS_URL": "redis://a.example?decode_responses=True&socket_timeout=1",
          "REDIS_PARAMS": {"url": "redis://b.example", "health_check_interval": 9}},
         {"host": "a.example", "decode_responses": None, "socket_timeout": None,
          "health_check_interval": 9}),
        ({"REDIS_PARAMS": {"unix_socket_path": "/tmp/a b.sock", "db": 1}},
         {"path": "/tmp/a b.sock", "db": 1}),
    ],
)  # fmt: skip
def test_where_redis_is(given: dict[str, Any], expected: dict[str, Any]) -> None:
    """What redis-py makes of it is what scrapy-redis's own client would have been given."""
    found = Redis.from_url(redis_server(Settings(given)).url).connection_pool.connection_kwargs
    assert {name: found.get(name, 6379 if name == "port" else None) for name in expected} == (
        expected
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"REDIS_PARAMS": {"redis_cls": "redis.cluster.RedisCluster"}}, "SUITE_REDIS_URL"),
        ({"REDIS_PARAMS": {"connection_pool": object()}}, "SUITE_REDIS_URL"),
        ({"REDIS_URL": "http://me:secret@a.example"}, "expected a URL that begins with redis://"),
        ({"REDIS_URL": "redis://me:se/cret@a.example"}, "%2F"),
        ({"REDIS_URL": "redis://me:12/secret@a.example"}, "%2F"),
        ({"REDIS_URL": "redis://:12#secret@a.example:6379"}, "%23"),
    ],
)
def test_what_no_url_can_say(given: dict[str, Any], says: str) -> None:
    """Is refused, without a password in the line."""
    with pytest.raises(SettingsError, match=says) as caught:
        redis_server(Settings(given))
    assert "cret" not in str(caught.value)


def test_what_no_client_takes() -> None:
    """Is said before the crawl begins, which could take no seed."""
    for params in ({"db": "many"}, {"hots": "a.example"}):
        settings = Settings({"REDIS_PARAMS": {**params, "password": "secret"}})
        suite = SuiteSettings.from_settings(settings)
        with pytest.raises(SettingsError, match="no connection can be made to") as caught:
            check_pushed_seeds(settings, suite, Pushed)
        assert "secret" not in str(caught.value)
    check_pushed_seeds(Settings(), SuiteSettings.from_settings(Settings()), Pushed)


def test_no_password_is_kept() -> None:
    """Neither in the job nor in a table; what is no such URL is refused without it."""
    url = "redis://me:secret@a.example/0?password=secret&x=1"
    read = SuiteSettings.from_settings(Settings({"SUITE_REDIS_URL": url}))
    assert read.redis_url == RedisUrl(url)
    assert plain_value(read.redis_url) == "redis://***@a.example/0?password=***&x=1"
    assert str(RedisUrl("redis://me:se@cret@a.example")) == "redis://***@a.example"
    assert "secret" not in f"{read.as_stored()}{read.as_table()}{read!r}"
    with pytest.raises(SettingsError, match="SUITE_REDIS_URL") as caught:
        SuiteSettings.from_settings(Settings({"SUITE_REDIS_URL": "http://me:secret@a.example"}))
    assert "secret" not in str(caught.value)


def test_where_seeds_are() -> None:
    """Attributes of the spider come first, then settings, then what scrapy-redis does."""
    default = PushedSeedsKey.for_spider(Settings({"CONCURRENT_REQUESTS": 5}), Pushed)
    assert default == PushedSeedsKey(
        "pushed:start_urls", "list", 5, "utf-8", decoded=False, max_idle=0,
        requests="pushed:requests",
    )  # fmt: skip
    given = {"REDIS_START_URLS_KEY": "k:%(name)s", "REDIS_START_URLS_AS_ZSET": "1",
             "REDIS_START_URLS_BATCH_SIZE": 10**9, "MAX_IDLE_TIME_BEFORE_CLOSE": "7",
             "REDIS_ENCODING": "latin1", "REDIS_PARAMS": {"decode_responses": True}}  # fmt: skip
    assert PushedSeedsKey.for_spider(Settings(given), Pushed) == PushedSeedsKey(
        "k:pushed", "zset", 1_000, "latin1", decoded=True, max_idle=7, requests="pushed:requests"
    )
    assert PushedSeedsKey.for_spider(Settings(given), Spider) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("REDIS_START_URLS_KEY", "%(nome)s"), ("MAX_IDLE_TIME_BEFORE_CLOSE", -1),
     ("REDIS_START_URLS_BATCH_SIZE", "many"), ("REDIS_ENCODING", "klingon")],
)  # fmt: skip
def test_what_makes_no_sense(name: str, value: object) -> None:
    """Is refused by name."""
    with pytest.raises(SettingsError, match=name):
        PushedSeedsKey.for_spider(Settings({name: value}), Pushed)


def test_a_flush_contradicts_a_job() -> None:
    """And what is a project's own is left alone."""
    theirs = {"SCHEDULER": REPLACED_CLASSES["SCHEDULER"][0], "SCHEDULER_FLUSH_ON_START": True}
    replace_scrapy_redis(Settings(theirs))
    with pytest.raises(SettingsError, match="SCHEDULER_FLUSH_ON_START"):
        replace_scrapy_redis(Settings({**theirs, "JOBDIR": "job"}))
    own = Settings({**theirs, "JOBDIR": "job", "SCHEDULER": "project.Scheduler"})
    replace_scrapy_redis(own)
    assert own["SCHEDULER"] == "project.Scheduler"
