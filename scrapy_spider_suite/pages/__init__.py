"""What pages say, and which of them say the same.

No module of it knows Scrapy: bodies and digests come in, originals go out.
"""
