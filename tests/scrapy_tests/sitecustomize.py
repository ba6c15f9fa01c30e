"""Puts the suite into Scrapy's default settings, in every process that Scrapy's tests start.

Python imports this module at its start, from ``PYTHONPATH``, which `run` sets.
"""

import json
import os

from scrapy.settings import default_settings

vars(default_settings).update(json.loads(os.environ["SCRAPY_DEFAULT_SETTINGS"]))
