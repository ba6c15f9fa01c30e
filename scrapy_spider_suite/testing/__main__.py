"""``python -m scrapy_spider_suite.testing`` serves the in-vitro web, without loading Scrapy."""

import sys

from scrapy_spider_suite.testing.cli import main

sys.exit(main())
