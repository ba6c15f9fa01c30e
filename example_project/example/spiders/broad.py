"""``scrapy crawl broad``: a polite crawl of thousands of hosts.

Without arguments it crawls the in-vitro web, which it starts itself, keeps the job, the pages and
the items in ``crawls/broad``, and prints how to look at them; with ``-a seeds=`` it crawls the real
web:

    scrapy crawl broad
    scrapy crawl broad -a hosts=5000 -a pages=5 -s JOBDIR=crawls/larger
    scrapy crawl broad -a seeds=seeds.txt -s JOBDIR=crawls/mine -s USER_AGENT="me (+https://me.example)"

Try next: change ``parse_page`` below, and watch the crawl from another terminal with
``scrapy frontier status -j crawls/broad``.
"""

import shlex
import shutil
import sys
from pathlib import Path

from scrapy import signals

from scrapy_spider_suite.fakeweb import serve
from scrapy_spider_suite.spiders import BroadSpider, require_contact


class Broad(BroadSpider):
    name = "broad"

    @classmethod
    def from_crawler(cls, crawler, *args, hosts="1000", pages="10", **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        if spider.seeds:
            require_contact(crawler.settings["USER_AGENT"])
        else:
            keep_all(crawler.settings)
            spider.start_urls = serve(crawler, hosts=hosts, pages=pages)
            spider.expected = int(hosts) * int(pages)
            crawler.signals.connect(spider.announce, signals.spider_opened)
            crawler.signals.connect(spider.print_commands, signals.engine_stopped)
        return spider

    def parse_page(self, response):
        yield {"url": response.url, "title": response.css("title::text").get()}

    def announce(self):
        """Log how long the crawl takes, by what a machine of two cores fetches in a second."""
        seconds = 5 + self.expected // 500
        self.logger.info("A crawl of %s pages takes about %d s", f"{self.expected:,}", seconds)

    def print_commands(self):
        """Print three commands that show what the crawl has made, and work from any directory."""
        scrapy = f"{shlex.quote(sys.executable)} -m scrapy"
        if shutil.which("scrapy") == str(Path(sys.executable).with_name("scrapy")):
            scrapy = "scrapy"
        print("\nLook at the job, at the packs of pages, and at the first items:\n")
        print(f"  {scrapy} frontier status -j {path(self.settings['JOBDIR'])}")
        print(f"  {scrapy} packs ls {path(self.settings['SUITE_PACKS_DIR'])}")
        print(f"  head -n 3 {path(next(iter(self.settings['FEEDS'])))}")


def keep_all(settings):
    """Have the job, the pages and the items in one directory; the command line wins."""
    job = Path(settings["JOBDIR"] or "crawls/broad")
    settings.set("JOBDIR", str(job), "spider")
    settings.set("SUITE_PACKS_DIR", str(job / "packs"), "spider")
    settings.set("FEEDS", {str(job / "items.jsonl"): {"format": "jsonlines"}}, "spider")


def path(name):
    """Return *name* as an absolute path, as a shell takes it."""
    return shlex.quote(str(Path(name).absolute()))
