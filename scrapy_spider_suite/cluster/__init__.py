"""One agent of a crawl at work: what it holds, its letters, what it hands to others, its heartbeat.

What agents have to agree on is in `agents`; here a frontier and a connection come together. No
module of it knows Scrapy: `crawl.agency` does.
"""
