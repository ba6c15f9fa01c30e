"""Polite, crash-safe and memory-bounded crawling for Scrapy, on one machine or many.

Switched on by one line in a project's ``settings.py``::

    ADDONS = {"scrapy_spider_suite.Addon": 500}

Importing it imports nothing else: Scrapy loads the commands of all packages at each start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapy_spider_suite.addon import Addon

__all__ = ["Addon", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name == "Addon":
        from scrapy_spider_suite.addon import Addon

        return Addon
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
