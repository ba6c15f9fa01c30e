"""``scrapy crawl broad``: a polite crawl of thousands of hosts.

Without arguments it crawls the in-vitro web, which it starts itself; with ``-a seeds=`` the real
one:

    scrapy crawl broad
    scrapy crawl broad -a hosts=5000 -a pages=5
    scrapy crawl broad -a seeds=seeds.txt -s USER_AGENT="me (+https://me.example)"

Try next: override ``parse_page`` below to make items of pages, and watch the crawl from another
terminal with ``scrapy frontier status -j JOBDIR``.
"""

from scrapy_spider_suite.contact import require_contact
from scrapy_spider_suite.fakeweb import serve
from scrapy_spider_suite.spiders import BroadSpider


class Broad(BroadSpider):
    name = "broad"

    @classmethod
    def from_crawler(cls, crawler, *args, hosts="2000", pages="10", **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        if spider.seeds:
            require_contact(crawler.settings["USER_AGENT"])
        else:
            spider.start_urls = serve(crawler, hosts=hosts, pages=pages)
        return spider
