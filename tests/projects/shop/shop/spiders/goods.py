"""Every article with its picture and its manual."""

import scrapy


class GoodsSpider(scrapy.Spider):
    """``-a site=URL``"""

    name = "goods"

    def __init__(self, site, **kwargs):
        super().__init__(**kwargs)
        self.start_urls = [f"{site}/"]

    def parse(self, response):
        """The articles of the front page."""
        yield from response.follow_all(css="a.article", callback=self.article)

    def article(self, response):
        """One item, whose URLs the pipelines fetch."""
        images = response.css("img::attr(src)").getall()
        yield {
            "name": response.css("h1::text").get(),
            "image_urls": [response.urljoin(src) for src in images],
            "file_urls": [
                response.urljoin(href) for href in response.css("a.manual::attr(href)").getall()
            ],
        }
