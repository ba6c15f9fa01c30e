"""A project for a site behind a login."""

BOT_NAME = "login"
SPIDER_MODULES = ["login.spiders"]
ROBOTSTXT_OBEY = True
DOWNLOAD_DELAY = 0.05
FEED_EXPORT_ENCODING = "utf-8"
