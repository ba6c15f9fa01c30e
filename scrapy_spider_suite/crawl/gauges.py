"""The gauges of a running crawl: stats that say how much there is, set anew once a second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_spider_suite.store.seen_transfer import Archiver

if TYPE_CHECKING:
    from scrapy_spider_suite.crawl.core import CrawlCore
    from scrapy_spider_suite.storage.statistics import FrontierStatistics


def set_gauges(
    core: CrawlCore, statistics: FrontierStatistics, archiver: Archiver | None, queued_max: int
) -> None:
    """Set those of *core*; *queued_max*: the most URLs that were queued."""
    frontier, stats = core.frontier, core.crawler.stats
    for name in ("pending", "leased", "hosts", "addresses", "unresolved"):
        stats.set_value(f"suite/frontier/{name}", getattr(statistics, name))
    for name in ("done", "failed", "filtered", "retried", "dead_hosts", "bytes"):
        stats.set_value(f"suite/job/{name}", getattr(frontier.counters, name))
    if (phases := core.overriding.policy.phases) is not None:
        phase = phases.active(core.now() + frontier.wall_offset)
        stats.set_value("suite/frontier/phase", phase + 1)
    stats.set_value("suite/retry/found_again", frontier.chances.given)
    for event, count in frontier.counters.events.items():
        stats.set_value(f"suite/outcome/{event.value}", count)
    for trap, count in frontier.traps.met.items():
        stats.set_value(f"suite/trap/{trap.value}", count)
    for name, count in frontier.miner.found.items():
        stats.set_value(f"suite/mined/{name}", count)
    core.revisiting.publish()
    if core.sharing is not None:
        core.sharing.publish()
    if core.agency is not None:
        core.agency.publish()
    stats.set_value("suite/seen/cache_hits", frontier.cache.hits)
    stats.set_value("suite/seen/cache_misses", frontier.cache.misses)
    if archiver is not None:
        stats.set_value("suite/seen/archived", len(archiver))
    if frontier.sifter is not None:
        for name, value in frontier.sifter.statistics.items():
            stats.set_value(f"suite/seen/{name}", value)
    if statistics.unextracted or core.settings.extract != "eager":
        stats.set_value("suite/extract/waiting", statistics.unextracted)
    stats.max_value("suite/frontier/hosts_max", statistics.hosts)
    stats.max_value("suite/frontier/queued_max", queued_max)
