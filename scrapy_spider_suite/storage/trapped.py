"""URLs that waited for what has turned out to be a trap, or not to be there.

They fail when their turn has come, and nothing is fetched.
"""

from __future__ import annotations

from scrapy_spider_suite.frontier.entries import Entry
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.frontier.workbench import Visit, Workbench
from scrapy_spider_suite.storage.health import Health
from scrapy_spider_suite.storage.mining import Miner
from scrapy_spider_suite.storage.residents import Residents
from scrapy_spider_suite.storage.traps import Traps


class Trapped:
    """Sorts out of visits what lies in a trap."""

    def __init__(
        self, traps: Traps, miner: Miner, workbench: Workbench, residents: Residents, health: Health
    ) -> None:
        self._traps = traps
        self._miner = miner
        self._workbench = workbench
        self._residents = residents
        self._health = health

    def sort_out(self, visit: Visit, now: float, wall: float) -> bool:
        """Fail what of *visit* is not worth it; False if nothing is left, and it is over."""
        failing = [(entry, event) for entry in visit.entries if (event := self._event(entry))]
        if not failing:
            return True
        for entry, event in failing:
            visit.entries.remove(entry)
            self._health.fail(entry, event, now, wall)
        self._residents.save_touched()
        if visit.entries:
            return True
        host, fronts = visit.host, self._residents.fronts
        if host.more and not host.front:
            fronts.refill(host)
        self._workbench.cancel(visit)
        return False

    def _event(self, entry: Entry) -> Event | None:
        if self._miner.gave_up(entry):
            return Event.NOT_THERE
        return Event.TRAP if self._traps.holds(entry) else None
