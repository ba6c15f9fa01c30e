"""The catalogue by its lists, with rules."""

from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule

from books.reading import book


class CatalogueSpider(CrawlSpider):
    """``-a site=URL``"""

    name = "catalogue"
    rules = (
        Rule(LinkExtractor(restrict_css="li.next"), process_request="first"),
        Rule(LinkExtractor(allow="/book/", deny="print"), callback="parse_book"),
    )

    def __init__(self, site, **kwargs):
        super().__init__(**kwargs)
        self.start_urls = [f"{site}/list/0"]

    def first(self, request, response):
        """Lists go before books."""
        return request.replace(priority=10)

    def parse_book(self, response):
        """One item for each book."""
        yield book(response)
