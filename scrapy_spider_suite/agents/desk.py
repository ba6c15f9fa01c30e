"""The keys of a crawl in Redis, and the scripts that work on them: what everybody asks through."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from scrapy_spider_suite.agents import scripts
from scrapy_spider_suite.agents.members import SILENCE, Answer, Tokens, decode_answer, decode_units
from scrapy_spider_suite.agents.server import Server
from scrapy_spider_suite.errors import RegistryError
from scrapy_spider_suite.frontier.entries import UNITS

TIMEOUT: Final = 5.0
"""Seconds that a call may take."""

_TYPES: Final = {"crawl": "string", "members": "hash", "facts": "hash", "holders": "string"}
_MORE: Final = {"addresses": "hash", "address-eras": "hash"}
"""Keys that scripts name by themselves."""
_CRAWL: Final = re.compile(r"[\w.:-]{1,100}")
EVERY: Final = "suite:{*}:crawl"
"""What the first key of every crawl fits."""


def prefix_of(crawl: str) -> str:
    """What the keys of *crawl* begin with. Raises `ValueError`: no crawl can have that name."""
    if not _CRAWL.fullmatch(crawl):
        raise ValueError(f"{crawl!r} is no name for a crawl: 1 to 100 of letters, _ . : -")
    return f"suite:{{{crawl}}}:"


def crawl_of(key: str) -> str:
    """Whose first key *key* is; "" if it is none."""
    before, after = EVERY.split("*")
    name = key.removeprefix(before).removesuffix(after)
    return name if _CRAWL.fullmatch(name) and f"{prefix_of(name)}crawl" == key else ""


class Desk:
    """Asks the scripts of one crawl: what `registry.Registry` and `office.Office` have in common.

    Raises:
        ValueError: there is no such URL, or a crawl cannot have that name.
    """

    def __init__(self, url: str, crawl: str, *, timeout: float = TIMEOUT) -> None:
        prefix = prefix_of(crawl)
        self._server = Server(url, timeout)
        self._scripts = scripts.load()
        self._keys = [f"{prefix}{name}" for name in _TYPES]
        self._types = {f"{prefix}{name}": type_ for name, type_ in {**_TYPES, **_MORE}.items()}
        self._secret = f"{prefix}secret"

    async def close(self) -> None:
        """Close its connections; never raises."""
        await self._server.close()

    async def _ask(
        self, script: str, given: dict[str, Any], more: bytes = b""
    ) -> tuple[Answer, bytes]:
        """What *script* answers. Raises `RegistryError`."""
        given["silence"] = round(SILENCE * 1000)
        text = msgspec.json.encode(given)
        try:
            found = await self._server.run(self._scripts[script], self._keys, text, more)
        except RegistryError as error:
            if error.kind == "type":
                await self._name_key(error)
            raise
        try:
            return decode_answer(found[0]), found[1]
        except (ValueError, TypeError, IndexError) as error:
            raise self._damaged(error) from error

    def _damaged(self, why: object) -> RegistryError:
        text = f"Redis at {self._server.where} answers what the suite did not write: {why}"
        return RegistryError(text, "damaged")

    async def _name_key(self, error: RegistryError) -> None:
        """Raise *error* with the key that is meant."""
        found = await self._server.types([*self._types])
        for (key, expected), type_ in zip(self._types.items(), found, strict=True):
            if type_ not in (expected, "none"):
                text = f"Redis at {self._server.where} holds a {type_} under {key}, which is ours"
                raise RegistryError(text, "type") from error

    def _tokens(self, answer: Answer, data: bytes) -> Tokens:
        if len(data) != 2 * UNITS:
            raise self._damaged(f"{len(data)} bytes of holders")
        return Tokens(
            decode_units(data), answer.now / 1000, answer.epoch, answer.era, answer.moves,
            answer.claims / 1000,
        )  # fmt: skip
