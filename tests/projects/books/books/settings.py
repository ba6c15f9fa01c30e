"""A project that reads a catalogue by its lists and by its sitemap."""

BOT_NAME = "books"
SPIDER_MODULES = ["books.spiders"]
ITEM_PIPELINES = {"books.pipelines.InStock": 300}
DEPTH_LIMIT = 12
FEED_EXPORT_ENCODING = "utf-8"
