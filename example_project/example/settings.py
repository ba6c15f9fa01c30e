"""The example project. One line makes it polite, crash-safe and memory-bounded: ADDONS."""

BOT_NAME = "example"
SPIDER_MODULES = ["example.spiders"]
NEWSPIDER_MODULE = "example.spiders"

ADDONS = {"scrapy_spider_suite.Addon": 500}

# Say who you are and where you can be reached before you crawl anybody else's site.
USER_AGENT = "example-crawler/1.0"
ROBOTSTXT_OBEY = True

# One page has many spellings: which further ones are taken for one (docs/normal-form.md).
# SUITE_NORMAL_FORM = ["tracking", "sessions"]

# A job directory makes the crawl resumable: run the same command again after any kind of end.
# JOBDIR = "crawls/broad"
