"""The in-vitro web: thousands of hosts on the loopback interface, for tests. Needs no Scrapy.

A synthetic graph that depends on its seed alone, folders of files, hostile answers, a name server,
and a log of every request as the server saw it. docs/fakeweb.md has an example.
"""

from scrapy_spider_suite.testing.arrivals import Arrival, Gaps, gaps, read_arrivals
from scrapy_spider_suite.testing.config import FakeWebConfig, Ready
from scrapy_spider_suite.testing.fake_web import FakeWeb, FakeWebProcess
from scrapy_spider_suite.testing.synthetic_site import SyntheticWeb

__all__ = [
    "Arrival", "FakeWeb", "FakeWebConfig", "FakeWebProcess", "Gaps", "Ready", "SyntheticWeb",
    "gaps", "read_arrivals",
]  # fmt: skip
