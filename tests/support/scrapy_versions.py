"""Which Scrapy a test needs."""

from __future__ import annotations

import pytest
from scrapy import version_info

NEWEST = pytest.mark.skipif(version_info < (2, 19), reason="as Scrapy does it since 2.19")
"""What the test compares the suite with is Scrapy's newest behaviour."""
