"""What runs during a crawl, between Scrapy's components and the deciding frontier."""
