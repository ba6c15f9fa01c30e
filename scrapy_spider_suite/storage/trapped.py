"""URLs that waited in what has turned out to be a trap: they fail when their turn has come."""

from __future__ import annotations

from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.frontier.workbench import Visit, Workbench
from scrapy_spider_suite.storage.health import Health
from scrapy_spider_suite.storage.residents import Residents
from scrapy_spider_suite.storage.traps import Traps


class Trapped:
    """Sorts out of visits what lies in a trap."""

    def __init__(
        self, traps: Traps, workbench: Workbench, residents: Residents, health: Health
    ) -> None:
        self._traps = traps
        self._workbench = workbench
        self._residents = residents
        self._health = health

    def sort_out(self, visit: Visit, now: float, wall: float) -> bool:
        """Fail what of *visit* lies in a trap; False if nothing is left, and it is over."""
        trapped = [entry for entry in visit.entries if self._traps.holds(entry)]
        if not trapped:
            return True
        for entry in trapped:
            visit.entries.remove(entry)
            self._health.fail(entry, Event.TRAP, now, wall)
        self._residents.save_touched()
        if visit.entries:
            return True
        host, fronts = visit.host, self._residents.fronts
        if host.more and not host.front:
            fronts.refill(host)
        self._workbench.cancel(visit)
        return False
