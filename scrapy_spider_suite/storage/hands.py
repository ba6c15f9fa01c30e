"""The parts of a frontier that a hand-over works with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from scrapy_spider_suite.crawl.queue.frontier import Rework
from scrapy_spider_suite.crawl.queue.leases import Holding
from scrapy_spider_suite.crawl.queue.traps import Grounds
from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.frontier.workbench import Workbench
from scrapy_spider_suite.store.residency import Health, Residents
from scrapy_spider_suite.store.revisit_plans import Revisits
from scrapy_spider_suite.store.url_states import Ledger

if TYPE_CHECKING:
    from scrapy_spider_suite.store.rocks_store import RocksStore


class Hands(NamedTuple):
    """See `giving` and `taking`.

    Attributes:
        sift: what `Frontier.sift` is.
        open_sieve: has the store have a sieve, where it has none; None: nobody can.
    """

    store: RocksStore
    workbench: Workbench
    residents: Residents
    ledger: Ledger
    health: Health
    holding: Holding
    revisits: Revisits
    grounds: Grounds
    rework: Rework
    let_go: Callable[[Entry, float], None]
    flush: Callable[[], None]
    sift: Callable[[float], Iterator[None]]
    open_sieve: Callable[[], None] | None = None
