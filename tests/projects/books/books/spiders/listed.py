"""The catalogue by its sitemap."""

from scrapy.spiders import SitemapSpider

from books.reading import book


class ListedSpider(SitemapSpider):
    """``-a site=URL``"""

    name = "listed"
    sitemap_rules = (("/book/", "parse_book"),)

    def __init__(self, site, **kwargs):
        super().__init__(**kwargs)
        self.sitemap_urls = [f"{site}/robots.txt"]

    def parse_book(self, response):
        """One item for each book."""
        yield book(response)
