"""Many agents, one crawl: who a URL belongs to, who is there, and how they tell each other.

No module of it knows Scrapy. Hosts and URLs are in normal form.
"""
