"""A project that stores the files and pictures of a shop."""

BOT_NAME = "shop"
SPIDER_MODULES = ["shop.spiders"]
ITEM_PIPELINES = {
    "scrapy.pipelines.files.FilesPipeline": 1,
    "scrapy.pipelines.images.ImagesPipeline": 2,
}
FILES_STORE = "stored/files"
IMAGES_STORE = "stored/images"
IMAGES_THUMBS = {"small": (16, 16)}
MEDIA_ALLOW_REDIRECTS = True
CONCURRENT_REQUESTS_PER_DOMAIN = 2
DOWNLOAD_DELAY = 0.02
