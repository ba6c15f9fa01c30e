"""One Redis server: scripts, time-outs, errors of one line, names of keys. Loads without redis-py.

No call is repeated: an unanswered script may have run. Scripts lie in ``lua/``; each is atomic.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from importlib.resources import files
from os.path import commonprefix
from typing import Any, ClassVar, Final, TypeVar
from urllib.parse import urlsplit

from scrapy_spider_suite.errors import RegistryError, SettingsError

try:
    from redis import exceptions
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
except ImportError:  # an extra: `require_redis` says so
    HAS_REDIS = False
else:
    HAS_REDIS = True


def _read(name: str) -> str:
    return (files(__package__) / "lua" / f"{name}.lua").read_text(encoding="utf-8")


DURABLE: Final = "suite:durable"  # in a server that loses nothing when it restarts: see world.lua
WORLD: Final = _read("world")  # where scripts get the time from; text, so that no caller can set it


def load_script(*names: str) -> str:
    """Return one script of the files *names*: shared code first."""
    return "".join(WORLD if name == "world" else _read(name) for name in names)


T = TypeVar("T")

# Connection errors beside the client's own; the last is uvloop's, for a dead idle connection.
LOST: Final = (OSError, TimeoutError, RuntimeError)
_PASSWORD: Final = re.compile(r"\b(NOAUTH|WRONGPASS|Authentication|password)\b", re.IGNORECASE)
_SAYS: Final = (
    ("memory", re.compile(r"\bOOM\b|> 'maxmemory'"), "is out of memory: raise its maxmemory"),
    ("type", re.compile(r"\bWRONGTYPE\b"), "holds a value of another type under our name"),
    ("damaged", re.compile(r"suite-damaged (\S+)"), "holds what the suite did not write"),
)


def server_place(url: str) -> str:
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.hostname or ''}{port}{parts.path}"


def require_redis(user: str) -> None:
    """Raise `SettingsError`, which names the setting *user*, without redis-py."""
    if not HAS_REDIS:
        why = "needs a client for Redis: pip install 'scrapy-spider-suite[redis]'"
        raise SettingsError(f"{user} {why}")


def connect(url: str, timeout: float) -> Any:
    """Return a client for *url* with a time-out and without retries. Raises `ValueError`."""
    return Redis.from_url(
        url, socket_timeout=timeout, socket_connect_timeout=timeout, retry=Retry(NoBackoff(), 0),
        protocol=2,
    )  # fmt: skip


def require_client(url: str, shown: object) -> None:
    """Raise `SettingsError`, which shows *shown*, if no client can be made for *url*."""
    try:
        connect(url, 1.0).connection_pool.make_connection()  # which does not connect yet
    except Exception as error:  # whatever redis-py finds wrong with it
        raise SettingsError(f"no connection can be made to {shown}: {error}") from None


def redis_error(error: Exception, where: str, key: str = "") -> RegistryError:
    """Return *error* as `RegistryError`; *key* is named if the text names none."""
    text = " ".join(str(error).split()) or "no answer in time"
    # For redis-py a wrong password is a connection that failed; it will be wrong the next time too.
    away = exceptions.ConnectionError, exceptions.TimeoutError, *LOST
    if isinstance(error, away) and not _PASSWORD.search(text):
        return RegistryError(f"Redis at {where} is away: {text}", "away")
    for kind, sign, meaning in _SAYS:
        if found := sign.search(text):
            named = found[1] if found.groups() else key if kind == "type" else ""
            text = f"Redis at {where} {meaning}" + (f" ({named})" if named else "")
            return RegistryError(text, kind)
    return RegistryError(f"Redis at {where} refuses: {text}", "refused")


def end_if_cancelled() -> None:
    """Raise `CancelledError` if the task was cancelled: redis-py may swallow it."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class RedisServer:
    """Runs scripts in the Redis at *url*: ``redis://``, ``rediss://`` or ``unix://``.

    *timeout*: seconds of a call, connecting included. Raises `ValueError`: invalid URL.
    """

    def __init__(self, url: str, timeout: float) -> None:
        self.where = server_place(url)
        self._timeout = timeout
        self._client = connect(url, timeout)

    async def run(self, script: str, keys: Sequence[str], *arguments: str | bytes) -> list[Any]:
        """Run *script*. Raises `RegistryError`; it may have run all the same."""
        shared = commonprefix(keys)  # noqa: RUF071 - of characters
        asked: Awaitable[list[Any]] = self._client.register_script(script)(keys, arguments)
        return await self._asked(asked, shared)

    async def evicting(self) -> str:
        """Return a complaint if a full server evicts keys, or "". Raises `RegistryError`."""
        memory: dict[str, Any] = await self._asked(self._client.info("memory"))
        policy = memory.get("maxmemory_policy", "noeviction")
        if not memory.get("maxmemory", 0) or policy == "noeviction":
            return ""
        return (f"Redis at {self.where} throws keys away when it is full: its maxmemory-policy is "
                f"{policy}, expected noeviction")  # fmt: skip

    async def names(self, pattern: str) -> list[str]:
        """Return the keys that match the glob *pattern*. Raises `RegistryError`."""
        async def scan() -> list[str]:
            keys = self._client.scan_iter(match=pattern, count=10_000)
            return [key.decode("utf-8", "replace") async for key in keys]

        return await self._asked(scan())

    async def agreed(self, key: str, value: str) -> str:
        """Return the value of *key*, set to *value* if missing. Raises `RegistryError`."""
        await self._asked(self._client.set(key, value, nx=True), key)
        found = await self._asked(self._client.get(key), key)
        return value if found is None else found.decode("utf-8", "replace")

    async def close(self) -> None:
        """Close the connections; never raises."""
        with suppress(exceptions.RedisError, *LOST):
            async with asyncio.timeout(self._timeout):
                await self._client.aclose()

    async def _asked(self, answer: Awaitable[T], key: str = "") -> T:
        try:
            async with asyncio.timeout(self._timeout):
                found = await answer
        except (exceptions.RedisError, *LOST) as error:
            end_if_cancelled()
            raise redis_error(error, self.where, key) from error
        end_if_cancelled()
        return found


_CRAWL: Final = re.compile(r"[\w.:-]{1,100}")


def check_crawl_name(name: str) -> None:
    """Raise `ValueError` if *name* cannot stand in the keys of a crawl."""
    if not _CRAWL.fullmatch(name):
        raise ValueError(f"{name!r} is no name for a crawl: 1 to 100 of letters, _ . : -")


class RedisKeys:
    """The names of all keys of *crawl*. Raises `ValueError` for an invalid name."""

    FIRST: ClassVar = "suite:{*}:crawl"  # glob of the first key of every crawl

    def __init__(self, crawl: str) -> None:
        check_crawl_name(crawl)
        self.prefix = f"suite:{{{crawl}}}:"
        self.crawl, self.members = f"{self.prefix}crawl", f"{self.prefix}members"
        self.facts, self.holders = f"{self.prefix}facts", f"{self.prefix}holders"
        self.secret = f"{self.prefix}secret"

    def inbox(self, agent: str) -> str:
        return f"{self.prefix}inbox:{agent}"

    def receipts(self, agent: str) -> str:
        return f"{self.prefix}receipts:{agent}"

    @classmethod
    def crawl_of(cls, key: str) -> str:
        """Return the crawl whose first key is *key*; "" if none."""
        before, after = cls.FIRST.split("*")
        name = key.removeprefix(before).removesuffix(after)
        return name if _CRAWL.fullmatch(name) and RedisKeys(name).crawl == key else ""
