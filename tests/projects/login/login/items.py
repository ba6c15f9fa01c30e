"""What is scraped."""

import scrapy


class Message(scrapy.Item):
    """A message in the member's inbox."""

    number = scrapy.Field()
    text = scrapy.Field()
    member = scrapy.Field()
