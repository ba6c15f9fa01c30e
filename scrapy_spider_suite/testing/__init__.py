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
from scrapy_spider_suite.testing.config import FakeWebConfig, Ready
from scrapy_spider_suite.testing.fake_web import FakeWeb
from scrapy_spider_suite.testing.fake_web_process import FakeWebProcess
from scrapy_spider_suite.testing.synthetic_graph import SyntheticWeb

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
