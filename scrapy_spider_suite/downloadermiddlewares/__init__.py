"""Downloader middlewares of the suite; each works alone through ``DOWNLOADER_MIDDLEWARES``."""
