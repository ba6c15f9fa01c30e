"""What is known of the hosts of a slot, on its way from fetcher to fetcher: as a hand-over file.

Records, robots.txt, cookies of the registered domain, traps: what is handed over, but no URL.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from scrapy_spider_suite.cluster.handover.dump import DUMPED, HostDump
from scrapy_spider_suite.cluster.handover.handover_context import HandoverContext
from scrapy_spider_suite.cluster.handover.handover_file import (
    HandoverLabel,
    Item,
    ItemKind,
    UnitSet,
    pack_units,
    read_label,
)
from scrapy_spider_suite.cluster.handover.load import HostLoad
from scrapy_spider_suite.crawl.robots import row_key
from scrapy_spider_suite.errors import HandoverFileError

_ANYBODY: Final = "any"  # the receiver: whichever fetcher gets the slot
_SCHEMES: Final = ("http", "https")


class _HostsDump(HostDump):
    """A dump without URLs. *parks*: its hosts leave memory."""

    def __init__(self, context: HandoverContext, units: UnitSet, *, parks: bool = True) -> None:
        super().__init__(context, units)
        self._parks = parks

    def _items(self) -> Iterator[Item | bool]:
        jars = self._jars()
        for host in self.hosts():
            if host is None:
                yield False
                continue
            while self._parks and not self.park(host):
                yield True
            yield [ItemKind.HOST, host, self._records.current(host).to_bytes()]
            for rows in self._kept(host):
                yield from ([ItemKind.KEPT, host, *row] for row in rows)
            for key in (row_key(f"{scheme}://{host}") for scheme in _SCHEMES):
                value = self._store.kv("robots").get(key)
                if value is not None:
                    yield [ItemKind.KEPT, host, "robots", key, value]
            yield from self._cookie_items(jars, host)

    def _forget_seen(self) -> None:
        """Owners know what was seen: URLs of runs are not looked up here."""


class SlotHosts:
    """Saves, loads and forgets the hosts of a slot, by files in *folder*; *who*: crawl, agent."""

    def __init__(self, context: HandoverContext, folder: Path, who: tuple[str, str]) -> None:
        self._context, self._folder = context, folder
        self._crawl, self._agent = who
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.iterdir():
            left.unlink()

    def _units(self, slot: int) -> UnitSet:
        return UnitSet(self._context.ownership.assignment, [slot])

    async def save(self, slot: int, *, parks: bool = True) -> bytes:
        """The hosts of *slot*; with *parks* once none is visited, and nothing of them is in memory
        then.
        """
        units, id = self._units(slot), secrets.token_hex(8)
        path = self._folder / id
        label = HandoverLabel(id, self._crawl, self._agent, _ANYBODY, pack_units(units.numbers))
        dump = _HostsDump(self._context, units, parks=parks)
        await self._context.run_durably(lambda: dump.pack(path, label))
        try:
            return path.read_bytes()
        finally:
            path.unlink()
            self._context.kv.delete(DUMPED + id.encode())

    async def forget(self, slot: int) -> None:
        """Forget the hosts of *slot*, and all URLs of them."""
        dump = _HostsDump(self._context, self._units(slot))
        await self._context.run_durably(lambda: dump.forget(""))

    async def load(self, slot: int, data: bytes) -> None:
        """Take over what `save` saved. Raises `HandoverFileError`: nothing was changed."""
        path = self._folder / secrets.token_hex(8)
        path.write_bytes(data)
        try:
            label = read_label(path)
            if label.crawl != self._crawl:
                raise HandoverFileError(f"the hosts of slot {slot} are of the crawl {label.crawl}")
            load = HostLoad(self._context, self._units(slot), path, label, counted=True)
            await self._context.run_durably(load.merge)
            load.forget()
        finally:
            path.unlink()
