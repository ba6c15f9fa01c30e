"""Settings of scrapy-redis, which need not be installed: the server, the key of pushed seeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from scrapy import Spider
from scrapy.settings import BaseSettings

from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.settings import values
from scrapy_spider_suite.settings.project import parse_value

_PLAIN_CLIENTS = frozenset({"Redis", "StrictRedis"})
_MOST = 1_000  # messages at once


def redis_server(settings: BaseSettings) -> values.RedisUrl:
    """Return the server in the settings of scrapy-redis; ``redis://localhost:6379`` by default.

    Raises `SettingsError`: a URL cannot express them.
    """
    params: dict[str, Any] = {
        name: value for name, value in settings.getdict("REDIS_PARAMS").items() if value is not None
    }
    for name in ("HOST", "PORT", "DB"):
        params[name.lower()] = settings[f"REDIS_{name}"] or params.get(name.lower())
    _refuse_clients(params)
    host, port = params.pop("host") or "localhost", params.pop("port") or 6379
    database, path = params.pop("db"), params.pop("unix_socket_path", None)
    scheme = "rediss" if params.pop("ssl", False) else "redis"
    url = params.pop("url", None)
    url = settings["REDIS_URL"] or url
    if not url:
        url = f"{scheme}://{f'[{host}]' if ':' in str(host) else host}:{port}"
        url = f"unix://{quote(path)}" if path else url
    try:
        found: values.RedisUrl = values.redis_url.parse(str(url))
    except values.ValueDetailError as error:
        raise SettingsError(f"REDIS_URL: {error}") from None
    parts = urlsplit(found.url)
    if database and (parts.scheme == "unix" or not parts.path.strip("/")):
        params["db"] = database
    return values.RedisUrl(values.add_url_parameters(found.url, params))


def _refuse_clients(params: dict[str, Any]) -> None:
    # Clients of another kind (clusters, sentinels), and parameters that are objects.
    client = params.get("redis_cls", "Redis")
    name = client.rpartition(".")[2] if isinstance(client, str) else client.__name__
    if name not in _PLAIN_CLIENTS:
        raise SettingsError(
            f"REDIS_PARAMS['redis_cls'] = {name}: the suite connects by itself, with redis.asyncio "
            "alone; name the server in SUITE_REDIS_URL"
        )
    for key, value in params.items():
        if key not in values.CLIENT_PARAMETERS and not isinstance(value, str | int | float | None):
            raise SettingsError(
                f"REDIS_PARAMS[{key!r}] is a {type(value).__name__}, which a URL cannot say; name "
                "the server in SUITE_REDIS_URL"
            )


@dataclass(frozen=True, slots=True)
class PushedSeedsKey:
    """The key in Redis that the seeds of a spider are pushed to, and how they are read."""

    key: str
    kind: Literal["list", "set", "zset"]
    batch: int  # most messages that are read at once
    encoding: str
    decoded: bool  # the project's code gets text, not bytes
    max_idle: float  # seconds without work after which the crawl ends; 0 never ends it
    requests: str  # the key of the queue of scrapy-redis's scheduler

    @classmethod
    def for_spider(
        cls, settings: BaseSettings, spider: Spider | type[Spider]
    ) -> PushedSeedsKey | None:
        """Return the key of *spider*; None for a spider without a `redis_key`.

        Raises `SettingsError`.
        """
        if not hasattr(spider, "redis_key"):
            return None
        kind: Literal["list", "set", "zset"] = "list"
        if settings.getbool("REDIS_START_URLS_AS_SET"):
            kind = "set"
        elif settings.getbool("REDIS_START_URLS_AS_ZSET"):
            kind = "zset"
        asked = getattr(spider, "redis_key", None) or settings["REDIS_START_URLS_KEY"]
        batch = getattr(spider, "redis_batch_size", None) or settings["REDIS_START_URLS_BATCH_SIZE"]
        idle = getattr(spider, "max_idle_time", None)
        if idle is None:
            idle = settings["MAX_IDLE_TIME_BEFORE_CLOSE"] or 0
        params = settings.getdict("REDIS_PARAMS")
        return cls(
            key=_named(asked or "%(name)s:start_urls", spider, "REDIS_START_URLS_KEY"),
            kind=kind,
            batch=min(_MOST, parse_value(
                "REDIS_START_URLS_BATCH_SIZE", values.integer(1),
                batch or settings.getint("CONCURRENT_REQUESTS") or _MOST,
            )),
            encoding=_encoding(getattr(spider, "redis_encoding", None), settings),
            decoded=settings.getbool("REDIS_DECODE_RESPONSES")
            or bool(params.get("decode_responses"))
            or "decode_responses=" in str(settings["REDIS_URL"]),
            max_idle=parse_value("MAX_IDLE_TIME_BEFORE_CLOSE", values.duration(), idle),
            requests=_named(
                settings["SCHEDULER_QUEUE_KEY"] or "%(spider)s:requests", spider,
                "SCHEDULER_QUEUE_KEY",
            ),
        )  # fmt: skip


def _named(pattern: Any, spider: Spider | type[Spider], setting: str) -> str:
    name = str(getattr(spider, "name", ""))
    try:
        key = str(pattern % {"name": name, "spider": name}) if "%(" in pattern else str(pattern)
    except (KeyError, TypeError, ValueError):
        key = ""
    if not key.strip():
        raise SettingsError.of(setting, pattern, "a key such as '%(name)s:start_urls'")
    return key


def _encoding(asked: str | None, settings: BaseSettings) -> str:
    encoding = str(asked or settings["REDIS_ENCODING"] or "utf-8")
    try:
        "".encode(encoding)
    except LookupError:
        raise SettingsError.of("REDIS_ENCODING", encoding, "an encoding of Python's") from None
    return encoding
