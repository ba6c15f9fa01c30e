"""What is known of the hosts of a slot, on its way from fetcher to fetcher.

Records, robots.txt, cookies of the registered domain, traps: what is handed over, but no URL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from scrapy_spider_suite.cluster.handover.dump import HostDump
from scrapy_spider_suite.cluster.handover.handover_context import HandoverContext, Steps
from scrapy_spider_suite.cluster.handover.handover_file import Item, ItemKind, UnitSet
from scrapy_spider_suite.cluster.handover.load import ItemMerge
from scrapy_spider_suite.cluster.run_blobs import pack_hosts
from scrapy_spider_suite.crawl.robots import row_key
from scrapy_spider_suite.errors import BlobError
from scrapy_spider_suite.frontier.entries import slot_of
from scrapy_spider_suite.runtime.event_loop import TimeSlices

_SCHEMES: Final = ("http", "https")
_PORTION: Final = 100  # items of a step


class _HostsDump(HostDump):
    """A dump without URLs, and without a file. *parks*: its hosts leave memory."""

    def __init__(self, context: HandoverContext, units: UnitSet, *, parks: bool = True) -> None:
        super().__init__(context, units)
        self._parks = parks

    def items(self) -> Iterator[Item | bool]:
        all_jars, slot = self._jars(), -1
        for host in self.hosts():
            if host is None:
                yield False
                continue
            if slot_of(host) != slot:  # each slot has the cookies of its domains
                slot, jars = slot_of(host), dict(all_jars)
            while self._parks and not self.park(host):
                yield True
            yield [ItemKind.HOST, host, self._records.current(host).to_bytes()]
            for rows in self._kept(host):
                yield from ([ItemKind.KEPT, host, *row] for row in rows)
                yield False
            for key in (row_key(f"{scheme}://{host}") for scheme in _SCHEMES):
                value = self._store.kv("robots").get(key)
                if value is not None:
                    yield [ItemKind.KEPT, host, "robots", key, value]
            yield from self._cookie_items(jars, host)

    def _forget_seen(self) -> None:
        """Owners know what was seen: URLs of runs are not looked up here."""

    def _finish(self, file_id: str) -> None:
        """There is no file."""


class SlotHosts:
    """Saves, loads and forgets the hosts of slots."""

    def __init__(self, context: HandoverContext) -> None:
        self._context = context

    def _units(self, slots: Sequence[int]) -> UnitSet:
        return UnitSet(self._context.ownership.assignment, slots)

    async def save(self, slots: Sequence[int], *, parks: bool = True) -> list[bytes]:
        """The hosts of each of *slots*; with *parks* once none is visited, and nothing of them is
        in memory then.
        """
        saved: dict[int, list[Item]] = {}

        def steps() -> Steps:
            saved.update((slot, []) for slot in slots)
            for item in _HostsDump(self._context, self._units(slots), parks=parks).items():
                if isinstance(item, bool):
                    yield item
                else:
                    saved[slot_of(item[1])].append(item)

        await self._context.run_durably(steps)
        return await asyncio.to_thread(
            lambda: [pack_hosts(slot, items) for slot, items in saved.items()]
        )

    async def forget(self, slots: Sequence[int]) -> None:
        """Forget the hosts of *slots*, and all URLs of them."""
        dump = _HostsDump(self._context, self._units(slots))
        await self._context.run_durably(lambda: dump.forget(""))

    async def load(self, saved: Mapping[int, list[Item]]) -> dict[int, BlobError]:
        """Take over the unpacked hosts of slots; the errors of slots of which nothing was taken."""
        merge = ItemMerge(self._context, self._units(list(saved)), counted=True)
        wrong, valid, turns = dict[int, BlobError](), list[Item](), TimeSlices()
        for slot, items in saved.items():
            try:
                for item in items:
                    _check(merge, slot, item)
                    await turns.yield_turn()
            except BlobError as error:
                wrong[slot] = error
            else:
                valid += items
        left = enumerate(valid, 1)  # a step that is tried again goes on behind what was taken

        def take() -> Steps:
            for count, item in left:
                merge.apply(*item)
                if not count % _PORTION:
                    yield False

        if valid:
            await self._context.run_durably(take)
        return wrong


def _check(merge: ItemMerge, slot: int, item: Item) -> None:
    try:
        kind, host, *_ = item
        if kind not in (ItemKind.HOST, ItemKind.KEPT):
            raise ValueError(f"no item has the kind {kind!r}")
        merge.check(*item)
        if slot_of(host) != slot:
            raise ValueError(f"{host[:100]!r} is a host of another slot")
    except Exception as error:  # damaged data may raise anything
        why = " ".join(str(error).split())[:200]
        raise BlobError(f"the hosts of slot {slot} cannot be read: {why}", damaged=True) from error
