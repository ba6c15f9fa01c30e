"""From the bytes of a page to the URLs worth asking for, with no I/O and nothing of Scrapy.

``normalize`` gives each URL its one spelling, ``normalizer`` the one that a crawl wants (with
``options``, ``rewriting`` and ``twins``), ``extract`` reads the links of a page in bulk,
``scope`` says which of them a crawl may follow.
"""
