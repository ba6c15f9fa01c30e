"""The in-vitro web: thousands of hosts on the loopback interface, for tests and experiments.

A synthetic graph that is the same for the same seed, folders of files, hostile answers; a name
server of its own; a log of every request as the *server* saw it. Nothing here needs Scrapy::

    config = FakeWebConfig(hosts=1000, addresses=300, latency=0.1, log=Path("arrivals.tsv"))
    with FakeWebProcess(config) as web:
        crawl(web.ready.seeds, settings=web.ready.settings)
        expected = set(web.web.reachable())
    assert gaps(web.arrivals(), "host")[name].smallest >= 4.0

:class:`SyntheticWeb` says what a crawl of it must find; :class:`FakeWeb` is the same web inside
this process; ``scrapy fakeweb --help`` names every knob, as does :class:`FakeWebConfig`.
"""

from scrapy_spider_suite.testing.arrivals import Arrival, Gaps, gaps, read_arrivals
from scrapy_spider_suite.testing.config import FakeWebConfig
from scrapy_spider_suite.testing.graph import SyntheticWeb
from scrapy_spider_suite.testing.process import FakeWebProcess
from scrapy_spider_suite.testing.ready import Ready
from scrapy_spider_suite.testing.server import FakeWeb

__all__ = [
    "Arrival",
    "FakeWeb",
    "FakeWebConfig",
    "FakeWebProcess",
    "Gaps",
    "Ready",
    "SyntheticWeb",
    "gaps",
    "read_arrivals",
]
